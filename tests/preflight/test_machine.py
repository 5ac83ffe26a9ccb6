"""What config and machine decide is refused before torch loads and before a process starts."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import run_cli

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, ConfigError, config_folder, parse
from dapo_lit.preflight import machine
from dapo_lit.preflight.machine import check_devices, check_machine

NEEDED = {"hf": ["policy.path=models/none", "task.path=none.jsonl"]}
"""Keys that an experiment leaves to the command line."""
EXPERIMENTS = sorted(file.stem for file in (config_folder() / "experiment").glob("*.yaml"))
STUDIES = {name for name in EXPERIMENTS if name.startswith("ablate_")}
ON_GPUS = {
    "paper_qwen2_5_32b", "qwen2_5_0_5b_gsm8k", "qwen2_5_7b_dapo_math", "qwen2_5_7b_lora", "verl_qwen2_5_32b",
}  # fmt: skip


def compose(*overrides: str) -> Config:
    return parse(resolved(composed_tree(overrides)))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "may_have_gpu", lambda: False)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_refused_without_a_gpu_exactly_if_it_asks_for_one(name, no_gpu):
    config = compose(f"+experiment={name}", *NEEDED.get(name, []), *(["study.arm=dapo"] if name in STUDIES else []))
    assert (config.trainer.accelerator == "gpu") is (name in ON_GPUS)
    if name in ON_GPUS:
        with pytest.raises(ConfigError, match=r"^trainer\.accelerator=gpu.* no GPU.*accelerator=cpu.*$"):
            check_machine(config)
    else:
        check_machine(config)


@pytest.mark.parametrize("arguments", [["+experiment=qwen2_5_0_5b_gsm8k"], ["+experiment=four_sums", "trainer=fsdp"]])
def test_a_start_without_a_gpu_is_one_line_and_leaves_no_process(arguments, tmp_path):
    mark = f"{tmp_path.name}_{os.getpid()}"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "MARK_OF_THIS_TEST": mark}
    command = [sys.executable, "-m", "dapo_lit.train", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "trainer.accelerator=cpu" in done.stderr
    assert marked(mark) == []
    assert not [*tmp_path.iterdir()]


def marked(mark: str) -> list[str]:
    """The processes whose environment has this mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def config_with(**trainer: object) -> Config:
    config = compose("+experiment=four_sums")
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=trainer)})


def test_a_process_has_a_gpu_of_its_own():
    trainer = config_with(devices=2, strategy="fsdp", accelerator="gpu").trainer
    check_devices(trainer, 2)
    with pytest.raises(ConfigError, match=r"trainer\.devices=2.* 1 GPU;"):
        check_devices(trainer, 1)


def test_threads_beyond_the_cores_and_a_step_beyond_the_memory_are_refused():
    check_machine(config_with(threads=machine.MANY_THREADS))
    with pytest.raises(ConfigError, match=r"trainer\.threads=5000"):
        check_machine(config_with(threads=5000))
    with pytest.raises(ConfigError, match=r"algorithm\.num_prompts=100000000"):
        check_machine(compose("+experiment=four_sums", "algorithm.num_prompts=100000000"))


def test_what_is_looked_at_first_loads_no_torch():
    code = "import sys, dapo_lit.preflight.machine as m; m.may_have_gpu(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.skipif(bool(find_spec("vllm")), reason="vLLM is installed here")
def test_vllm_that_is_not_installed_is_refused_before_a_base_policy_is_trained(tmp_path):
    done = run_cli("+experiment=chain_sum_rare", "rollout=vllm", "task.base=null", f"runs_dir={tmp_path}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: rollout=vllm needs vLLM 0.26 to 0.32, and none is installed; ")
    assert not [*tmp_path.iterdir()]
