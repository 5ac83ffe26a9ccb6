"""docs/play/train.html trains in a browser: its steps are the package's, and its pair differs as the package's does."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, chromium

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/play/train.html"
SOURCES = ROOT / "docs/play/train"
REFERENCE = json.loads((Path(__file__).parent / "browser_steps.json").read_text())
STEPS = 14
"""Of the pair. In the calibration of the regime its accuracies differ from step 8 on."""
SWITCHES = ("clip_higher", "dynamic_sampling", "token_level_loss", "soft_overlong_punishment", "overlong_filtering")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def trained(browser: Browser) -> list[list[dict[str, Any]]]:
    """The steps of A and of B: DAPO with and without dynamic sampling."""
    browser.open(PAGE)
    browser.evaluate("document.getElementById('start').click()")
    while browser.evaluate("Math.min(...runs.map((run) => run.length))") < STEPS:
        assert "error" not in (said := status(browser)), said
        time.sleep(0.2)
    browser.evaluate("document.getElementById('start').click()")
    return browser.evaluate("runs")


def status(browser: Browser) -> str:
    return browser.evaluate("document.getElementById('status').textContent")


@pytest.mark.parametrize(("policy", "arm"), list(enumerate(REFERENCE)))
def test_the_first_steps_are_those_of_the_package(trained, policy, arm):
    for mine, theirs in zip(trained[policy], REFERENCE[arm], strict=False):
        sampled = [
            [group["problem"]["prompt"], answer["tokens"], group["kept"]]
            for group in mine["groups"]
            for answer in group["responses"]
        ]
        assert sampled == theirs["sampled"]
        for key in theirs.keys() - {"sampled"}:
            assert mine["metrics"][key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-4), (mine["step"], key)


def test_the_pair_differs_with_the_sign_that_the_package_has(trained):
    def accuracy(run: list[dict[str, Any]]) -> float:
        return sum(step["metrics"]["rollout/accuracy"] for step in run[7:STEPS]) / (STEPS - 7)

    dapo, without = trained
    assert accuracy(dapo) > accuracy(without) + 0.05
    assert accuracy(dapo) > 1.5 * dapo[0]["metrics"]["rollout/accuracy"]
    tokens = [run[STEPS - 1]["metrics"]["tokens/total"] for run in trained]
    assert tokens[0] > 1.5 * tokens[1]  # the price


def test_nothing_is_asked_of_a_server(browser, trained):
    addresses = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert [address for address in addresses if not address.startswith("blob:")] == [PAGE.as_uri()]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', PAGE.read_text())
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "connect-src" not in policy[1]
    assert PAGE.stat().st_size < 5e6


def test_groups_that_are_dropped_are_grey_and_a_row_opens_its_answers(browser, trained):
    found = browser.evaluate("[...document.querySelectorAll('#groups-a .group')].map((g) => g.matches('.dropped'))")
    assert found == [not group["kept"] for group in browser.evaluate("runs[0].at(-1).groups")]
    browser.evaluate("document.querySelector('#groups-b .group').click()")
    answers = browser.evaluate("[...document.querySelectorAll('#detail tbody tr')].map((row) => row.textContent)")
    group = browser.evaluate("runs[1].at(-1).groups[0]")
    assert len(answers) == len(group["responses"])
    for shown, answer in zip(answers, group["responses"], strict=True):
        assert answer["text"] in shown
        assert f"{answer['reward']:.2f}" in shown


def test_the_address_holds_the_settings_and_keys_change_them(browser):
    browser.open(PAGE)
    assert [browser.evaluate(f"document.getElementById('{name}').ariaChecked") for name in SWITCHES] == [
        "true", "true", "true", "true", "false",
    ]  # fmt: skip
    for key in ("4", "5"):
        browser.press(key)
    address = browser.evaluate("location.hash")
    assert address.startswith("#on=clip_higher,dynamic_sampling,token_level_loss,overlong_filtering&")
    browser.evaluate("location.hash = '#on=&differs=soft_overlong_punishment&samples_per_prompt=4&lr=0.002&seed=7'")
    time.sleep(0.2)
    assert [browser.evaluate(f"document.getElementById('{name}').ariaChecked") for name in SWITCHES] == ["false"] * 5
    read = {name: browser.evaluate(f"document.getElementById('{name}').value") for name in ("differs", "lr", "seed")}
    assert read == {"differs": "soft_overlong_punishment", "lr": "0.002", "seed": "7"}
    browser.tab_to("#start")
    browser.press("Enter")
    while browser.evaluate("runs[1].length") < 1:
        time.sleep(0.1)
    browser.press("r")
    assert browser.evaluate("runs.map((run) => run.length)") == [0, 0]


def test_a_hostile_address_changes_nothing(browser):
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=PAGE.as_uri() + "#on=<script>&lr=1e9&seed=-1&differs=__proto__&max_rounds=1")
    browser.wait()
    values = {name: browser.evaluate(f"document.getElementById('{name}').value") for name in ("differs", "lr", "seed")}
    assert values == {"differs": "dynamic_sampling", "lr": "0.001", "seed": "0"}


def test_a_browser_without_webassembly_is_shown_the_recorded_step(browser):
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source="delete globalThis.WebAssembly")
    browser.open(PAGE)
    assert browser.evaluate("document.getElementById('unable').innerText").startswith("This browser has no WebAssembly")
    target = browser.evaluate("document.querySelector('#unable a').getAttribute('href')")
    assert (PAGE.parent / target).is_file()
    assert browser.evaluate("document.getElementById('all').checkVisibility()") is False
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_phone_and_its_switches_the_first_screen(browser, width):
    height = 800
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.open(PAGE)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    bottoms = [
        browser.evaluate(f"document.getElementById('{name}').getBoundingClientRect().bottom") for name in SWITCHES
    ]
    assert max(bottoms) < height
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_the_page_has_the_base_policy_and_settings_of_the_regime(monkeypatch):
    monkeypatch.syspath_prepend(SOURCES)
    import data

    assert data.made() == json.loads((SOURCES / "data.json").read_text())
    shown = json.loads(re.search(r'id="data">(.*?)</script>', PAGE.read_text(), re.S)[1])  # type: ignore[index]
    weights = re.search(r'id="weights">(.*?)</script>', PAGE.read_text(), re.S)[1]  # type: ignore[index]
    assert {**shown, "weights": weights} == data.made()
