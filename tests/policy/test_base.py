"""Base policies: what fixes them, and that each is trained once."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_policy import TINY
from transformers import AutoTokenizer

from ablations.errors import UserError
from ablations.screen import StatusLine
from dapo_lit.policy.base import BaseSpec, Stage, _rows, character_tokenizer, prepare_base, random_model
from dapo_lit.policy.load import load_model, save_policy
from dapo_lit.policy.pretrain import Example
from dapo_lit.tasks import chain_sum, four_sums
from dapo_lit.tasks.chain_sum import CHARACTERS, Demonstration, Mixture, Sums

MIXTURE = Mixture(immediate=1.0, running_sums=0.0, checked=0.0, rambling=0.0)
STAGE = Stage(MIXTURE, updates=3, learning_rate=1e-2, batch_size=4)
SPEC = BaseSpec("test", TINY, CHARACTERS, seed=0, stages=(STAGE,))


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([p.flatten() for p in load_model(folder).parameters()])


def test_a_spec_gives_the_same_weights_in_any_cache_and_another_seed_gives_others(tmp_path: Path):
    one, two, other = (
        prepare_base(spec, tmp_path / cache) for spec, cache in ((SPEC, "a"), (SPEC, "b"), (replace(SPEC, seed=1), "a"))
    )
    assert one.name == two.name != other.name
    assert torch.equal(weights(one), weights(two))
    assert not torch.equal(weights(one), weights(other))


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, seed=1),
        replace(SPEC, architecture={**TINY, "num_hidden_layers": 2}),
        replace(SPEC, characters=CHARACTERS + "!"),
        replace(SPEC, stages=(STAGE, STAGE)),
        replace(SPEC, stages=(replace(STAGE, learning_rate=1e-3),)),
        replace(SPEC, stages=(replace(STAGE, demonstrations=replace(MIXTURE, sums=Sums(2, 7))),)),
    ],
)
def test_whatever_changes_a_base_changes_its_folder(changed: BaseSpec):
    assert changed.folder_name() != SPEC.folder_name()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"hiden_size": 48}, r"architecture.hiden_size: qwen2 has no such setting; did you mean hidden_size\?$"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' expected bool, got int"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' expected bool, got str"),
        ({"model_type": 1}, "Unrecognized model identifier: 1"),
    ],
)
def test_a_setting_of_the_model_that_is_of_another_kind_or_unknown_is_refused(given: dict[str, object], named: str):
    with pytest.raises(UserError, match=named):
        random_model(TINY | given, character_tokenizer("01"), seed=0)


class CountingMixture:
    """Demonstrations that count how often somebody starts to read them."""

    def __init__(self) -> None:
        self.started = 0

    def recipe(self) -> dict[str, object]:
        return MIXTURE.recipe()

    def stream(self, seed: int) -> Iterator[Demonstration]:
        self.started += 1
        return MIXTURE.stream(seed)


def test_a_cached_base_and_the_stages_it_shares_with_others_are_not_trained_again(tmp_path: Path):
    counting = CountingMixture()
    stage = replace(STAGE, demonstrations=counting)
    for stages, trained in [((stage,), 1), ((stage,), 1), ((stage, stage), 2), ((stage, stage), 2), ((stage,), 2)]:
        prepare_base(replace(SPEC, stages=stages), tmp_path)
        assert counting.started == trained


def test_pre_training_says_how_far_all_of_its_stages_are(tmp_path: Path, monkeypatch):
    """In demonstrations: 8 x 4 of the first stage, 12 x 8 of the second."""
    told: list[tuple[float, float, str]] = []
    monkeypatch.setattr(StatusLine, "update", lambda self, *state: told.append(state))
    first, second = replace(STAGE, updates=8, batch_size=4), replace(STAGE, updates=12, batch_size=8)
    prepare_base(replace(SPEC, stages=(first, second)), tmp_path)
    assert [state[:2] for state in told] == [(n, 128) for n in (*range(4, 33, 4), *range(40, 129, 8))]
    assert re.fullmatch(r"25%, loss \d\.\d{3}", told[7][2])
    told.clear()
    prepare_base(replace(SPEC, stages=(first, second, first)), tmp_path)
    assert [state[:2] for state in told] == [(n, 32) for n in range(4, 33, 4)]  # two stages are cached


def test_two_that_want_the_same_base_at_once_train_it_once(tmp_path: Path):
    counting = CountingMixture()
    spec = replace(SPEC, stages=(replace(STAGE, demonstrations=counting, updates=30),))
    with ThreadPoolExecutor() as threads:
        one, other = threads.map(lambda _: prepare_base(spec, tmp_path), range(2))
    assert one == other
    assert counting.started == 1


def test_turns_become_one_row_in_which_only_the_policys_tokens_are_learned():
    """Ids: EOS 1, then a to h from 2 on."""
    tokenizer = character_tokenizer("abcdefgh")
    demonstrations = [
        Demonstration("ab", "cd", True),
        Demonstration("a", "b", True, (("cde", "f"), ("g", "h"))),
        Demonstration("a", "b", False, (("c", "dd"),)),
    ]
    assert _rows(tokenizer, demonstrations) == [
        Example([2, 3], [4, 5, 1], []),
        Example([2], [3, 1, 4, 5, 6, 7, 1, 8, 9, 1], [2, 3, 4, 7]),
        Example([2], [3, 1, 4, 5, 5], [2]),
    ]


@pytest.mark.parametrize("characters", [chain_sum.CHARACTERS, four_sums.CHARACTERS])
def test_a_saved_tokenizer_is_the_same_to_any_user_of_transformers(characters, tmp_path):
    made = character_tokenizer(characters)
    save_policy(tmp_path / "m", random_model(TINY, made, seed=0), made, {})
    read = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert len(read) == len(made)
    assert read.encode(characters) == made.encode(characters) == list(range(2, 2 + len(characters)))
    assert read.decode([*read.encode(characters), 1], skip_special_tokens=True) == characters
    assert (read.pad_token_id, read.eos_token_id) == (0, 1)


def test_weights_of_a_pretrained_base_policy_are_values_of_bfloat16(tmp_path: Path):
    """Still float32, so that a run starts from every bit of the file."""
    trained, drawn = weights(prepare_base(SPEC, tmp_path)), weights(prepare_base(replace(SPEC, stages=()), tmp_path))
    assert trained.dtype == torch.float32
    assert torch.equal(trained, trained.bfloat16().float())
    assert not torch.equal(drawn, drawn.bfloat16().float())


def test_a_cache_that_cannot_be_made_is_named_with_the_variable_to_use_instead():
    with pytest.raises(UserError, match=r"^/proc/self/cache: .*DAPO_LIT_CACHE=DIR"):
        prepare_base(SPEC, Path("/proc/self/cache"))
