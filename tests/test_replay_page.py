"""The page of a step computes what the replay does, and text in it stays text."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import HOSTILE, Browser, chromium
from recorded_step import REPLAYS, settings

from ablations.techniques import REGISTER
from dapo_lit.config import Config
from dapo_lit.objective.tokens import Bounds, clipped_tokens
from dapo_lit_tools.commands.replay import changed
from dapo_lit_tools.replays.page import filled
from dapo_lit_tools.replays.recorded_step import Recording, open_recording, replay
from dapo_lit_tools.replays.tables import token_table

STATE = """(changes) => {
    const state = { ...recordedState(step), ...changes };
    return Object.assign(state, { on: new Set(changes.on || state.on) });
}"""
COMPUTED = f"""(changes) => {{
    const found = compute(step, ({STATE})(changes)), e = found.epochs, tokens = [];
    for (const epoch of e) for (const g of found.kept) for (const i of step.groups[g].members) {{
        const c = step.completions[i];
        for (let t = c.start; t < c.start + c.tokens; t++)
            tokens.push([found.advantage[i], epoch.weight[i], epoch.ratio[t], epoch.clip[t], epoch.update[i]]);
    }}
    return {{ kept: found.kept.map(g => step.groups[g].id), rewards: found.rewards, tokens, loss: found.loss,
        updates: found.updates, norm: combinationOf(step, ({STATE})(changes)).update.norm }};
}}"""
CLIPPED = ["no", "low", "high", "dual"]


@pytest.fixture(scope="module")
def recording(recorded_run: Path) -> Recording:
    return open_recording(recorded_run, 3)


@pytest.fixture(scope="module")
def page(recorded_run: Path) -> Path:
    return recorded_run / "replay" / "step_000003.html"


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Browser]:
    with chromium() as found:
        found.open(page)
        yield found


def compare(browser: Browser, arm: dict[str, Any], changes: dict) -> float:
    """The largest difference of a number of the page from the replay's; all else must be equal."""
    page = browser.evaluate(f"({COMPUTED})({json.dumps(changes)})")
    assert page["kept"] == arm["kept"]
    table, tokens = arm["table"], np.array(page["tokens"], dtype=float)
    assert [CLIPPED[int(x)] for x in tokens[:, 3]] == table["clipped"].tolist()
    assert tokens[:, 4].astype(int).tolist() == table["update"].tolist()
    assert page["updates"] == arm["updates"]
    differences = [
        np.abs(tokens[:, :3] - table[["advantage", "weight", "ratio"]].to_numpy(float)).max(),
        np.abs(np.array(page["rewards"][: len(arm["rewards"])]) - arm["rewards"]).max(),
        abs(page["loss"] - arm["loss"]),
    ]
    return float(max(differences))


def with_switches(config: Config, on: set[str]) -> Config:
    return changed(config, {f"algorithm.techniques.{name}": name in on for name in REGISTER})


def test_the_page_computes_what_the_replay_does_under_each_of_the_32_combinations(recorded_run, recording, browser):
    replays = torch.load(recorded_run / REPLAYS, weights_only=False)
    seen, worst = set(), 0.0
    for bits in range(32):
        on = {name for place, name in enumerate(REGISTER) if bits >> place & 1}
        arm = replays[settings(with_switches(recording.config, on))]
        worst = max(worst, compare(browser, arm, {"on": sorted(on)}))
        seen.add((len(arm["kept"]), tuple(arm["table"]["clipped"].value_counts())))
    assert worst < 1e-6
    assert len(seen) > 8


@pytest.mark.parametrize(
    ("sliders", "changes"),
    [
        ({"cache": 9}, {"algorithm.overlong.cache_tokens": 9}),
        (
            {"on": ["token_level_loss", "dynamic_sampling"], "token": "group"},
            {"algorithm.token_level_denominator": "group"},
        ),
        (
            {"on": ["dynamic_sampling"], "completion": "constant"},
            {"algorithm.completion_level_denominator": "constant"},
        ),
    ],
)
def test_between_the_combinations_all_that_needs_no_ratio_is_the_replays(recording, browser, sliders, changes):
    config = recording.config
    if "on" in sliders:
        config = with_switches(config, set(sliders["on"]))
    arm = replay(recording, changed(config, changes))
    page = browser.evaluate(f"({COMPUTED})({json.dumps(sliders)})")
    table, tokens = token_table(arm, lambda ids: ""), np.array(page["tokens"], dtype=float)
    assert page["kept"] == [[g.step, g.index] for g in arm.accepted]
    assert tokens[:, :2] == pytest.approx(table[["advantage", "weight"]].to_numpy(float), abs=1e-6)


def test_the_bounds_of_the_sliders_clip_the_ratios_that_were_recorded(recording, browser):
    table = token_table(replay(recording, recording.config), lambda ids: "")
    page = browser.evaluate(f"({COMPUTED})({{ low: 0.07, high: 0.11 }})")
    ratio, advantage = (torch.tensor(table[name].to_numpy()) for name in ("ratio", "advantage"))
    expected = [int(x.sum()) for x in clipped_tokens(ratio, advantage, Bounds(0.07, 0.11, 1.5))]
    clip = [int(row[3]) for row in page["tokens"]]
    assert [clip.count(1), clip.count(2), clip.count(3)] == expected
    assert min(expected[:2]) > 0


def test_keys_flip_switches_and_the_numbers_and_the_equation_follow(recording, page, browser):
    browser.open(page)
    tile = "document.querySelector('#tiles .value').textContent"
    on = "document.querySelector('[role=switch]').getAttribute('aria-checked')"
    term = "document.querySelector('[data-term=clip_higher]').getAttribute('class')"
    assert (browser.evaluate(on), browser.evaluate(term)) == ("true", "term on")
    browser.press("1")
    assert (browser.evaluate(on), browser.evaluate(term)) == ("false", "term off")
    browser.press("2")
    kept = replay(recording, with_switches(recording.config, {"soft_overlong_punishment", "token_level_loss"})).accepted
    assert browser.evaluate(tile).split()[0] == str(len(kept))
    browser.press("0")
    assert browser.evaluate(on) == "true"
    browser.evaluate("document.querySelector('.tokens').focus()")
    browser.press("ArrowRight")
    assert "entropy" in browser.evaluate("document.querySelector('.readout').textContent")


def test_an_address_with_a_technique_opens_the_step_with_its_switch_in_the_other_position(recording, page, browser):
    recorded = recording.config.algorithm.techniques.model_dump()
    browser.open(page)
    on = "[...state.on]"
    for technique in REGISTER:
        # Another fragment alone would not load the page again.
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=f"{page.as_uri()}#{technique}")
        browser.wait()
        assert set(browser.evaluate(on)) == {name for name, was in recorded.items() if was} ^ {technique}
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=f"{page.as_uri()}#groups")
    browser.wait()
    assert set(browser.evaluate(on)) == {name for name, was in recorded.items() if was}


def test_the_address_holds_what_was_changed_and_a_link_opens_it(recording, page, browser):
    """Switches, sliders and the chosen group; what no slider has is the nearest value, what is unknown is left out."""
    browser.open(page)
    hash_ = "location.hash"
    assert browser.evaluate(hash_) == ""
    browser.press("1")
    browser.evaluate("set({ high: 0.5, token: 'group' }), chooseGroup(2)")
    written = browser.evaluate(hash_)
    assert written == "#on=dynamic_sampling,token_level_loss,soft_overlong_punishment&high=0.5&token=group&group=3"
    shown = "[[...state.on].sort(), state.low, state.high, state.cache, state.token, view.group]"
    changed = browser.evaluate(shown)
    browser.press("0")
    assert browser.evaluate(hash_) == "#group=3"

    def opened(fragment: str) -> Any:
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=page.as_uri() + fragment)
        browser.wait()
        return browser.evaluate(shown)

    assert opened(written) == changed
    recorded = opened("")
    assert opened("#low=NaN&high=&token=elsewhere&group=900&what=7") == recorded
    assert opened("#on=no_such_switch")[0] == []
    assert opened("#low=7&cache=-3")[1:4:2] == [1, 0]
    browser.evaluate("location.hash = '#on=clip_higher'")
    browser.evaluate("new Promise(done => setTimeout(done, 50))")
    assert browser.evaluate("[...state.on]") == ["clip_higher"]


def test_the_page_of_the_documentation_shows_a_step_in_which_each_switch_does_something(browser):
    browser.open(Path(__file__).parents[1] / "docs" / "play" / "smollm2.html")
    assert not browser.seen("Runtime.exceptionThrown")
    assert browser.evaluate("document.querySelectorAll('.effect:not(.nothing)').length") == 5


def test_the_page_is_readable_in_the_dark(page, browser):
    """Text against its own background, by the contrast of WCAG 2."""
    contrast = """(selector) => {
        const parse = (text) => text.match(/[\\d.]+/g).map(Number), light = (rgb) => rgb.slice(0, 3)
            .map((x) => x / 255).map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
            .reduce((sum, x, k) => sum + x * [0.2126, 0.7152, 0.0722][k], 0);
        const node = document.querySelector(selector);
        let under = node;
        while (under && parse(getComputedStyle(under).backgroundColor)[3] === 0) under = under.parentElement;
        const shown = [getComputedStyle(node).color, getComputedStyle(under).backgroundColor];
        const pair = shown.map((text) => light(parse(text)));
        return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05); }"""
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.open(page)
        for selector in ("h1", ".lead", ".source", ".tile .label", ".switch b", ".group .why", ".slider select", "kbd"):
            assert browser.evaluate(f"({contrast})({json.dumps(selector)})") > 4.5, (scheme, selector)
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(23, 23, 26)") == (scheme == "dark")
    browser.call("Emulation.setEmulatedMedia", media="", features=[])


def test_the_page_names_the_switches_that_change_nothing(page, browser):
    browser.open(page)
    named = "document.getElementById('idle').textContent"
    assert "dynamic sampling" not in browser.evaluate(named)
    browser.evaluate("step.settings.num_prompts = 0; set({})")
    assert "dynamic sampling" in browser.evaluate(named)


SKETCHED = f"""(changes) => {{
    const found = updateOf(step, ({STATE})(changes));
    return [degrees(found.cosine), found.norm, found.exact];
}}"""


def test_between_the_combinations_the_update_is_sketched_within_the_error_that_the_page_shows(page, browser):
    """Six replays at other sliders; and a slider moved by nothing leaves the replay's numbers."""
    browser.open(page)
    exact = browser.evaluate(f"({SKETCHED})({{}})")
    assert exact == [0, browser.evaluate("combinationOf(step, recordedState(step)).update.norm"), True]
    off = browser.evaluate("sketchError(step)")
    assert off["count"] == 6
    assert off["degrees"] < 30  # the updates of these steps are large
    assert off["norm"] < 0.6
    browser.evaluate("step.settings.clip.low += 1e-12")
    nearly = browser.evaluate(f"({SKETCHED})({{ low: step.settings.clip.low - 1e-12 }})")
    assert nearly[2] is False
    assert nearly[:2] == pytest.approx(exact[:2], abs=0.1)


def test_a_slider_off_its_recorded_value_has_an_angle_that_says_it_is_a_sketch(page, browser):
    browser.open(page)
    update = "[...document.querySelectorAll('#tiles .tile')].pop().textContent"
    assert browser.evaluate(update).startswith("update0°")
    browser.evaluate(
        "{ const i = document.querySelector('[data-slider=high] input'); i.value = 0.5;"
        "  i.dispatchEvent(new Event('input')); }"
    )
    assert "≈" in browser.evaluate(update)
    assert "in 6 replays" in browser.evaluate(update)
    inside = """[...document.querySelectorAll('.tile .value')].every(one => {
        const text = document.createRange(), tile = one.parentElement.getBoundingClientRect();
        text.selectNodeContents(one);
        return text.getBoundingClientRect().right < tile.right && tile.right <= innerWidth; })"""
    for width in (360, 390, 641, 780, 900, 1100, 1280):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        assert browser.evaluate(inside), f"a number of a tile is cut at {width} px"
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_an_episode_shows_what_its_environment_said_and_its_length_in_eq_13_is_the_one_that_counts(
    page, browser, tmp_path
):
    step = json.loads(re.search(r'id="step">(.*?)</script>', page.read_text(), re.S)[1])
    settings, completion = step["settings"], step["groups"][0]["completions"][0]
    cache = settings["overlong"]["cache_tokens"]
    assert completion["tokens"] > 1
    completion |= {"end": "turns", "seen": [[0, HOSTILE[0]], [1, "12"]], "length": settings["limit"] - cache + 1}
    episode = tmp_path / "episode.html"
    episode.write_text(filled(step))
    browser.open(episode)
    browser.evaluate("chooseGroup(0)")
    row = "document.querySelector('#detail .completion')"
    spans = f"[...{row}.querySelector('.tokens').children].slice(0, 4).map(x => x.className.split(' ')[0])"
    assert browser.evaluate(spans)[:3] == ["observation", "token", "observation"]
    said = f"[...{row}.querySelectorAll('.observation')].map(x => x.textContent)"
    assert browser.evaluate(said) == [HOSTILE[0], "12"]
    assert "3 turns" in browser.evaluate(f"{row}.textContent")
    assert "ended by the limit of turns" in browser.evaluate(f"{row}.textContent")
    reward = "compute(step, { ...recordedState(step), on: new Set(['soft_overlong_punishment']) }).rewards[0]"
    assert browser.evaluate(reward) == pytest.approx(completion["value"] - 1 / cache)


def test_text_of_models_and_files_stays_text(page, browser, tmp_path):
    step = json.loads(re.search(r'id="step">(.*?)</script>', page.read_text(), re.S)[1])
    step["task"] = HOSTILE[0]
    step["vocabulary"] = [HOSTILE[k % len(HOSTILE)] for k in range(len(step["vocabulary"]))]
    for k, group in enumerate(step["groups"]):
        group["problem"] = group["answer"] = HOSTILE[k % len(HOSTILE)]
    hostile = tmp_path / "hostile.html"
    hostile.write_text(filled(step))
    browser.open(hostile)
    assert browser.evaluate("window.hacked === undefined")
    assert browser.evaluate("document.querySelectorAll('script').length") == 3
    assert browser.evaluate("document.querySelectorAll('img, iframe, a').length") == 0
    assert HOSTILE[0] in browser.evaluate("document.getElementById('intro').textContent")
    assert browser.evaluate("step.groups.map(g => g.problem).slice(0, 6)") == HOSTILE[: len(step["groups"])]
    browser.evaluate(
        "{ const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s); }"
    )
    assert browser.evaluate("window.hacked === undefined")


def test_the_page_asks_for_nothing_and_no_script_of_it_fails(page, browser):
    browser.open(page)
    browser.press("3")
    urls = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert urls == [page.as_uri()]
    assert not browser.seen("Runtime.exceptionThrown")
    assert not [e for e in browser.seen("Log.entryAdded") if e["entry"]["level"] == "error"]
