"""An exported checkpoint is the policy that was trained, for whoever loads it."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from command_line import SMALL
from commands import export_to
from transformers import AutoModelForCausalLM, AutoTokenizer

from ablations.errors import UserError
from ablations.files.layout import EVALUATIONS
from ablations.files.tables import write_table
from dapo_lit.cli.command import compose
from dapo_lit.config.commands import ExportConfig
from dapo_lit.evaluate import share_interval
from dapo_lit.export import _with_interval, export
from dapo_lit.train import train


@pytest.fixture(scope="module")
def run(cache, tmp_path_factory) -> Path:
    runs = tmp_path_factory.mktemp("export")
    train(compose(*SMALL, "budget.steps=2", "algorithm.optimizer.lr=0.01", f"runs_dir={runs}"), [])
    return runs / "four_sums" / "dapo" / "seed_0"


def test_transformers_loads_the_folder_and_gives_the_logits_of_the_checkpoint(run, tmp_path, capsys):
    out = tmp_path / "exported" / "four_sums"
    export_to(out, run)
    assert "step_000002" in capsys.readouterr().out

    model = AutoModelForCausalLM.from_pretrained(out).eval()
    saved = torch.load(run / "checkpoints" / "step_000002.ckpt", weights_only=False)["state_dict"]
    trained = AutoModelForCausalLM.from_config(model.config).eval()
    trained.load_state_dict({name.removeprefix("policy."): tensor for name, tensor in saved.items()})
    ids = torch.arange(1, 13).view(2, 6)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, trained(ids).logits)
        untrained = AutoModelForCausalLM.from_config(model.config).eval()(ids).logits
        assert not torch.allclose(untrained, model(ids).logits, atol=1e-2)

    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(tokenizer.encode("1+2=")) == "1+2="
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id
    assert (model.generation_config.do_sample, model.generation_config.temperature) == (True, 1.0)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {file.name for file in out.iterdir()}


def test_no_decoding_setting_of_the_origin_is_left(run, tmp_path):
    origin = tmp_path / "origin"
    export_to(origin, run)
    file = origin / "generation_config.json"
    before = json.loads(file.read_text(encoding="utf-8"))
    theirs = {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "max_new_tokens": 8, "min_p": 0.1, "top_k": 20}
    file.write_text(json.dumps(before | theirs), encoding="utf-8")
    settings = ["budget.steps=1", f"policy.path={origin}", f"runs_dir={tmp_path}", "study_name=from_origin"]
    train(compose(*SMALL, *settings), [])
    export_to(tmp_path / "again", tmp_path / "from_origin" / "dapo" / "seed_0")
    written = json.loads((tmp_path / "again" / "generation_config.json").read_text(encoding="utf-8"))
    assert written.pop("transformers_version")
    assert written == {key: value for key, value in before.items() if key != "transformers_version"}
    assert set(written) <= {
        "bos_token_id", "pad_token_id", "eos_token_id", "do_sample", "temperature", "top_p", "top_k",
    }  # fmt: skip
    assert (written["do_sample"], written["top_k"]) == (True, 0)


def test_what_cannot_be_exported_is_told(run, tmp_path):
    def refused(ckpt: Path, out: Path = tmp_path / "new") -> str:
        with pytest.raises(UserError) as caught:
            export_to(out, ckpt)
        assert not (tmp_path / "new").exists()
        return str(caught.value)

    assert "exists already" in refused(run, out=run)
    assert "no config.yaml" in refused(tmp_path / "nowhere")
    assert "no checkpoint there" in refused(run / "checkpoints" / "step_000099.ckpt")
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step_000003.ckpt").write_bytes(b"half a file")
    assert "is damaged" in refused(tmp_path / "run")


def test_the_folder_has_a_model_card_with_results_and_licences_and_the_config(run, tmp_path, monkeypatch, capsys):
    out = tmp_path / "carded"
    export(ExportConfig(ckpt=str(run), output=str(out), license="apache-2.0"), [])
    card = (out / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == "apache-2.0"
    assert re.search(r"^\| four_sums, avg@2 \| [\d.]+ \[.*\] \| [\d.]+ \[.*\] \|$", card, re.MULTILINE)
    (use,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(use.replace('"..."', '"1 + 2 = "'), "README.md", "exec"), {})
    assert capsys.readouterr().out.endswith("\n")
    assert yaml.safe_load((out / "dapo_lit_config.yaml").read_text())["seed"] == 0


def test_the_interval_of_a_card_is_that_of_an_evaluation_and_ends_at_all(tmp_path):
    file = tmp_path / EVALUATIONS / "mine" / "step_000003.parquet"
    file.parent.mkdir(parents=True)
    judged = pd.DataFrame({"problem_id": ["a", "b", "c", "c"], "correct": [True, True, False, True]})
    write_table(file, judged.assign(timed_out=False, failed=[False, False, False, True]))
    row = {"step": 3, "eval/mine/avg@2": 2 / 3}
    low = 100 * (share_interval([1.0, 1.0, 0.0]).low or 0)
    assert _with_interval(tmp_path, "mine", row, "eval/mine/avg@2") == f"66.7 [{low:.1f}, 100.0]"
