"""Data, reward, callback and logger of one's own, without touching the package: one short run with all of them."""

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from commands import export_to

from dapo_lit.build.components import RunComponents
from dapo_lit.config import ConfigError
from dapo_lit.train import train

TRL_REWARD = '''
def closeness(prompts, completions, solution, **columns):
    """As TRL calls it: everything by name, a number for each completion."""
    assert columns["difficulty"] == ["easy"] * len(prompts)
    return [1.0 if text.strip() == right else 0.0 for text, right in zip(completions, solution)]
'''
CALLBACK = """
from pathlib import Path

from lightning import Callback
from lightning.pytorch.utilities.exceptions import MisconfigurationException


class Steps(Callback):
    def __init__(self, file):
        self.file = Path(file)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        accuracy = float(trainer.callback_metrics["rollout/accuracy"])
        with self.file.open("a") as lines:
            lines.write(f"{batch.step} {accuracy}\\n")


class NeedsLogger(Callback):
    def setup(self, trainer, module, stage):
        if not trainer.loggers:
            raise MisconfigurationException("no logger;\\nset one")
"""
LIBRARY = Path(__file__).parents[1] / "docs" / "library.md"
(BEST,) = re.findall(r"'(\+callbacks\.best=.*)'$", LIBRARY.read_text(encoding="utf-8"), re.MULTILINE)
LOGGER = "logger.lightning={_target_: lightning.pytorch.loggers.CSVLogger, save_dir: '{run}', name: csv}"


@pytest.fixture
def run(compose, tmp_path, monkeypatch) -> Path:
    (tmp_path / "own_trl_reward.py").write_text(TRL_REWARD)
    (tmp_path / "own_callbacks.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    sums = [
        {"prompt": f"{a}+{b}=", "solution": a + b, "difficulty": "easy"} for a, b in ((1, 2), (2, 2), (3, 1), (4, 3))
    ]
    chats = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in sums]
    others = [{**row, "prompt": f"0+{row['prompt']}"} for row in sums]
    for name, rows in (("train", sums[:2] + chats[2:]), ("heldout", others)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = compose(
        f"policy.path={RunComponents(compose()).policy_folder}", "task.name=file",
        "task.columns={problem: prompt, answer: solution}", f"task.path={tmp_path / 'train.jsonl'}",
        f"task.eval_path={tmp_path / 'heldout.jsonl'}", "task.label=own", "reward.function=own_trl_reward.closeness",
        LOGGER, "+callbacks.steps={_target_: own_callbacks.Steps, file: '{run}/steps.txt'}",
        BEST, "logger.rollouts_every=1", "budget.steps=2",
    )  # fmt: skip
    train(config, [])
    return tmp_path / "runs" / "four_sums" / "dapo" / "seed_0"


def test_a_run_with_columns_a_reward_a_callback_and_a_logger_of_ones_own(run, tmp_path, capsys):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert "eval/own/avg@2" in rows[-1]

    completions = pd.concat(pd.read_parquet(file) for file in (run / "rollouts").glob("*.parquet"))
    right = completions["response"].str.strip() == completions["answer"]
    assert set(completions["answer"]) <= {"3", "4", "7"}
    assert (completions["correct"] == right).all()
    assert (completions.loc[~right, "reward"] <= 0).all()
    assert (~right).any()

    steps = [line.split() for line in (run / "steps.txt").read_text().splitlines()]
    assert [int(step) for step, _ in steps] == [1, 2]
    assert [float(accuracy) for _, accuracy in steps] == [pytest.approx(row["rollout/accuracy"]) for row in rows[1:]]

    with next((run / "csv").rglob("metrics.csv")).open() as file:
        logged = list(csv.DictReader(file))
    assert [row["step"] for row in logged] == ["0", "1", "2"]
    assert float(logged[2]["rollout/accuracy"]) == pytest.approx(rows[2]["rollout/accuracy"])
    assert float(logged[0]["eval/own/avg@2"]) == pytest.approx(rows[0]["eval/own/avg@2"])

    best = max(rows[1:], key=lambda row: (row["rollout/accuracy"], -row["step"]))
    (kept,) = (run / "best").iterdir()
    assert kept.name == f"step_{best['step']}.ckpt"
    capsys.readouterr()
    export_to(tmp_path / "exported", kept)
    assert "manifest.json does not name" in capsys.readouterr().out
    assert (tmp_path / "exported" / "model.safetensors").is_file()


def test_what_lightning_refuses_of_a_callback_is_one_line(compose, tmp_path, monkeypatch):
    (tmp_path / "other_callbacks.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^callbacks \(mine\): no logger; set one$"):
        train(compose("+callbacks.mine={_target_: other_callbacks.NeedsLogger}", "budget.steps=1"), [])
