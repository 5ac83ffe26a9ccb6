"""The character tokenizer, also as transformers' own loader reads it back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_policy import TINY
from transformers import AutoTokenizer

from dapo_lit.policy.base import BaseSpec, character_tokenizer, prepare_base
from dapo_lit.tasks import chain_sum, four_sums

ARCHITECTURE = TINY | {"max_position_embeddings": 32}


@given(st.text(four_sums.CHARACTERS, max_size=40))
def test_every_character_is_one_token_and_text_survives(text):
    tokenizer = character_tokenizer(four_sums.CHARACTERS)
    ids = tokenizer.encode(text)
    assert ids == [2 + four_sums.CHARACTERS.index(character) for character in text]
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("characters", [chain_sum.CHARACTERS, four_sums.CHARACTERS])
def test_a_saved_base_gives_any_user_of_transformers_the_same_tokenizer(characters: str, tmp_path: Path):
    made = character_tokenizer(characters)
    read = AutoTokenizer.from_pretrained(prepare_base(BaseSpec("t", ARCHITECTURE, characters), tmp_path))
    assert len(read) == len(made)
    assert read.encode(characters) == made.encode(characters) == list(range(2, 2 + len(characters)))
    assert read.decode([*read.encode(characters), 1], skip_special_tokens=True) == characters
    assert (read.pad_token_id, read.eos_token_id) == (0, 1)
