"""Supervised warm-up as a user runs it: a folder that training takes, the same for the same seed, faults by line."""

import json
from pathlib import Path

import pytest
import torch
from composition import tree_of

from dapo_lit.cli.command import run_command
from dapo_lit.cli.config_tree import resolved
from dapo_lit.cli.overrides import check_overrides
from dapo_lit.config import ConfigError, parse_as
from dapo_lit.config.sft import SftConfig
from dapo_lit.data.rows import DataError
from dapo_lit.policy.load import end_id, load_model, load_tokenizer
from dapo_lit.policy.tokenizer import character_tokenizer
from dapo_lit.preparation.warm_up import warm_up
from dapo_lit.sft import sft

SMALL = (
    "policy=micro",  # random weights
    "training.learning_rate=0.003",
    "training.epochs=30",
)


@pytest.fixture
def composed(cache: Path, tmp_path: Path):
    def compose(*overrides: str) -> SftConfig:
        tree = tree_of([f"output={tmp_path / 'warm'}", *SMALL, *overrides], "sft")
        return parse_as(resolved(tree), SftConfig)

    return compose


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Sums with their answer, of which every third has two samples that disagree."""
    file = tmp_path / "rows.jsonl"
    lines = []
    for a in range(1, 7):
        for b in range(1, 5):
            lines += [(f"{a}+{b}=", f"#{a + b}")] * 2
            lines += [(f"{b}+{a}=", f"#{a + b}"), (f"{b}+{a}=", f"#{a + b + 1}")] if a > 4 else []
    file.write_text("".join(json.dumps({"prompt": p, "response": r}) + "\n" for p, r in lines))
    return file


def greedy(folder: Path, prompt: str) -> str:
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    made = model.generate(ids, max_new_tokens=8, do_sample=False)
    return tokenizer.decode(made[0, ids.shape[1] :])


def test_the_policy_imitates_the_rows_and_ends_where_they_end(composed, rows, capsys):
    folder = warm_up(composed(f"data={rows}", "agreement.enabled=true"))
    right = sum(greedy(folder, f"{a}+{b}=") == f"#{a + b}<|endoftext|>" for a in range(1, 5) for b in range(1, 5))
    assert right >= 12
    printed = capsys.readouterr().out
    # 24 pairs (a, b) twice each agree; the 8 pairs (b, a) with a > 4 have one sample of each of two answers.
    assert "agreement: 48 rows of 24 of 32 prompts kept" in printed
    notes = json.loads((folder / "sft.json").read_text())
    assert (notes["rows"], notes["rows_agreeing"], notes["rows_trained"]) == (64, 48, 48)
    assert len(notes["losses"]) == 90  # 30 x 48 / 16
    assert notes["losses"][-1] < 0.3 < notes["losses"][0]
    assert not list(folder.parent.glob(".building-*"))


def test_a_table_shows_what_was_checked_before_the_first_update(composed, rows, capsys):
    warm_up(composed(f"data={rows}", "training.epochs=0.1", "policy.freeze_frac=0.5", "training.dtype=bfloat16"))
    printed = capsys.readouterr().out
    names = [line.split()[0] for line in printed.splitlines() if line.startswith("  ")]
    assert names == ["weights", "policy", "tokenizer", "rows"]
    assert "float32 weights, computing in bfloat16, the first 0.5 of the layers frozen" in printed
    assert "64 to train on; 0 left out" in printed
    warm_up(composed(f"data={rows}", "training.epochs=0.1", "preflight=false", f"output={rows.parent / 'other'}"))
    assert "before the first step" not in capsys.readouterr().out


def test_a_family_without_a_list_of_layers_is_refused_by_name(composed, rows, monkeypatch):
    def none(model: torch.nn.Module) -> torch.nn.ModuleList:
        raise ValueError("the layers of a policy of model type 'x' are not found; set trainer.sharding.dtype=null")

    monkeypatch.setattr("dapo_lit.recipe.models.decoder_layers", none)
    with pytest.raises(ConfigError, match=r"'x' are not found; set policy\.freeze_frac=0 training\.dtype=null"):
        warm_up(composed(f"data={rows}", "policy.freeze_frac=0.5"))


def test_16_bit_weights_are_refused_and_16_bit_computation_trains_float32_ones(composed, rows):
    with pytest.raises(ConfigError, match=r"policy\.dtype=bfloat16.*training\.dtype=bfloat16"):
        composed(f"data={rows}", "policy.dtype=bfloat16")
    settings = (f"data={rows}", "training.dtype=bfloat16", "training.epochs=2")
    folder = warm_up(composed(*settings, "training.learning_rate=1e-6"))
    before, after = load_model(folder), load_model(json.loads((folder / "sft.json").read_text())["start"])
    same = [float((a == b).float().mean()) for a, b in zip(after.parameters(), before.parameters(), strict=True)]
    assert sum(same) / len(same) < 0.3
    assert before.dtype == torch.float32


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(composed, rows, tmp_path):
    short = (f"data={rows}", "training.epochs=1")
    folders = [
        warm_up(composed(*short, f"seed={s}", f"output={tmp_path / n}")) for n, s in (("a", 1), ("b", 1), ("c", 2))
    ]
    weights = [load_model(folder).state_dict() for folder in folders]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not all(torch.equal(weights[0][key], weights[2][key]) for key in weights[0])


def test_rows_above_the_limit_are_left_out_and_counted(composed, rows):
    # `1+1=` `#2` and EOS are 7 tokens; two-digit sums have 8.
    folder = warm_up(composed(f"data={rows}", "training.epochs=1", "training.max_tokens=7"))
    notes = json.loads((folder / "sft.json").read_text())
    long = sum(len(json.loads(line)["response"]) > 2 for line in rows.read_text().splitlines())
    assert long > 0
    assert (notes["rows_trained"], notes["rows_too_long"]) == (64 - long, long)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (("training.max_tokens=3",), DataError, "every row has more than training.max_tokens=3"),
        (("task.template=dapo",), ConfigError, "has no chat template"),
        (("task.template=dapa",), ConfigError, "did you mean dapo?"),
        (("data=missing.jsonl",), DataError, "missing.jsonl: no such file; set data"),
        (("agreement.enabled=true", "agreement.min_samples=9"), DataError, "no prompt has an answer"),
    ],
)
def test_what_cannot_work_is_refused_by_name(composed, rows, overrides, error, message):
    with pytest.raises(error) as caught:
        warm_up(composed(f"data={rows}", *overrides))
    assert message in str(caught.value)


def test_a_bad_row_is_named_with_its_line(composed, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "1+1=", "response": "#2"}\n{"prompt": "1+1="}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl, line 2: has no `response`"):
        warm_up(composed(f"data={tmp_path / 'bad.jsonl'}"))


def test_a_folder_that_is_there_is_not_overwritten(composed, rows, tmp_path):
    (tmp_path / "warm").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        warm_up(composed(f"data={rows}"))


def test_a_chat_ends_with_the_token_that_closes_the_turn():
    tokenizer = character_tokenizer("0123456789+=")
    assert end_id(tokenizer, chat=False) == tokenizer.eos_token_id
    assert end_id(tokenizer, chat=True) == tokenizer.eos_token_id  # it has no chat template
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
    assert end_id(tokenizer, chat=True) == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end_id(tokenizer, chat=False) == tokenizer.eos_token_id


def test_the_command_makes_a_task_base_and_prints_its_folder(tmp_path, cache, monkeypatch, capsys):
    mixture = "{immediate: 1, running_sums: 0, checked: 0, rambling: 0}"
    stage = f"{{updates: 3, batch_size: 4, learning_rate: 1e-3, mixture: {mixture}}}"
    overrides = ["task=chain_sum", "policy=micro", "policy.random_init=false", f"task.base.stages=[{stage}]"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["dapo_lit.sft", *overrides])
    assert run_command(sft, SftConfig, "sft") == 0
    folder = Path(capsys.readouterr().out.split("policy")[1].strip())
    assert (folder / "config.json").is_file()
    assert folder.is_relative_to(cache)


def test_a_typo_gets_the_nearest_key_of_this_command():
    with pytest.raises(ConfigError, match=r"did you mean training\.epochs\?"):
        check_overrides(["training.epoch=2"], SftConfig)
