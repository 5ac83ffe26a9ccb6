"""A tokenizer of another model, and prompts that it cannot write, are refused before a run."""

import json
import shutil

import pytest
from tiny_policy import TINY

from ablations.errors import UserError
from dapo_lit.build.components import RunComponents
from dapo_lit.config import ConfigError
from dapo_lit.data.sources import DataError
from dapo_lit.policy.base import BaseSpec, character_tokenizer, prepare_base
from dapo_lit.preflight.prompts import check_prompts, check_tokenizer
from dapo_lit.preflight.training import check_run

ARCHITECTURE = TINY | {"max_position_embeddings": 1024}


@pytest.fixture
def parts(compose):
    return RunComponents(compose())


@pytest.mark.parametrize("characters", ["01", "".join(map(chr, range(33, 127)))])
def test_a_tokenizer_of_another_model_is_refused_by_the_folder(compose, tmp_path, characters):
    own = RunComponents(compose()).policy_folder
    folder = tmp_path / "mixed"
    shutil.copytree(own, folder)
    for file in folder.glob("*token*"):
        file.unlink()
    character_tokenizer(characters).save_pretrained(folder)
    with pytest.raises(ConfigError, match=rf"policy.path={folder}: .*tokenizer"):
        check_run(RunComponents(compose(f"policy.path={folder}")))


def test_a_tokenizer_with_a_padded_model_or_an_added_token_beyond_it_is_accepted(parts):
    rows = parts.policy.get_input_embeddings().num_embeddings
    check_tokenizer(parts.tokenizer, parts.policy, "here")
    parts.policy.resize_token_embeddings(rows + 5)
    check_tokenizer(parts.tokenizer, parts.policy, "here")
    parts.policy.resize_token_embeddings(rows)
    parts.tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    check_tokenizer(parts.tokenizer, parts.policy, "here")


def test_problems_with_a_character_that_the_policy_does_not_know_are_refused_by_name(compose, tmp_path):
    folder = prepare_base(BaseSpec("t", ARCHITECTURE, "0123456789+="), tmp_path / "base")
    rows = [
        {"id": f"p{i}", "problem": text, "answer": "3"} for i, text in enumerate(["1+2=", "1 + 2=", "5-2=", "1×3="])
    ]
    file = tmp_path / "problems.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "bare.yaml").write_text('answer_format: none\ntext: "{problem}"\n')
    settings = [f"policy.path={folder}", f"task.path={file}", f"task.template={tmp_path / 'bare.yaml'}"]
    config = compose("task=gsm8k", "reward=number", "task.eval_path=null", "policy=tiny", *settings, small=False)
    parts = RunComponents(config)
    with parts.verifier, pytest.raises(DataError, match=r"2 of 4 .*'-'.*'×'"):
        check_run(parts)


def test_a_template_that_the_policy_cannot_read_is_refused(parts):
    with pytest.raises(ConfigError, match=r"task\.template=gsm8k_few_shot"):
        check_prompts(*parts.train_prompts[:1], parts.template.load("gsm8k_few_shot"), parts.tokenizer, parts.policy)
    parts.template = parts.template.load("gsm8k_chat")
    with pytest.raises(UserError, match="no chat template"):
        parts.prompts(parts.problems.train)


def test_a_vocabulary_in_which_no_token_ends_a_response_is_refused(parts):
    check_tokenizer(parts.tokenizer, parts.policy, "here")
    parts.policy.config.eos_token_id = parts.policy.generation_config.eos_token_id = 999
    parts.tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="999"):
        check_tokenizer(parts.tokenizer, parts.policy, "here")
