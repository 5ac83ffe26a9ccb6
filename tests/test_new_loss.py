"""A loss from outside the package: the page's example runs as it stands, and what a loss must be is said at once."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import SMALL, run_cli
from torch import Tensor

from dapo_lit.config import ConfigError
from dapo_lit.objective.covariance import LOSSES
from dapo_lit.objective.tokens import Bounds, Tokens
from dapo_lit.switches.algorithm import policy_loss

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "soft_clip"


def test_the_example_trains_from_outside_the_package(tmp_path, cache):
    folder = shutil.copytree(EXAMPLE, tmp_path / "elsewhere")
    small = [option for option in SMALL if not option.startswith("+experiment")]
    command = ["--config-dir", "conf", "+experiment=soft_clip", "policy=micro", "task=four_sums", "reward=number"]
    command += [*small, "algorithm.overlong.cache_tokens=5", "algorithm.samples_per_prompt=4", "budget.steps=2"]
    done = run_cli(*command, cwd=folder)  # `python -m` has the folder in its path
    assert done.returncode == 0, done.stderr
    assert (folder / "runs" / "soft_clip" / "soft_clip_dapo" / "seed_0" / "DONE.json").is_file()


PAGE = ROOT / "docs" / "new_loss.md"
FEW = (
    "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "algorithm.samples_per_prompt=4", "budget.steps=1",
    "evaluation.every=0", "evaluation.final_samples=null", "task.num_heldout=4", "study.until=null",
    "study.seeds=[0]", "study.underpowered=true", "study.pilot=true", "study.metric=rollout/accuracy",
)  # fmt: skip


def test_the_page_ends_with_and_without_its_loss_and_its_technique(tmp_path):
    """Its files in an empty folder, and the commands that follow them, with few prompts and steps."""
    text = PAGE.read_text()
    for name, source in re.findall(r'```python title="(my_\w+\.py)"\n(.*?)```', text, re.S):
        (tmp_path / name).write_text(source)
    (typed,) = re.findall(r"^PYTHONPATH=\. python -m dapo_lit.ablate (.*)$", text, re.M)
    done = run_cli(*typed.split(), *FEW, cwd=tmp_path, module="dapo_lit.ablate")
    assert done.returncode == 0, done.stderr
    assert {run.parents[1].name for run in tmp_path.glob("runs/ablate_soft_clip/*/seed_*/DONE.json")} == {
        "dapo", "dapo@loss=my_losses.soft_clip@loss_options.width=0.2"
    }  # fmt: skip
    assert "loss=my_losses.soft_clip with width 0.2" in done.stdout
    (technique,) = re.findall(r"`python -m dapo_lit.ablate (my_techniques\.\w+)`", text)
    planned = run_cli(technique, "--plan", *FEW, cwd=tmp_path, module="dapo_lit.ablate")
    assert planned.returncode == 0, planned.stderr
    assert f"dapo+{technique}" in planned.stdout
    assert not (tmp_path / "runs" / "ablate_LIGHT").exists()


def too_few(logprobs: Tensor) -> Tensor:
    return -logprobs


def summed(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -(advantages * logprobs).sum()


def constant(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    return torch.zeros(len(old_logprobs))


def mixing(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -(advantages - advantages.mean()) * logprobs


def mixing_openly(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, completions: Tensor) -> Tensor:
    return mixing(logprobs, old_logprobs, advantages)


def with_option(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_high: float, width: float
) -> Tensor:
    return -advantages * logprobs * width * clip_high


def failing(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    ("loss", "options", "keys"),
    [
        ("clipp", "{}", "clip reinforce"),
        ("nowhere.loss", "{}", "nowhere PYTHONPATH"),
        ("test_new_loss.nothing", "{}", "test_new_loss nothing"),
        ("test_new_loss.EXAMPLE", "{}", "it is not a function"),
        ("test_new_loss.too_few", "{}", "logprobs old_logprobs advantages"),
        ("test_new_loss.summed", "{}", "(8,) ()"),
        ("test_new_loss.constant", "{}", "logprobs"),
        ("test_new_loss.mixing", "{}", "`completions`"),
        ("test_new_loss.with_option", "{}", "width algorithm.loss_options.width"),
        (
            "test_new_loss.with_option",
            "{width: 1, hight: 2}",
            "loss_options.hight test_new_loss.with_option",
        ),
        ("clip", "{clip_high: 0.5}", "loss_options.clip_high"),
        ("test_new_loss.failing", "{}", "RuntimeError"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused_by_its_keys(compose, loss, options, keys):
    algorithm = compose(f"algorithm.loss={loss}", f"++algorithm.loss_options={options}").algorithm
    with pytest.raises(ConfigError) as caught:
        policy_loss(algorithm, Bounds(0.2, 0.28))
    assert [key for key in keys.split() if key not in str(caught.value)] == []


def test_bounds_and_options_are_filled_in_by_name(compose):
    algorithm = compose("algorithm.loss=test_new_loss.with_option", "++algorithm.loss_options={width: 10}").algorithm
    bounds = Bounds(0.2, 0.5)
    loss, takes, whole_minibatch = policy_loss(algorithm, bounds)
    values = torch.tensor([-2.0], requires_grad=True)
    losses, statistics = loss(Tokens(values, values, torch.tensor([3.0])), bounds)
    assert losses.item() == pytest.approx(6 * 10 * 0.5)
    assert statistics.sums["response_tokens"] == 1
    assert takes == {"clip_high", "width"}
    assert not whole_minibatch
    algorithm = compose("algorithm.loss=test_new_loss.mixing_openly").algorithm
    assert policy_loss(algorithm, bounds)[2]


def test_every_loss_that_is_built_in_passes_the_trial(compose):
    for name in LOSSES:
        policy_loss(compose(f"algorithm.loss={name}").algorithm, Bounds(0.2, 0.28))
