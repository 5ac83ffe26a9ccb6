"""Objects that a config names by a path: one line says which step failed, whichever key names them."""

import pytest

from dapo_lit.build.environment import build_environment
from dapo_lit.config import ConfigError
from dapo_lit.imports import NamedError, check_path, named_object
from dapo_lit.objective.tokens import Bounds
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.supervisor import WorkersLostError
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.runs.extensions import built
from dapo_lit.switches.algorithm import policy_loss

MODULES = {
    "bad_syntax": "def f(:\n",
    "bad_import": "import nosuchlib\n",
    "bad_name": "import json\njson.nosuch\n",
    "bad_state": "import os\nraise RuntimeError\n",
    "bad_exit": "import sys\nsys.exit('no licence')\n",
    "well": "class K:\n    @staticmethod\n    def f(a): ...\n",
}
RAISING = """class A:
    def __init__(self):
        assert False


class B:
    def __init__(self):
        try:
            {}["x"]
        except KeyError as error:
            raise ValueError("no\\nx") from error
"""
FAULTS = {
    "bad_syntax.f": r"bad_syntax cannot be imported: SyntaxError: .*\(bad_syntax.py, line 1\)",
    "bad_import.f": r"bad_import cannot be imported: ModuleNotFoundError: .*'nosuchlib' \(bad_import.py:1\)",
    "bad_name.f": r"bad_name cannot be imported: AttributeError: .*nosuch.* \(bad_name.py:2\)",
    "bad_state.f": r"bad_state cannot be imported: RuntimeError \(bad_state.py:2\)",
    "bad_exit.f": r"bad_exit cannot be imported: SystemExit: no licence \(bad_exit.py:2\)",
    "well.KK": r"well has no KK; did you mean K\?",
    "well.L.f": "well has no module L",
    "absent.f": r"the module absent of absent\.f is not found; is its folder on PYTHONPATH",
    "./well.K": "is not a path to a function or class; write package.module.name",
}


@pytest.fixture(autouse=True)
def _modules(tmp_path, monkeypatch):
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("path", FAULTS)
def test_a_loss_and_a_callback_that_cannot_be_imported_say_which_step_failed_in_one_line(compose, tmp_path, path):
    loss = compose("algorithm.loss=any.loss").algorithm.model_copy(update={"loss": path})
    for key, use in (
        (f"algorithm.loss={path}", lambda: policy_loss(loss, Bounds(0.2, 0.28))),
        ("callbacks.mine", lambda: built("callbacks.mine", {"_target_": path}, tmp_path)),
    ):
        with pytest.raises(ConfigError, match=FAULTS[path]) as refused:
            use()
        assert str(refused.value).startswith(f"{key}: ")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", ["bad_name.f", "well.KK"])
def test_a_reward_that_cannot_be_imported_says_the_same_from_its_worker(path):
    made = Verifier(rule="numeric", extraction="number", function=path, workers=1)
    with made, pytest.raises(WorkersLostError, match=FAULTS[path]):
        made.score([(RewardProblem("p", "1 + 1?", "2"), "2")])


@pytest.mark.parametrize("path", ["well.L.f", "absent.f", "./well.K"])
def test_a_reward_and_an_environment_without_a_module_are_refused_before_any_worker_starts(compose, path):
    with pytest.raises(ValueError, match=FAULTS[path]):
        Verifier(rule="numeric", extraction="number", function=path)
    config = compose("turns.environment=any.step")
    turns = config.turns.model_copy(update={"environment": path})
    with pytest.raises(ConfigError, match=FAULTS[path]):
        build_environment(turns, config.reward, [], 1)


def test_the_packages_above_a_module_may_fail_too(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("1 / 0\n")
    (tmp_path / "broken" / "rewards.py").write_text("def f(): ...\n")
    with pytest.raises(NamedError, match=r"imported: ZeroDivisionError: .* \(__init__\.py:1\)"):
        check_path("broken.rewards.f")


def test_a_path_may_go_on_into_a_class():
    assert named_object("well.K.f").__qualname__ == "K.f"


def test_a_loss_whose_parameters_cannot_be_read_is_refused(compose):
    with pytest.raises(ConfigError, match=r"algorithm\.loss=torch\.sub: .*parameters"):
        policy_loss(compose("algorithm.loss=torch.sub").algorithm, Bounds(0.2, 0.28))


def test_a_constructor_that_raises_without_a_text_is_named_by_its_type_and_line(tmp_path):
    (tmp_path / "raising.py").write_text(RAISING)
    with pytest.raises(ConfigError, match=r"^callbacks.mine: raising.A: AssertionError \(raising.py:3\)$"):
        built("callbacks.mine", {"_target_": "raising.A"}, tmp_path)
    # The error that it raises, not the one that it was raised from.
    with pytest.raises(ConfigError, match=r"^callbacks.mine: raising.B: ValueError: no x \(raising.py:11\)$"):
        built("callbacks.mine", {"_target_": "raising.B"}, tmp_path)
