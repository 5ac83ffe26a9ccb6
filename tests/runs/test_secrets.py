"""A secret that a logger or a callback gets is in no file of a run, and in no command."""

import pytest
import torch

from dapo_lit.cli.config_tree import composed_tree
from dapo_lit.cli.overrides import check_overrides
from dapo_lit.config import ConfigError
from dapo_lit.lit.module import DAPOModule
from dapo_lit.runs.run_folder import open_run

SECRET = "sk-0123456789"
LOGGER = (
    "logger.lightning={_target_: a.Logger, api_key: '${oc.env:OWN}', tracking_uri: 'https://me:" + SECRET + "@host'}"
)
CALLBACK = "+callbacks.mine={_target_: a.Alert, auth: {token: '${oc.env:OWN}'}, every: 5}"


def test_what_a_run_writes_has_no_argument_of_a_logger_and_no_secret_of_a_callback(compose, monkeypatch, tmp_path):
    monkeypatch.setenv("OWN", SECRET)
    overrides = [LOGGER, CALLBACK, "logger.wandb={project: p, api_key: '${oc.env:OWN}'}", "seed=3"]
    config = compose(*overrides)
    assert (config.logger.lightning["api_key"], config.callbacks["mine"]["auth"]) == (SECRET, {"token": SECRET})
    folder = open_run(config, overrides, "dapo")
    torch.save(dict(DAPOModule(config).hparams), folder.path / "checkpoints" / "step.ckpt")
    files = [file for file in folder.path.rglob("*") if file.is_file()]
    assert len(files) >= 5
    for file in files:
        assert SECRET.encode() not in file.read_bytes(), file
    recorded = config.model_dump(mode="json")
    assert recorded["logger"]["lightning"] == {"_target_": "a.Logger"}
    assert recorded["callbacks"]["mine"] == {"_target_": "a.Alert", "auth": {}, "every": 5}
    assert (folder.path / "overrides.txt").read_text().splitlines() == [CALLBACK, "seed=3"]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("logger.lightning={_target_: a.Logger, api_key: abc}", "logger.lightning.api_key"),
        ("+logger.wandb.settings.api_key=abc", "logger.wandb.settings.api_key"),
        ("+callbacks.mine.password=abc", "callbacks.mine.password"),
        ("++callbacks.mine.auth={Token: abc}", "callbacks.mine.auth.Token"),
    ],
)
def test_a_secret_in_a_command_is_refused_with_the_variable_to_use_instead(override, key):
    with pytest.raises(ConfigError, match=rf"^{key}: .*in a command .*\$\{{oc\.env:VARIABLE\}}"):
        check_overrides([override])
    check_overrides([override.replace("abc", "'${oc.env:OWN}'")])
    check_overrides([override.replace("abc", "3")])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("logger:\n  wandb:\n    project: p\n    api_key: {}\n", "logger.wandb.api_key"),
        ("callbacks:\n  mine:\n    _target_: a.Alert\n    auth:\n      token: {}\n", "callbacks.mine.auth.token"),
    ],
)
def test_a_secret_in_a_file_of_settings_is_refused_with_the_variable_to_use_instead(tmp_path, text, key):
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "own.yaml"
    chosen = [f"hydra.searchpath=[file://{tmp_path}]", "+mine=own"]
    file.write_text("# @package _global_\n" + text.format(SECRET))
    with pytest.raises(ConfigError, match=rf"^{key}: .*in a file .*\$\{{oc\.env:VARIABLE\}}"):
        composed_tree(chosen)
    file.write_text("# @package _global_\n" + text.format("${oc.env:OWN}"))
    composed_tree(chosen)
