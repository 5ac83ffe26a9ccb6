"""Base policies: what fixes them, and that the cache never holds half of one."""

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_policy import TINY

from dapo_lit.policy.base import BaseSpec, Stage, prepare_base
from dapo_lit.policy.load import load_model
from dapo_lit.tasks.chain_sum import CHARACTERS, Demonstration, Mixture, Sums

MIXTURE = Mixture(immediate=1.0, running_sums=0.0, checked=0.0, rambling=0.0)
STAGE = Stage(MIXTURE, updates=3, learning_rate=1e-2, batch_size=4)
SPEC = BaseSpec("test", TINY, CHARACTERS, seed=0, stages=(STAGE,))


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([p.flatten() for p in load_model(folder).parameters()])


def test_a_spec_gives_the_same_weights_in_any_cache_and_another_seed_gives_others(tmp_path: Path):
    one, two, other = (
        prepare_base(spec, tmp_path / cache, progress=False)
        for spec, cache in ((SPEC, "a"), (SPEC, "b"), (replace(SPEC, seed=1), "a"))
    )
    assert one.name == two.name != other.name
    assert torch.equal(weights(one), weights(two))
    assert not torch.equal(weights(one), weights(other))


def test_a_base_without_stages_is_random_and_does_not_change_the_global_generator(tmp_path: Path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    random = prepare_base(replace(SPEC, stages=()), tmp_path, progress=False)
    assert torch.equal(torch.rand(3), expected)
    assert not torch.equal(weights(random), weights(prepare_base(SPEC, tmp_path, progress=False)))
    embeddings = load_model(random).get_input_embeddings().weight[1:]
    assert embeddings.std().item() == pytest.approx(16**-0.5, rel=0.2)


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, seed=1),
        replace(SPEC, architecture={**TINY, "num_hidden_layers": 2}),
        replace(SPEC, characters=CHARACTERS + "!"),
        replace(SPEC, stages=(STAGE, STAGE)),
        replace(SPEC, stages=(replace(STAGE, updates=4),)),
        replace(SPEC, stages=(replace(STAGE, learning_rate=1e-3),)),
        replace(SPEC, stages=(replace(STAGE, batch_size=5),)),
        replace(SPEC, stages=(replace(STAGE, demonstrations=replace(MIXTURE, immediate_wrong=0.1)),)),
        replace(SPEC, stages=(replace(STAGE, demonstrations=replace(MIXTURE, sums=Sums(2, 7))),)),
    ],
)
def test_whatever_changes_a_base_changes_its_folder(changed: BaseSpec):
    assert changed.folder_name() != SPEC.folder_name()


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
        prepare_base(replace(SPEC, stages=stages), tmp_path, progress=False)
        assert counting.started == trained


def test_two_that_want_the_same_base_at_once_train_it_once(tmp_path: Path):
    counting = CountingMixture()
    spec = replace(SPEC, stages=(replace(STAGE, demonstrations=counting, updates=30),))
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(prepare_base(spec, tmp_path, progress=False))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert counting.started == 1


def test_a_killed_build_leaves_no_base_and_the_next_build_clears_up_after_it(tmp_path: Path):
    long = replace(SPEC, stages=(replace(STAGE, updates=100_000, batch_size=1),))
    child = os.fork()
    if child == 0:
        try:
            prepare_base(long, tmp_path, progress=False)
        finally:
            os._exit(1)  # never back into the tests
    while not (tmp_path / replace(long, stages=()).folder_name()).is_dir():  # Its first part is there: it trains.
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not (tmp_path / long.folder_name()).exists()

    half_written = tmp_path / f"{SPEC.folder_name()}.part"
    half_written.mkdir()
    assert prepare_base(SPEC, tmp_path, progress=False).is_dir()
    assert not half_written.exists()
