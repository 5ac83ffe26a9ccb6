"""Which command lines are one plain run, for which Hydra has only to compose the config."""

import re
import shlex

import pytest

from dapo_lit.cli.command import compose, is_plain, run_command
from dapo_lit.cli.jobs import check_jobs
from dapo_lit.config import Config, ConfigError


@pytest.mark.parametrize(
    ("arguments", "plain"),
    [
        ([], True), (["+experiment=dapo", "seed=1", "~logger.wandb"], True), (["study.seeds=[0,1]"], True),
        (["seed=0,1"], False), (["seed=range(0,3)"], False), (["-m", "seed=1"], False), (["--help"], False),
        (["hydra.run.dir=elsewhere"], False), (["+hydra.verbose=true"], False),
    ],
)  # fmt: skip
def test_a_flag_a_sweep_and_hydras_own_keys_are_left_to_hydra(arguments, plain):
    assert is_plain(arguments) == plain


def test_a_plain_run_is_composed_as_hydra_composes_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found: list[tuple[Config, list[str]]] = []
    overrides = ["+experiment=dapo", "seed=3", "budget.steps=2"]
    for arguments in (overrides, [*overrides, f"hydra.run.dir={tmp_path}"]):
        monkeypatch.setattr("sys.argv", ["train", *arguments])
        assert run_command(lambda config, given: found.append((config, given)), Config, "config") == 0
    (plain, given), (hydras, _) = found
    assert plain == hydras
    assert given == overrides
    assert (plain.seed, plain.budget.steps) == (3, 2)


def test_help_is_hydras_and_asks_no_repository_of_its(monkeypatch, tmp_path, capsys):
    """Its groups are those of conf/ and of one's own folders, and its config has the overrides."""
    from dapo_lit.cli.command import help_text, in_hydra

    with pytest.raises(SystemExit):
        in_hydra(lambda tree: None, ["--help", "seed=7"], "evaluate")
    hydras = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("study/shared: ")]
    assert [*help_text(["--help", "seed=7"], "evaluate").splitlines(), ""] == hydras
    monkeypatch.setattr("dapo_lit.cli.command.in_hydra", lambda *_: pytest.fail("Hydra was asked"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own_one.yaml").write_text("seed: 3\n")
    monkeypatch.setattr("sys.argv", ["train", "--help", "--config-dir", str(tmp_path), "seed=5"])
    assert run_command(lambda config, given: None, Config, "config") == 0
    shown = capsys.readouterr().out.splitlines()
    assert {"mine: own_one", "seed: 5"} <= {*shown}
    assert "add_soft_punishment" in next(line for line in shown if line.startswith("experiment: "))
    assert "leave_one_out" in next(line for line in shown if line.startswith("study: "))


def test_ctrl_c_before_a_training_is_one_line_and_code_130(monkeypatch, capsys):
    def interrupted(config: Config, given: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["train", "+experiment=dapo"])
    with pytest.raises(SystemExit) as ended:
        run_command(interrupted, Config, "config")
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped by Ctrl-C; nothing new was kept\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["algorithm.optimizer.lr=1e-6,1e-5"],
        ["seed=0,1", "budget.steps=range(1,3)"],
        ["algorithm=glob(dapo*)"],  # one family and the same switches
        ["task.max_response_tokens=24,25", "study_name=a,a_24"],
    ],
)
def test_a_multirun_of_which_two_jobs_would_write_one_folder_is_refused(arguments):
    with pytest.raises(ConfigError, match=r"would both write runs/\w+/dapo/seed_\d"):
        check_jobs(["-m", "+experiment=four_sums", *arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ["algorithm.optimizer.lr=1e-6,1e-5"],
        ["reward=math,number"],
        ["task=file", "policy=hf", "policy.path=m", "task.label=mine", "task.path=a.jsonl,b.jsonl"],
        ["evaluation.at_tokens=[100],[200]", "study_name=x,y"],
    ],
)
def test_the_names_that_a_refused_multirun_is_given_keep_its_jobs_apart(arguments):
    given = ["+experiment=four_sums", *arguments]
    with pytest.raises(ConfigError, match="would both write") as refused:
        check_jobs(["-m", *given])
    advice = str(refused.value).partition("such as ")[2]
    parts = [shlex.split(command) for command in advice.split(" and ")]
    if len(parts) == 1:
        check_jobs(["-m", *given, *parts[0]])
        return
    swept = [argument for argument in given if "," not in argument]
    one, other = (compose(*swept, *part) for part in parts)
    assert one.study_name != other.study_name
    assert all(re.fullmatch(r"\w+", config.study_name) for config in (one, other))


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "seed=0,1", "algorithm=dapo,grpo"],
        ["-m", "algorithm.optimizer.lr=1e-6,1e-5", "study_name='lrs_${algorithm.optimizer.lr}'"],
        ["-m", "budget.steps=2", "seed=0,1", "hydra/launcher=basic"],
        ["algorithm.optimizer.lr=1e-6,1e-5"],  # no multirun, which Hydra says
        ["-m", "--cfg", "job", "algorithm.optimizer.lr=1e-6,1e-5"],
    ],
)
def test_jobs_with_folders_of_their_own_are_not(arguments):
    check_jobs([*arguments, "+experiment=four_sums"])


def test_a_value_that_is_refused_in_a_later_job_is_refused_before_the_first_one_starts():
    for swept, key in (("seed=0,x", "seed"), ("algorithm.clip.high=0.28,-1", "algorithm.clip.high")):
        with pytest.raises(ConfigError, match=f"^job {swept.partition('=')[0]}=.*: {key}: it must be"):
            check_jobs(["-m", "+experiment=four_sums", swept, "study_name=of_${seed}_${algorithm.clip.high}"])


REFUSED = {
    "seed=1,2": "several values",
    "~logger.wandb": "does not exist",
    "seed=${nosuch}": "nosuch",
    "algorithm.loss_options={width: 2}": r"\+algorithm.loss_options=",
    "logger.wandb.project=x": "needs logger=wandb",
    "--config-dir=nowhere": "no such folder",
    "four_sums": "not key=value",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_composed_is_one_line_in_python_and_the_same_one_of_the_command(override, monkeypatch, capsys):
    with pytest.raises(ConfigError, match=REFUSED[override]) as refused:
        compose("+experiment=four_sums", override)
    assert "\n" not in str(refused.value)
    monkeypatch.setattr("sys.argv", ["train", "+experiment=four_sums", override])
    assert run_command(lambda config, given: None, Config, "config") == 2
    assert capsys.readouterr().err == f"error: {refused.value}\n"


def test_a_flag_that_asks_for_something_else_than_a_config_is_refused_in_python():
    for flags in (["-m"], ["--cfg", "job"]):
        with pytest.raises(ConfigError, match=f"{flags[0]}: a flag "):
            compose("+experiment=four_sums", *flags)


def test_a_folder_of_ones_own_is_read_in_python_too(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 77\n")
    for flag in ([f"--config-dir={tmp_path}"], ["--config-dir", str(tmp_path)]):
        assert compose("+experiment=mine", *flag).seed == 77
