"""docs/examples/dapo_in_one_file.py and dapo_over_turns.py have the package's metrics and import nothing of it.

`make test` toggles every switch on four_sums, `make sweeps` (DAPO_LIT_MATRIX=1) in joint and over turns too.
"""

import ast
import os
import sys
from dataclasses import replace
from pathlib import Path

import dapo_in_one_file
import dapo_over_turns
import pytest
from dapo_in_one_file import Settings

from dapo_lit.build.components import RunComponents
from dapo_lit.config import Config
from dapo_lit.lit.module import DAPOModule
from dapo_lit.policy.load import save_policy
from dapo_lit.train import train

EXACT = ("batch/accuracy", "batch/length_mean", "batch/truncated_frac", "clip/high_frac", "clip/low_frac")
"""The same tokens and the same verdicts, so the same bits."""
NEAR = {
    **dict.fromkeys(("loss/policy", "optim/grad_norm", "policy/kl_old", "policy/prob_mean", "policy/entropy"), 1e-6),
    "policy/ratio_max": 1e-4,  # of one token, so that nothing averages out what weights and log-probs are off
}
"""Padded and packed batches round differently: the largest difference, absolute or relative."""
SWEEPS = bool(os.environ.get("DAPO_LIT_MATRIX"))
SWITCHES = ("clip_higher", "dynamic_sampling", "token_level_loss", "soft_overlong_punishment", "overlong_filtering")
STEPS = 2
EPS = 1e-5
"""AdamW's. Its default of 1e-8 turns the rounding of gradients that are nearly 0 into steps of the size of the rate."""
SMALLER = ("algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", f"algorithm.optimizer.eps={EPS}")
SHORT = (f"budget.steps={STEPS}", "evaluation.every=0", "evaluation.samples=1", "preflight=false")


def both(
    config: Config, settings: Settings, folder: Path, monkeypatch, respond=dapo_in_one_file.one_turn
) -> tuple[list[dict], list[dict]]:
    """The rows of the package and of the file, which starts from the same policy."""
    parts, rows, original = RunComponents(config), [], DAPOModule.training_step
    save_policy(folder / "policy", parts.policy, parts.tokenizer, {})

    def recorded(module: DAPOModule, batch, batch_idx: int) -> None:
        original(module, batch, batch_idx)
        rows.append(dict(module.row))

    monkeypatch.setattr(DAPOModule, "training_step", recorded)
    train(config, [])
    problems = [{"id": p.id, "problem": p.problem, "answer": p.answer} for p in parts.problems.train]
    return rows, dapo_in_one_file.train(folder / "policy", problems, settings, respond)


def assert_equal(theirs: list[dict], ours: list[dict]) -> None:
    assert len(theirs) == len(ours) == STEPS
    for step, (row, mine) in enumerate(zip(theirs, ours, strict=True), 1):
        for name in EXACT:
            assert mine[name] == row[name], (step, name)
        for name, most in NEAR.items():
            assert mine[name] == pytest.approx(row[name], rel=most, abs=most), (step, name)


def switched(compose, options, settings: Settings, toggled: str | None) -> tuple[Config, Settings]:
    """The same settings twice, with one switch in its other position."""
    if toggled is not None:
        on = not getattr(settings, toggled)
        settings = replace(settings, **{toggled: on})
        options = (*options, f"algorithm.techniques.{toggled}={str(on).lower()}")
    config = compose(*options, *SHORT, small=False)
    if config.task.base is not None:  # a shorter pre-training
        stages = [{**stage, "updates": n} for stage, n in zip(config.task.base["stages"], STAGES, strict=True)]
        task = config.task.model_copy(update={"base": {**config.task.base, "stages": stages}})
        config = config.model_copy(update={"task": task})
    return config, settings


@pytest.mark.parametrize("toggled", [None, *SWITCHES])
def test_four_sums_with_every_switch_toggled(compose, tmp_path, monkeypatch, toggled):
    settings = Settings(steps=STEPS, num_prompts=4, minibatch_prompts=2, eps=EPS)
    config, settings = switched(compose, ("+experiment=four_sums", *SMALLER), settings, toggled)
    assert_equal(*both(config, settings, tmp_path, monkeypatch))


TURNS = (
    "turns.environment=user_environments.talks", f"turns.max_turns={dapo_over_turns.MAX_TURNS}",
    f"turns.max_observation_tokens={dapo_over_turns.MAX_OBSERVATION_TOKENS}", "turns.deadline_s=60",
)  # fmt: skip


@pytest.mark.parametrize("toggled", [None, *(["token_level_loss"] if SWEEPS else [])])
def test_four_sums_over_turns(compose, tmp_path, monkeypatch, toggled):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "environments"))
    from user_environments import talks

    settings = Settings(steps=STEPS, num_prompts=4, minibatch_prompts=2, eps=EPS)
    config, settings = switched(compose, ("+experiment=four_sums", *SMALLER, *TURNS), settings, toggled)
    said = []

    def respond(*given) -> list[dapo_in_one_file.Response]:
        found = dapo_over_turns.episodes(*given, says=talks)
        said.extend(len(episode.said) for episode in found)
        return found

    assert_equal(*both(config, settings, tmp_path, monkeypatch, respond))
    assert set(said) == {0, 1, 2}


JOINT = (
    *SMALLER, "algorithm.num_prompts=8", "algorithm.minibatch_prompts=4",
    "policy.architecture.num_hidden_layers=2", "policy.architecture.hidden_size=64",
    "algorithm.samples_per_prompt=4", "algorithm.epochs=2",
)  # fmt: skip
"""A sixteenth of the regime's samples, and a smaller policy that has seen fewer demonstrations. With four prompts
rounding puts the norm of the third step 1.8e-6 off."""
STAGES = (120, 40)
"""Updates of the base policy's stages: seconds, and right often enough."""


@pytest.mark.parametrize("toggled", [None, *(SWITCHES if SWEEPS else ())])
def test_joint_with_every_switch_toggled(compose, tmp_path, monkeypatch, toggled):
    settings = Settings(
        steps=STEPS, num_prompts=8, samples_per_prompt=4, minibatch_prompts=4, epochs=2, max_response_tokens=48,
        cache_tokens=10, lr=2e-4, eps=EPS, answer_mark="#",
    )  # fmt: skip
    config, settings = switched(compose, ("+experiment=dapo", "+regime=joint", *JOINT), settings, toggled)
    assert_equal(*both(config, settings, tmp_path, monkeypatch))


@pytest.mark.parametrize(
    ("text", "answer", "mark", "right"),
    [
        ("no idea", "x^2", "#", False), ("", "Paris", "#", False), ("#Paris", "Paris", "#", False),
        ("no idea", "Paris", "", False), ("7", "Paris", "", False), ("no idea", "7", "", False),
        ("3+4=7;#7", "7", "#", True), ("it is 14/2", "7", "", True), ("#8", "7", "#", False),
    ],
)  # fmt: skip
def test_an_answer_in_words_is_never_rewarded(text, answer, mark, right):
    assert dapo_in_one_file.is_correct(text, answer, mark) is right


@pytest.mark.parametrize(
    ("module", "lines", "imported"),
    [
        (dapo_in_one_file, 370, {"torch", "safetensors", "tokenizers"}),
        (dapo_over_turns, 95, {"torch", "dapo_in_one_file", "tokenizers"}),
    ],
)
def test_it_is_short_and_without_the_package(module, lines, imported):
    text = Path(module.__file__).read_text()
    assert len(text.splitlines()) <= lines
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {(n.module if isinstance(n, ast.ImportFrom) else n.names[0].name).partition(".")[0] for n in imports}
    assert names - sys.stdlib_module_names == imported
