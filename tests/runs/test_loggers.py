"""Loggers of a run: what a resumed run continues."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dapo_lit.cli.jobs import arm_of
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.run_folder import open_run

CLIENT = """
import json
from pathlib import Path
from types import SimpleNamespace

FILE = Path(__file__).with_name("calls.jsonl")


class MlflowClient:
    def __init__(self, uri):
        self.known = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []

    def write(self, call, run_id, values):
        self.known.append([call, run_id, values])
        FILE.write_text("".join(json.dumps(each) + chr(10) for each in self.known))

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="1", lifecycle_stage="active")

    def create_run(self, experiment_id, tags):
        run_id = f"run_{sum(call == 'create' for call, *_ in self.known)}"
        self.write("create", run_id, None)
        return self.get_run(run_id)

    def get_run(self, run_id):
        assert ["create", run_id, None] in self.known
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id, experiment_id="1"))

    def log_batch(self, run_id, params=(), metrics=()):
        for param in params:  # as a server of MLflow's does
            assert not any(c == "param" and r == run_id and v[0] == param.key and v[1] != param.value
                           for c, r, v in self.known), f"{param.key} was logged with another value"
            self.write("param", run_id, [param.key, param.value])
        for metric in metrics:
            self.write("metric", run_id, [metric.key, metric.value, metric.step])

    def set_terminated(self, run_id, status):
        self.write("end", run_id, status)
"""
ENTITIES = """
from types import SimpleNamespace

Param = Metric = SimpleNamespace
"""
STAND_IN = {
    "mlflow/__init__.py": "def set_tracking_uri(uri): pass\n",
    "mlflow/tracking/__init__.py": CLIENT,
    "mlflow/tracking/context.py": "def resolve_tags(tags): return tags\n",
    "mlflow/entities.py": ENTITIES,
    "mlflow/utils/__init__.py": "",
    "mlflow/utils/mlflow_tags.py": "MLFLOW_RUN_NAME = 'name'\n",
}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What a stand-in for MLflow, which is not installed, was asked to do: a line a call, with the run's id."""
    for name, text in STAND_IN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("lightning.pytorch.loggers.mlflow._MLFLOW_AVAILABLE", True)
    yield tmp_path / "mlflow" / "tracking" / "calls.jsonl"
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
        del sys.modules[name]


def test_a_resumed_run_is_one_run_of_mlflow(compose, calls):
    def logged(step: int, *overrides: str) -> None:
        config = compose("logger=mlflow", "logger.progress=none", *overrides)
        loggers = Loggers(config, open_run(config, [], arm_of(config), ""))
        loggers.row({"step": step, "rollout/accuracy": 0.5})
        loggers.close()

    logged(1)
    logged(2, "resume=true")
    found = [json.loads(line) for line in calls.read_text().splitlines()]
    assert {run for _, run, _ in found} == {"run_0"}
    assert [value[2] for call, _, value in found if call == "metric"] == [1, 2]
    logged(3, "resume=true", "+logger.lightning.run_id=null")
    assert json.loads(calls.read_text().splitlines()[-1])[:2] == ["end", "run_1"]
