"""The part of a page that explores, in a real browser: its numbers are those of the package, and text stays text."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import HOSTILE, Browser, chromium
from synthetic_runs import write_run

from ablations.command_text import command
from ablations.commands.report import main as report
from ablations.compare.contrasts import contrasts
from ablations.designs import Arm
from ablations.figures.difference_figures import difference_band, paired_differences
from ablations.files.atomic import write_text
from ablations.files.tables import write_table
from ablations.read.outcomes import bases
from ablations.read.runs import load
from ablations.report import explore
from ablations.report.document import Document
from ablations.report.html import write_html
from ablations.report.run_page import write_run_page
from ablations.techniques import DAPO, REGISTER

ARMS = [Arm(DAPO), Arm(DAPO - {"clip_higher"}), Arm(DAPO - {"token_level_loss"})]


def write_rollouts(run: Path, step: int, arm: str) -> None:
    rows = [
        {
            "problem_id": f"p{k // 2}", "attempt": 0, "sample_index": k % 2, "prompt": HOSTILE[k // 2], "answer": "1",
            "response": f"{arm} {HOSTILE[k // 2]}", "correct": k % 2 == 0, "truncated": False, "kept": True,
            "error": HOSTILE[1] if k == 3 else None, "reward": 1.0, "reward_shaped": 0.5, "advantage": -0.25,
        }
        | ({"turns": [f"{arm} ", ""], "observations": [HOSTILE[k // 2]], "ended_by": "environment"} if k % 2 else {})
        for k in range(12)
    ]  # fmt: skip
    (run / "rollouts").mkdir(exist_ok=True)
    write_table(run / "rollouts" / f"step_{step:06d}.parquet", pd.DataFrame(rows))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms at four seeds on three base policies; two arms kept the completions of step 8 at seed 1."""
    base = tmp_path_factory.mktemp("explored")
    for arm in ARMS:
        for seed in range(4):
            keys = {"task.base_seed": seed // 2 if seed < 3 else 7}
            run = write_run(base, arm, seed, study=HOSTILE[1][:4], steps=12, every=3, keys=keys)
            if seed == 1 and arm != ARMS[2]:
                write_rollouts(run, 4, arm.name)
                write_rollouts(run, 8, arm.name)
    return base / HOSTILE[1][:4]


@pytest.fixture(scope="module")
def browser(study: Path) -> Iterator[Browser]:
    assert report([str(study)]) == 0
    with chromium() as found:
        yield found


@pytest.fixture
def page(study: Path, browser: Browser) -> Browser:
    browser.open(study / "report" / "report.html")
    return browser


def test_the_differences_and_intervals_of_the_page_are_those_of_the_package(study: Path, page: Browser) -> None:
    runs = load(study)
    computed = """(name, key, smooth) => {
        const e = explorer, one = e.comparisons.find(c => c.name === name);
        return band(e.data, differences(e.data, one, key, smooth, e.seeds)); }"""
    found = [one for one in contrasts(runs.arms, runs.arms[0]) if one.technique]
    assert len(found) == 2
    names = {"clip_higher": "clip-higher", "token_level_loss": "token-level loss"}
    for one in found:
        for key, smooth in (("rollout/entropy", 1), ("rollout/accuracy", 5), ("eval/chain_sum/avg@4", 1)):
            arguments = ", ".join(map(json.dumps, (names[one.technique], key, smooth)))
            rows = np.array(page.evaluate(f"({computed})({arguments})"), dtype=float)
            expected = difference_band(paired_differences(runs, one, key, smooth), bases(runs))
            np.testing.assert_allclose(rows[:, 1:], expected[["x", "mean", "low", "high", "n"]], rtol=1e-4, atol=1e-6)
            assert set(rows[:, 5]) == {3.0}


def test_side_by_side_are_the_last_values_of_each_seed_with_the_control_first(study: Path, page: Browser) -> None:
    page.evaluate("document.querySelector('[data-view=pairs]').click()")
    runs = load(study)
    last = {(run.arm, run.seed): run.series("eval/chain_sum/avg@4").iloc[-1] for run in runs}
    control, without, treated = page.evaluate("explorer.shownArms().map(arm => arm.name)")
    assert (control, treated) == (ARMS[1].name, "dapo")
    lines = page.evaluate(
        "explorer.lines.filter(line => !line.bold).map(line => [line.seed, ...line.rows.map(r => r[2])])"
    )
    assert {line[0] for line in lines} == {0, 1, 2, 3}
    for seed, *values in lines:
        np.testing.assert_allclose(values, [last[arm, seed] for arm in (control, without, treated)], rtol=1e-5)
    mean = page.evaluate("explorer.lines.find(line => line.bold).rows.map(r => r[2])")
    of_bases = [np.mean([[last["dapo", seed] for seed in group]]) for group in ((0, 1), (2,), (3,))]
    assert mean[2] == pytest.approx(np.mean(of_bases), rel=1e-5)


def test_arms_seeds_and_metrics_are_chosen_and_kept_in_the_address(study: Path, page: Browser) -> None:
    heading = "byId('heading').textContent"
    assert page.evaluate("[explorer.state.view, explorer.state.metric]") == ["difference", "eval/chain_sum/avg@4"]
    page.evaluate("{ byId('metric').value = 'rollout/entropy'; byId('metric').onchange(); }")
    assert "Difference in entropy (nats)" in page.evaluate(heading)
    page.evaluate("document.querySelector('[data-view=curves]').click()")
    assert page.evaluate("explorer.lines.length") == len(ARMS) * 5  # four seeds and their mean
    page.evaluate("document.querySelectorAll('#seeds input')[3].click()")
    assert page.evaluate("explorer.lines.length") == len(ARMS) * 4
    page.evaluate("{ byId('axis').value = 'tokens_generated'; byId('axis').onchange(); }")
    assert page.evaluate("explorer.lines.at(-1).rows.at(-1)[1]") > 1000
    page.evaluate("{ byId('plus').selectedIndex = 2; byId('minus').selectedIndex = 1; byId('add').click(); }")
    assert page.evaluate("explorer.lines.at(-1).name") == f"{ARMS[2].name} − {ARMS[1].name}"
    assert page.evaluate("explorer.state.view") == "difference"
    address = page.evaluate("location.href")
    page.call("Page.navigate", url="about:blank")
    page.call("Page.navigate", url=address)
    page.wait()
    assert page.evaluate("explorer.state.metric") == "rollout/entropy"
    assert page.evaluate("explorer.seeds.length - explorer.state.seeds.length") == 1


def test_two_points_make_no_line_and_the_completions_of_both_ends_are_open(tmp_path: Path, browser: Browser) -> None:
    run = write_run(tmp_path, ARMS[0], 0, study="short", steps=12, every=12)
    for step in (1, 5, 12):
        write_rollouts(run, step, "dapo")
    page = write_run_page(run)
    assert page is not None
    browser.open(page)
    drawn = (
        "explorer.small[0].series.slice(1).map(s => [s._paths == null, s.points.show.call(null, explorer.small[0], 1)])"
    )
    assert browser.evaluate(drawn) == [[True, True], [False, True]]  # held out at two steps, training at twelve
    steps = "[...document.querySelectorAll('#completions [aria-label=step]')].map(one => +one.value)"
    assert browser.evaluate(steps) == [1, 12]
    shown = "[...document.querySelectorAll('#completions .completion')].length"
    few = browser.evaluate(shown)
    browser.evaluate("document.querySelectorAll('#completions [aria-label=step]')[1].value = 5")
    browser.evaluate("document.querySelectorAll('#completions [aria-label=step]')[1].onchange()")
    assert (browser.evaluate(steps), browser.evaluate(shown)) == ([1, 5], few)


def test_pointing_gives_seed_and_value_and_a_click_opens_completions_arm_beside_arm(page: Browser) -> None:
    page.evaluate("byId('metric').value = 'rollout/entropy', byId('metric').onchange(), byId('plot').scrollIntoView()")
    line = "explorer.shown.find(l => l.seed === 1 && l.name === 'clip-higher')"
    place = f"""(({{ left, top }}, [, x, y], plot) => [left + plot.valToPos(x, "x"), top + plot.valToPos(y, "y")])(
        explorer.plot.over.getBoundingClientRect(), {line}.rows[8], explorer.plot)"""
    x, y = page.evaluate(place)
    for before in (5, 0):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - before, y=y)
        page.evaluate("new Promise(requestAnimationFrame)")  # moves are delivered once a frame
    value = page.evaluate(f"number({line}.rows[8][2], explorer.metric, true)")
    assert page.evaluate("byId('readout').textContent") == f"clip-higher, seed 1, step 9: {value} nats"
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
    page.evaluate("new Promise(requestAnimationFrame)")
    columns = "[...document.querySelectorAll('.beside h4')].map(h => h.textContent)"
    assert page.evaluate(columns) == ["dapo (1 of 2 right)", "dapo-clip_higher (1 of 2 right)"]
    assert "Step 9 was not recorded; step 8 is the nearest" in page.evaluate("byId('completions').textContent")
    shown = page.evaluate("[...document.querySelectorAll('.beside pre')].map(p => p.textContent)")
    assert shown == [f"{arm.name} {HOSTILE[0]}" for arm in ARMS[:2] for _ in range(2)]
    assert "reward_shaped 0.5 · advantage -0.25" in page.evaluate("byId('completions').textContent")
    said = page.evaluate("[...document.querySelectorAll('#completions .observation')].map(x => x.textContent)")
    assert said == [HOSTILE[0]] * 2
    assert page.evaluate("byId('completions').textContent").count("ended by its environment") == 2


def test_text_of_models_and_files_is_inert(study: Path, page: Browser) -> None:
    for problem in range(6):
        page.evaluate("explorer.browse(8, 1, ['dapo', 'dapo-clip_higher'])")
        page.evaluate(f"document.querySelectorAll('#completions select')[2].selectedIndex = {problem}")
        page.evaluate("document.querySelectorAll('#completions select')[2].onchange()")
        assert page.evaluate("document.querySelector('#completions > div pre').textContent") == HOSTILE[problem]
    assert page.evaluate("document.querySelectorAll('#explore img, #explore a, #explore script, iframe').length") == 0
    assert page.evaluate("window.hacked === undefined")
    page.evaluate(
        "{ const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s); }"
    )
    assert page.evaluate("window.hacked === undefined")
    page.evaluate("location.hash = encodeURIComponent(JSON.stringify({ metric: '<img src=x>', seeds: ['<b>'] }))")
    page.evaluate("explorer.restore(), explorer.draw()")
    assert [event["request"]["url"] for event in page.seen("Network.requestWillBeSent")] == [
        (study / "report" / "report.html").as_uri()
    ]
    assert not page.seen("Runtime.exceptionThrown")


def test_the_page_fits_a_phone_prints_dark_on_white_and_reads_without_a_script(study: Path, page: Browser) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it is drawn anew
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 28, 30)"
    assert not page.evaluate("document.querySelector('.controls').checkVisibility()")
    page.call("Emulation.setEmulatedMedia", media="", features=[])
    page.call("Emulation.clearDeviceMetricsOverride")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.call("Page.navigate", url=(study / "report" / "report.html").as_uri())
    while page.evaluate("document.readyState") != "complete":
        pass
    assert page.evaluate("document.querySelectorAll('table tr').length") > 10
    assert not page.evaluate("document.querySelector('#explore').checkVisibility()")
    page.call("Emulation.setScriptExecutionDisabled", value=False)


def test_metric_view_seeds_and_completions_are_chosen_by_keyboard_alone(page: Browser) -> None:
    page.tab_to("#metric")
    before = page.evaluate("explorer.state.metric")
    page.press("ArrowDown")
    assert before != page.evaluate("explorer.state.metric") == page.evaluate("byId('metric').value")
    page.tab_to("[data-view=curves]")
    page.press("Enter")
    assert page.evaluate("explorer.state.view") == "curves"
    page.tab_to("#plot")
    page.press("ArrowRight")
    last = page.evaluate("byId('readout').textContent")
    page.press("ArrowLeft")
    assert last != page.evaluate("byId('readout').textContent")
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "plot"  # the next point is an arrow away
    assert page.evaluate("byId('completions').hidden") is False
    page.tab_to("#arms input")
    page.press(" ")
    assert page.evaluate("explorer.state.arms.length") == len(ARMS) - 1
    page.tab_to("#by-seeds summary")
    page.press("Enter")
    page.tab_to("#seeds input")
    page.press(" ")
    assert page.evaluate("explorer.state.seeds") == [1, 2, 3]
    page.tab_to("#completions select")
    page.press("ArrowUp")
    assert page.evaluate("document.activeElement.selectedOptions[0].textContent") == "step 4"  # which keeps the focus
    page.tab_to("#completions button:last-of-type")
    page.press("Enter")
    assert page.evaluate("document.querySelector('#completions > div pre').textContent") == HOSTILE[1]


def test_tables_are_sorted_and_filtered_by_keyboard_alone(page: Browser) -> None:
    page.tab_to("input[type=search]")
    rows = "[...document.activeElement.nextElementSibling.tBodies[0].rows].filter(row => !row.hidden)"
    whole = page.evaluate(f"{rows}.length")
    for key in "entropy":
        page.press(key)
    assert 0 < page.evaluate(f"{rows}.length") < whole
    assert page.evaluate(f"{rows}.every(row => row.textContent.includes('entropy'))")
    page.tab_to("th button")
    column = "[...document.activeElement.closest('table').tBodies[0].rows].map(row => row.cells[0].textContent)"
    for direction in ("ascending", "descending"):
        page.press("Enter")
        assert page.evaluate("document.activeElement.parentElement.ariaSort") == direction
        shown = page.evaluate(column)
        assert shown == sorted(shown, reverse=direction == "descending")
        assert len(set(shown)) > 1


def test_a_runs_page_has_a_button_for_each_technique_once_the_page_of_a_step_was_made(
    browser: Browser, tmp_path: Path
) -> None:
    run = write_run(tmp_path, ARMS[0], 0, study="buttons", steps=6, every=3)
    buttons = "[...document.querySelectorAll('a.button')].map((a) => a.getAttribute('href'))"
    (run / "replay").mkdir(exist_ok=True)
    (run / "replay" / "step_000004.ckpt").touch()
    browser.open(write_run_page(run) or run)
    assert browser.evaluate(buttons) == []
    (run / "replay" / "step_000004.html").write_text("<!doctype html><html data-ready=1><title>played</title>")
    browser.open(write_run_page(run) or run)
    assert browser.evaluate(buttons) == [f"replay/step_000004.html#{switch}" for switch in REGISTER]
    browser.evaluate("document.querySelector('a.button').click()")
    for _ in range(200):
        if browser.evaluate("document.title") == "played":
            break
        time.sleep(0.02)
    assert browser.evaluate("location.hash.slice(1)") in REGISTER


def test_a_report_links_the_playable_pages_of_its_runs_and_names_the_command_for_a_state_without_one(
    browser: Browser, tmp_path: Path
) -> None:
    """The name of an arm is quoted in the address, and the link opens that run's page with the switch named."""
    arms = [Arm(DAPO | {"overlong_filtering"}), Arm(DAPO)]
    runs = [write_run(tmp_path, arm, seed, study="linked", steps=6, every=3) for arm in arms for seed in range(2)]
    page = tmp_path / "linked" / "report" / "report.html"
    assert report([str(tmp_path / "linked")]) == 0
    assert "Steps to play with" not in page.read_text()
    for run in runs[:2]:
        (run / "replay").mkdir(exist_ok=True)
        (run / "replay" / "step_000004.ckpt").touch()
    (runs[0] / "replay" / "step_000004.html").write_text("<!doctype html><html data-ready=1><title>played</title>")
    assert report([str(tmp_path / "linked")]) == 0
    browser.open(page)
    buttons = "[...document.querySelectorAll('a.button')].map((a) => a.getAttribute('href'))"
    address = "../dapo%2Boverlong_filtering/seed_0/replay/step_000004.html"
    assert browser.evaluate(buttons) == [f"{address}#{switch}" for switch in REGISTER]
    commands = browser.evaluate("[...document.querySelectorAll('pre code')].map((one) => one.textContent).join()")
    assert "seed_1 step=4 --html" in commands
    assert "seed_0 step=4 --html" not in commands
    browser.evaluate("document.querySelector('a.button').click()")
    for _ in range(200):
        if browser.evaluate("document.title") == "played":
            break
        time.sleep(0.02)
    assert browser.evaluate("location.hash.slice(1)") in REGISTER


def test_the_page_of_a_run_fills_while_it_goes_on(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path, ARMS[0], 0, study="live", steps=12, every=3, status="running")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("")
    assert write_run_page(run) is None
    for rows in (1, 6, 13):
        write_text(run / "metrics.jsonl", "".join(lines[:rows]))
        page = write_run_page(run)
        assert page == run / "run.html"
        browser.open(page)
        assert browser.evaluate("explorer.lines[0].rows.at(-1)[0]") == rows - 1
        assert f"Step {rows - 1} of 40, running." in browser.evaluate("document.body.textContent")
    shown = "[...document.querySelectorAll('pre code')].at(-1).textContent.trim()"
    assert browser.evaluate(shown) == command("report", str(tmp_path / "live"))  # it is a cell of a study
    (run / "overrides.txt").write_text("+experiment=dapo\nseed=0\nbudget.steps=40\n")
    browser.open(write_run_page(run) or run)
    study = command("train", "-m", "+experiment=dapo", "budget.steps=40", "+study=leave_one_out", "seed=range(0,8)")
    assert browser.evaluate(shown) == study


def test_the_page_of_a_run_shows_six_metrics_at_once_and_a_click_enlarges_one(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_run_page(write_run(tmp_path, ARMS[0], 0, study="panels", steps=12, every=3)) or tmp_path)
    titles = browser.evaluate("[...document.querySelectorAll('.panel b')].map(b => b.textContent)")
    assert titles == ["Accuracy (%)", "Reward", "Entropy (nats)", "Response length (tokens)", "Groups (%)"]
    assert browser.evaluate("document.querySelectorAll('.panel canvas').length") == 5  # these rows have no clip/
    browser.tab_to(".panel:nth-child(3)")
    browser.press("Enter")
    assert browser.evaluate("explorer.state.metric") == "rollout/entropy"
    assert browser.evaluate("byId('heading').textContent") == "entropy (nats)"
    assert browser.evaluate("document.activeElement.ariaPressed") == "true"
    right_edges = "[...document.querySelectorAll('.panel')].map(one => one.getBoundingClientRect().right)"
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    browser.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert max(browser.evaluate(right_edges)) <= 390
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_levels_are_in_percent_and_differences_in_points(page: Browser) -> None:
    page.evaluate("byId('metric').value = 'rollout/accuracy', byId('metric').onchange()")
    assert "accuracy (points)" in page.evaluate("byId('heading').textContent")
    page.evaluate("explorer.set({ view: 'curves' })")
    assert "accuracy (%)" in page.evaluate("byId('heading').textContent")
    page.evaluate("explorer.choose(explorer.shown[0], 3)")
    assert page.evaluate("byId('readout').textContent").endswith(" %")
    page.evaluate("explorer.set({ view: 'difference' })")


def test_a_part_of_the_course_is_enlarged_by_mouse_and_by_keys(page: Browser) -> None:
    page.evaluate("explorer.set({ view: 'curves', range: [] }), byId('plot').scrollIntoView()")
    left, top, width = page.evaluate(
        "(({ left, top, width }) => [left, top + 50, width])(explorer.plot.over.getBoundingClientRect())"
    )
    opened = page.evaluate("byId('completions').innerHTML")
    for kind, x in (("mousePressed", 0.25), ("mouseMoved", 0.4), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        pressed = {"button": "left", "buttons": 1, "clickCount": 1}
        page.call("Input.dispatchMouseEvent", type=kind, x=left + x * width, y=top, **pressed)
        page.evaluate("new Promise(requestAnimationFrame)")
    page.evaluate("new Promise(done => setTimeout(done, 50))")
    low, high = page.evaluate("explorer.state.range")
    assert (low, high) == pytest.approx((3, 6), abs=0.2)  # of the steps 0 to 12
    assert page.evaluate("[explorer.plot.scales.x.min, explorer.plot.scales.x.max]") == [low, high]
    assert page.evaluate("byId('completions').innerHTML") == opened  # drawing over a part is no click
    page.evaluate("byId('whole').click()")
    page.evaluate("byId('plot').focus(), explorer.choose(explorer.shown[0], 2)")
    page.press("+")
    assert page.evaluate("explorer.state.range[1] - explorer.state.range[0]") < 7
    page.press("-")
    page.press("-")
    assert page.evaluate("explorer.state.range") == []


def test_24_runs_of_10_000_steps_are_drawn(browser: Browser, tmp_path: Path) -> None:
    steps = list(range(10_000))
    arms = [{"name": name, "short": name, "colour": "#123456", "dash": "solid"} for name in ("dapo", "naive")]
    data = {
        "metric": "rollout/entropy", "family": "f", "live": False, "label": "own", "axes": {"step": "rollout step"},
        "t": [12.7, 4.3] + [2.2] * 10, "arms": arms, "completions": [],
        "metrics": [{"key": "rollout/entropy", "words": "entropy", "unit": "nats", "scale": 1}],
        "comparisons": [
            {"name": "own", "family": "f", "weights": {"naive": 1, "dapo": -1}, "colour": "#123456", "dash": "solid"}
        ],
        "runs": [
            {"arm": arm["name"], "seed": seed, "base": str(seed), "spoilt": [],
             "values": {"step": steps, "rollout/entropy": [(seed + step % 97) / 10 for step in steps]}}
            for arm in arms for seed in range(12)
        ],
    }  # fmt: skip
    browser.open(write_html(Document("long", ["What it is.", "What follows."], data), tmp_path / "long.html"))
    assert browser.evaluate("explorer.plot !== null && explorer.lines.length") == 13
    browser.evaluate("explorer.set({ view: 'curves' })")
    assert browser.evaluate("explorer.lines.map(line => line.rows.length)") == [10_000] * 26
    assert browser.evaluate("[explorer.plot.scales.y.min < 0, explorer.plot.scales.y.max > 10.7]") == [True, True]
    assert not browser.seen("Runtime.exceptionThrown")


def test_a_page_of_long_runs_has_the_metrics_that_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["a", "b", "eval/own/avg@8", "rollout/entropy", "z"]
    assert explore._that_fit(keys, "z", 100) == keys
    monkeypatch.setattr(explore, "MOST_VALUES", 300)
    assert explore._that_fit(keys, "z", 100) == ["eval/own/avg@8", "rollout/entropy", "z"]
    assert explore._that_fit(keys, "z", 10_000) == ["z"]


def test_every_control_has_a_name_is_reached_by_tab_and_shows_its_focus(page: Browser) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.evaluate("explorer.browse(8, 1, ['dapo']), globalThis.reached = new Set(), 0")
    page.evaluate("""globalThis.unreached = () =>
        [...document.querySelectorAll('a, button, select, input, summary, #plot')]
        .filter(one => one.checkVisibility() && !reached.has(one)).map(one => one.outerHTML)""")
    for _ in range(page.evaluate("unreached().length") + 10):  # scrolled boxes take the focus too
        page.press("Tab")
        page.evaluate(
            "{ const at = document.activeElement; if (getComputedStyle(at).outlineStyle !== 'none') reached.add(at); }"
        )
    assert page.evaluate("unreached()") == []
    roles = {"button", "combobox", "checkbox", "searchbox", "link", "application", "DisclosureTriangle"}
    nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if "role" in node and "name" in node]
    names = [(node["role"]["value"], node["name"]["value"].strip()) for node in nodes]
    assert {role for role, _ in names} >= roles
    assert [role for role, name in names if role in roles and not name] == []


def test_an_episode_of_more_turns_than_a_page_shows_letters_stays_short(tmp_path: Path) -> None:
    turns = ["so 37*48="] * (explore.RESPONSE + 1)
    row = {"response": "", "turns": turns, "observations": turns[1:], "response_ids": [1]}
    write_table(tmp_path / "step_000001.parquet", pd.DataFrame([row]))
    (shown,) = explore._table(tmp_path / "step_000001.parquet")["rows"]
    assert len(shown["response"]) == 2 * len(turns) - 1
    assert {len(piece) for piece in shown["response"]} == {6}
