"""Model folders of a stranger: what would hold the trainer, fill its memory or confuse it is refused in one line, after
another process has read it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Command
from tiny_policy import TINY

from ablations.errors import UserError
from dapo_lit.chat_template import ChatTemplateError, render_chats
from dapo_lit.policy.base import character_tokenizer, random_model
from dapo_lit.policy.load import DESCRIBING, eos_ids, load_model, load_tokenizer, read_first, save_policy

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyz")
    save_policy(tmp_path / "m", random_model(TINY | {"hidden_size": 32}, tokenizer, seed=0), tokenizer, {})
    return tmp_path / "m"


def changed(name: str, **values: object) -> Callable[[Path], object]:
    """A change of values in a JSON file of the folder, which may not be there yet."""

    def change(folder: Path) -> None:
        tree = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        (folder / name).write_text(json.dumps(tree | values))

    return change


def replaced(name: str, put: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        put(folder / name)

    return change


def loaded(folder: Path) -> None:
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    tokenizer("abc")
    eos_ids(model, tokenizer)


HOSTILE = {
    "layers": (
        changed("config.json", num_hidden_layers=100_000, layer_types=None),
        "num_hidden_layers 100,000",
    ),
    "vocabulary": (changed("config.json", vocab_size=10**10), "vocab_size 10,000,000,000"),
    "width": (changed("config.json", hidden_size=10**8), "hidden_size 100,000,000"),
    "a matrix": (changed("config.json", intermediate_size=10**9), "intermediate_size 1,000,000,000"),
    "an end below zero": (changed("config.json", eos_token_id=-5), "eos_token_id of .*config.json is -5"),
    "ends of text": (changed("generation_config.json", eos_token_id=["x", None]), "eos_token_id of .* list of 2"),
    "a length of text": (changed("tokenizer_config.json", model_max_length="x"), "model_max_length .* is 'x'"),
    "an index of numbers": (changed(INDEX, weight_map={"lm_head.weight": 5}), "weight_map: lm_head.weight is 5"),
    "an index that leads away": (
        changed(INDEX, weight_map={"lm_head.weight": "../../x"}),
        "weight_map: .*x' names one",
    ),
    "an index without a map": (changed(INDEX, metadata={}), "weight_map: it is None"),
    "a device as config": (replaced("config.json", lambda file: file.symlink_to("/dev/zero")), "no config.json"),
    "a pipe as config": (replaced("config.json", os.mkfifo), "no config.json"),
    "a sparse config": (lambda m: os.truncate(m / "config.json", 1 << 35), "cannot be read"),
    "a sparse tokenizer": (lambda m: os.truncate(m / "tokenizer.json", 1 << 35), "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_that_would_hold_the_trainer_is_refused_in_one_line(folder, name):
    change, said = HOSTILE[name]
    loaded(folder)
    change(folder)
    if name.startswith("an index"):
        from dapo_lit.policy.digests import weights_of

        with pytest.raises(UserError, match=said) as refused:
            weights_of(folder)
    else:
        with pytest.raises((UserError, OSError, ValueError), match=said) as refused:
            loaded(folder)
    assert "\n" not in str(refused.value)


TEMPLATES = {
    "power": ("{% set x = messages|length + 8 %}{{ (x ** (x ** x)) % 10 }}", "has not ended after 0.3 s"),
    "memory": ("{{ 'a' * 4000000000 }}", "out of memory"),
    "center": ("{{ 'a'|center(3000000000) }}", "out of memory"),
    "long": ("{{ 'a' * 2000000 }}", "it writes 2,000,000 characters"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "sandbox": ("{{ ''.__class__.__mro__ }}", "unsafe"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_is_ended_by_a_clock_and_a_limit_of_memory(name, monkeypatch):
    template, said = TEMPLATES[name]
    monkeypatch.setattr("dapo_lit.chat_template.RENDER_S", 0.3)
    tokenizer = character_tokenizer("abc")
    tokenizer.chat_template = template
    before = time.process_time()
    with pytest.raises(ChatTemplateError, match=said) as refused:
        render_chats(tokenizer, [[{"role": "user", "content": "a"}]])
    assert "\n" not in str(refused.value)
    assert time.process_time() - before < 0.5  # of this process


def test_a_rendered_chat_is_what_the_tokenizer_gives():
    tokenizer = character_tokenizer("abc")
    tokenizer.chat_template = (
        "{{ eos_token }}{% for m in messages %}{{ m | tojson }}{{ strftime_now('%Y') }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    chats = [
        [{"role": "user", "content": "a'\u2028<é"}, {"role": "x", "content": "b"}],
        [{"role": "user", "content": ""}],
    ]
    own = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    assert render_chats(tokenizer, chats) == own
    assert render_chats(tokenizer, chats[:1], add_generation_prompt=False)[0] == own[0].removesuffix(">")


def test_ctrl_c_ends_the_wait_for_a_template(tmp_path):
    (tmp_path / "waits.py").write_text("""
from dapo_lit.chat_template import render_chats
from dapo_lit.policy.base import character_tokenizer
import dapo_lit.chat_template, dapo_lit.model_worker as worker
dapo_lit.chat_template.RENDER_S = 60.0
tokenizer = character_tokenizer("abc")
tokenizer.chat_template = "{{ messages|length }}"
render_chats(tokenizer, [[{"role": "user", "content": "a"}]])
print("ready", *worker.start().pids(), flush=True)
tokenizer.chat_template = "{% set x = messages|length + 8 %}{{ (x ** (x ** x)) % 10 }}"
render_chats(tokenizer, [[{"role": "user", "content": "a"}]])
""")
    run = Command(cwd=tmp_path, module="waits")
    while not (said := run.output("stdout")).endswith("\n"):
        assert run.poll() is None, run.output("stderr")
        time.sleep(0.01)
    pids = [int(word) for word in said.split()[1:]]
    assert len(pids) == 2
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in run.wait(60).stderr
    assert run.leaves_nothing(within_s=10)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_folder_is_read_by_the_other_process_once(folder, monkeypatch):
    asked = []

    def ask(work, deadline_s):
        from dapo_lit import model_worker

        asked.append(work)
        return model_worker.ask(work, deadline_s)

    monkeypatch.setattr("dapo_lit.policy.load.ask", ask)
    load_model(folder), load_tokenizer(folder), load_tokenizer(folder, own=True)
    assert len(asked) == 1
    changed("config.json", note=1)(folder)
    read_first(folder)
    assert len(asked) == 2


def cached(hub: Path, folder: Path, name: str) -> Path:
    """Puts a model into a cache of the hub's, under the id `me/NAME`."""
    for part in ("refs", "snapshots"):
        (hub / f"models--me--{name}" / part).mkdir(parents=True)
    (hub / f"models--me--{name}/refs/main").write_text("0" * 40)
    return Path(shutil.copytree(folder, hub / f"models--me--{name}/snapshots" / ("0" * 40)))


LOADED = """
import sys
from dapo_lit.policy.load import load_model, load_tokenizer
for name in sys.argv[1:]:
    for load in (load_tokenizer, load_model):
        try:
            print(name, type(load(f"me/{name}")).__name__)
        except Exception as error:
            print(name, type(error).__name__, str(error).replace("\\n", " / "))
"""


def test_a_model_of_the_hub_is_read_by_the_other_process_too(folder, tmp_path):
    """In one process, which the hub's variables must reach before it imports anything."""
    said = {"sound": "Qwen2ForCausalLM"}
    cached(tmp_path / "home/hub", folder, "sound")
    for name in ("layers", "vocabulary", "a sparse tokenizer", "a length of text"):
        change, said[name.replace(" ", "-")] = HOSTILE[name]
        change(cached(tmp_path / "home/hub", folder, name.replace(" ", "-")))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    command = [sys.executable, "-c", LOADED, *said]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for name, pattern in said.items():
        lines = [line for line in found.stdout.splitlines() if line.startswith(f"{name} ")]
        assert len(lines) == 2, found.stdout + found.stderr
        assert re.search(pattern, "\n".join(lines)), lines
    assert len(found.stdout.splitlines()) == 2 * len(said)


@pytest.mark.parametrize("name", [None, "a sparse tokenizer", "an index that leads away"])
def test_weights_are_downloaded_after_what_describes_them_was_read(folder, monkeypatch, name):
    asked: list[list[str]] = []

    def download(path: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("dapo_lit.policy.load._check_hub", lambda path: None)
    monkeypatch.setattr("dapo_lit.policy.load.snapshot_download", download)
    if name is None:
        load_model("me/m")
        assert asked == [DESCRIBING, ["model.safetensors"]]
    else:
        HOSTILE[name][0](folder)
        with pytest.raises(UserError):
            load_model("me/m")
        assert asked == [DESCRIBING]
