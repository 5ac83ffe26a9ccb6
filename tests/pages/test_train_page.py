"""docs/play/train.html trains in a browser: its steps are the package's, and its pair differs as the package's does."""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
SWIFTSHADER = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
IN_SOFTWARE = pytest.mark.skipif("DAPO_LIT_MATRIX" not in os.environ, reason="minutes without a GPU: make sweeps")
"""Flags with which Chromium computes WebGPU on the processor."""
TAKEN_FOR_A_GPU = "Object.defineProperty(GPUAdapterInfo.prototype, 'isFallbackAdapter', { get: () => false });"
"""The page does not try an adapter that says that it is the processor, as SwiftShader does."""
SMALL = "on=clip_higher,token_level_loss&differs=soft_overlong_punishment&samples_per_prompt=4&max_response_tokens=20"
SWITCHES = ("clip_higher", "dynamic_sampling", "token_level_loss", "soft_overlong_punishment", "overlong_filtering")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def trained(browser: Browser) -> list[list[dict[str, Any]]]:
    """The steps of A and of B: DAPO with and without dynamic sampling."""
    browser.open(PAGE)
    return train(browser, STEPS)


@pytest.fixture(scope="module")
def with_gpu() -> Iterator[Browser]:
    with chromium(*SWIFTSHADER) as browser:
        browser.open(PAGE)
        if not browser.evaluate("navigator.gpu?.requestAdapter().then((adapter) => adapter !== null)"):
            pytest.skip("this Chromium has no WebGPU")
        yield browser


def engine_after_trial(browser: Browser) -> tuple[str, float, float]:
    """What goes on, and the seconds of a step with WebAssembly and with WebGPU."""
    said = re.fullmatch(r"computed with (\w+) \(step 2: WebAssembly (.*) s, WebGPU (.*) s\)", text(browser, "engine"))
    assert said, text(browser, "engine")
    return said[1], float(said[2]), float(said[3])


def train(browser: Browser, steps: int) -> list[list[dict[str, Any]]]:
    browser.evaluate("document.getElementById('start').click()")
    while browser.evaluate("Math.min(...runs.map((run) => run.length))") < steps:
        assert "error" not in (said := text(browser, "status")), said
        time.sleep(0.2)
    browser.evaluate("document.getElementById('start').click()")
    return browser.evaluate("runs")


def text(browser: Browser, name: str) -> str:
    return browser.evaluate(f"document.getElementById('{name}').textContent")


def go(browser: Browser, address: str) -> None:
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=f"{PAGE.as_uri()}#{address}")
    browser.wait()


@contextmanager
def prepared(browser: Browser, script: str) -> Iterator[None]:
    """Runs a script in every page before the page's own."""
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    yield
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])


def sampled(step: dict[str, Any]) -> list[list[Any]]:
    return [[g["problem"]["prompt"], answer["tokens"], g["kept"]] for g in step["groups"] for answer in g["responses"]]


def are_those_of_the_package(run: list[dict[str, Any]], arm: str) -> None:
    for mine, theirs in zip(run, REFERENCE[arm], strict=False):
        assert sampled(mine) == theirs["sampled"]
        for key in theirs.keys() - {"sampled"}:
            assert mine["metrics"][key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-4), (mine["step"], key)


@pytest.mark.parametrize(("policy", "arm"), list(enumerate(REFERENCE)))
def test_the_first_steps_are_those_of_the_package(trained, policy, arm):
    are_those_of_the_package(trained[policy], arm)


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
    go(browser, "on=<script>&lr=1e9&seed=-1&differs=__proto__&max_rounds=1&backend=cpu")
    names = ("differs", "lr", "seed", "backend")
    values = {name: browser.evaluate(f"document.getElementById('{name}').value") for name in names}
    assert values == {"differs": "dynamic_sampling", "lr": "0.001", "seed": "0", "backend": "faster"}


def test_a_browser_without_webassembly_is_shown_the_recorded_step(browser):
    with prepared(browser, "delete globalThis.WebAssembly"):
        browser.open(PAGE)
        said = browser.evaluate("document.getElementById('unable').innerText")
        assert said.startswith("This browser has no WebAssembly")
        assert browser.evaluate("document.getElementById('all').checkVisibility()") is False
        browser.evaluate("document.querySelector('#unable a').click()")
        while browser.evaluate("document.title") != "DAPO in one page that you can play with":
            time.sleep(0.05)
        browser.wait()
        assert browser.evaluate("document.querySelectorAll('.group').length") > 0


@IN_SOFTWARE
def test_with_webgpu_the_first_steps_are_those_of_the_package_too_and_the_faster_backend_goes_on(with_gpu):
    with prepared(with_gpu, TAKEN_FOR_A_GPU):
        go(with_gpu, "backend=webgpu")
    runs = train(with_gpu, len(REFERENCE["dapo"]))
    assert text(with_gpu, "engine") == "computed with WebGPU"
    assert {step["backend"] for run in runs for step in run} == {"webgpu"}
    for run, arm in zip(runs, REFERENCE, strict=True):
        are_those_of_the_package(run, arm)
    with_gpu.evaluate("location.hash = 'backend=faster'")
    while text(with_gpu, "engine") != "WebAssembly and WebGPU make 2 steps each, the faster goes on":
        time.sleep(0.05)
    train(with_gpu, 3)
    name, wasm, webgpu = engine_after_trial(with_gpu)
    assert name == ("WebGPU" if webgpu < wasm else "WebAssembly")


@IN_SOFTWARE
def test_webgpu_goes_on_from_where_both_are_if_it_is_the_faster(with_gpu):
    go(with_gpu, f"{SMALL}&backend=wasm")
    expected = train(with_gpu, 3)
    week = """
        window.Worker = class extends Worker {
          set onmessage(receive) {
            super.onmessage = (event) => {
              if (event.data.type === "step" && event.data.backend === "wasm") event.data.seconds = 604800;
              receive(event);
            };
          }
        };"""
    with prepared(with_gpu, TAKEN_FOR_A_GPU + week):
        go(with_gpu, SMALL)
    runs = train(with_gpu, 3)
    assert engine_after_trial(with_gpu)[:2] == ("WebGPU", 604800)
    assert [[step["backend"] for step in run[:3]] for run in runs] == [["wasm", "wasm", "webgpu"]] * 2
    for run, other in zip(runs, expected, strict=True):
        assert [sampled(step) for step in run[:3]] == [sampled(step) for step in other[:3]]


def test_a_gpu_in_software_or_one_that_fails_is_not_used(browser, with_gpu):
    go(with_gpu, SMALL)
    assert text(with_gpu, "engine") == "computed with WebAssembly"
    go(browser, f"{SMALL}&backend=webgpu")
    assert text(browser, "engine") == "computed with WebAssembly: WebGPU is not available here"
    # The page has a GPU, but its threads have none.
    script = "navigator.gpu.requestAdapter = async () => ({ info: { isFallbackAdapter: false } })"
    with prepared(browser, script):
        go(browser, SMALL)
        while not text(browser, "engine").startswith("computed with WebAssembly (WebGPU failed: "):
            time.sleep(0.05)
        assert {step["backend"] for run in train(browser, 1) for step in run} == {"wasm"}


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
