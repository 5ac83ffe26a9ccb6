"""Length penalties, entropy and the scoring of answers, against verl 0.9 and TRL 1.16."""

import asyncio
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import difference, record
from omegaconf import OmegaConf
from torch import Tensor
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.utils import entropy_from_logits
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
from verl.utils.reward_score.math_dapo import compute_score, normalize_final_answer
from verl.utils.torch_functional import entropy_from_logits as verl_entropy_from_logits

from dapo_lit.objective.shaping import soft_overlong_punishment
from dapo_lit.policy.base import character_tokenizer
from dapo_lit.policy.head import Head, scores
from math_answers.extraction import extract
from math_answers.normalise import normalise_answer
from math_answers.rules import decide

PAPER = (20_480, 4096, [1, 16_383, 16_384, 16_385, 17_000, 18_432, 20_479, 20_480])
SMALL = (20, 5, list(range(1, 21)))


def verl_penalties(lengths: list[int], limit: int, cache: int, factor: float) -> Tensor:
    """verl's reward manager `dapo` on completions whose answer scores 0: what is left is the penalty."""
    buffer = {"enable": True, "len": cache, "penalty_factor": factor, "log": False}
    config = OmegaConf.create({"reward": {"reward_kwargs": {"max_resp_len": limit, "overlong_buffer_cfg": buffer}}})

    async def score() -> list[float]:
        manager = DAPORewardManager(config, character_tokenizer("0123456789"), lambda **_: 0.0)
        return [(await manager.run_single(completion(length)))["reward_score"] for length in lengths]

    return torch.tensor([float(value) for value in asyncio.run(score())])


def completion(length: int) -> DataProto:
    tensors = {"responses": torch.full((1, length), 2), "attention_mask": torch.ones(1, length + 3, dtype=torch.long)}
    others = {"data_source": np.array(["none"]), "reward_model": np.array([{"ground_truth": "1"}])}
    return DataProto.from_dict(tensors, non_tensors=others)


@pytest.mark.parametrize(("limit", "cache", "lengths"), [PAPER, SMALL])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_verls_overlong_penalty(limit: int, cache: int, lengths: list[int], factor: float) -> None:
    mine = soft_overlong_punishment(torch.tensor(lengths), max_response_tokens=limit, cache_tokens=cache, factor=factor)
    record(
        "soft_overlong_punishment", f"L_max {limit}, L_cache {cache}, factor {factor:g}",
        "verl `DAPORewardManager.run_single`", f"{len(lengths)} lengths up to L_max",
        [difference(mine.float(), verl_penalties(lengths, limit, cache, factor))],
    )  # fmt: skip


def test_beyond_the_limit_verls_penalty_goes_on_growing() -> None:
    lengths = [21, 25, 40]
    theirs = verl_penalties(lengths, 20, 5, 1.0)
    assert theirs.tolist() == pytest.approx([-1.2, -2.0, -5.0])
    mine = soft_overlong_punishment(torch.tensor(lengths), max_response_tokens=20, cache_tokens=5)
    record(
        "soft_overlong_punishment", "L_max 20, L_cache 5", "verl `DAPORewardManager.run_single`",
        "3 lengths beyond L_max", [difference(mine.float(), theirs)], differs="V12",
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "cache", "lengths"), [PAPER, SMALL, (20, 0, [19, 20, 21])])
def test_trls_overlong_punishment(limit: int, cache: int, lengths: list[int]) -> None:
    lengths = [*lengths, limit + 1, limit + 100]
    theirs = get_soft_overlong_punishment(limit, cache)([[1] * length for length in lengths])
    mine = soft_overlong_punishment(torch.tensor(lengths), max_response_tokens=limit, cache_tokens=cache)
    record(
        "soft_overlong_punishment", f"L_max {limit}, L_cache {cache}", "TRL `get_soft_overlong_punishment`",
        f"{len(lengths)} lengths, also beyond L_max", [difference(mine, torch.tensor(theirs, dtype=torch.float64))],
    )  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_entropy_of_logits(scale: float) -> None:
    """Ours is part of the head, and takes hidden states: with the identity as the head they are the logits."""
    logits = scale * torch.randn(256, 512, generator=torch.Generator().manual_seed(0))
    mine = scores(logits, Head(torch.eye(512)), torch.zeros(256, dtype=torch.long), temperature=1.0)[1]
    setting, batches = f"entropy, logits N(0, {scale:g})", "256 rows of 512"
    exact = entropy_from_logits(logits.double())
    assert difference(mine, exact) <= 1e-6
    theirs = verl_entropy_from_logits(logits)
    differs = "V14" if scale > 1 else None
    record(
        "token_logprobs", setting, "verl `entropy_from_logits`", batches, [difference(mine, theirs)], differs=differs
    )
    theirs = entropy_from_logits(logits)
    record("token_logprobs", setting, "TRL `entropy_from_logits`", batches, [difference(mine, theirs)])


def rows() -> list[tuple[str, str]]:
    """(response, reference) of every row of equivalence.jsonl."""
    folder = os.environ.get("DAPO_LIT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("DAPO_LIT_DATA does not name a folder with equivalence.jsonl")
    found = [json.loads(line) for line in (Path(folder) / "equivalence.jsonl").read_text().splitlines()]
    return [(f"Answer: {row['pred']}", row["gold"]) for row in found]


CRAFTED = [
    ("no answer line, boxed", r"so \boxed{5}", "5"),
    ("no answer line, boxed, not the reference's text", r"so \boxed{5.0}", "5"),
    ("no answer at all", "so it is 5", "5"),
    ("an answer line and a box that differ", "Answer: 4\nso \\boxed{5}", "5"),
    ("two answer lines", "Answer: 4\nAnswer: 5", "5"),
    ("the answer line more than 300 characters back", "Answer: 5\n" + "x" * 300, "5"),
    ("lower case, space before the colon", "answer : 5", "5"),
    ("the answer on the next line", "Answer:\n5", "5"),
    ("an empty answer line", "Answer: \n", "5"),
    ("a box in the answer line", r"Answer: $\boxed{5}$", "5"),
    ("the reference says [INVALID]", "no answer", "[INVALID]"),
]


def verdicts(response: str, reference: str) -> tuple[bool, bool]:
    """Ours with extraction answer_line and rule dapo, and verl's `math_dapo`."""
    answer = extract(response, "answer_line")
    mine = answer is not None and bool(decide(answer, reference, "dapo"))
    return mine, bool(compute_score(response, reference)["acc"])


def test_math_dapo_on_the_rows_of_equivalence_jsonl() -> None:
    texts = {text for row in rows() for text in row}
    apart = [text for text in texts if normalise_answer(text) != normalize_final_answer(text)]
    batches = f"{len(texts)} texts of equivalence.jsonl"
    record("normalise_answer", "results that differ", "verl `normalize_final_answer`", batches, [float(len(apart))])
    peer, function, found = "verl `math_dapo.compute_score`", "extract(answer_line)`, `decide(dapo)", rows()
    doubled = [row for row in found if all("$$" in text for text in row)]
    sentences = [row for row in found if "The final answer is" in row[0]]
    others = [row for row in found if row not in doubled + sentences]
    assert {verdicts(*row)[0] for row in found} == {True, False}
    for kept, words, differs in (
        (others, "other rows", None), (doubled, "rows with `$$`", "V16"), (sentences, "Minerva's sentences", "V18")
    ):  # fmt: skip
        apart = [row for row in kept if len({*verdicts(*row)}) > 1]
        assert not any(verdicts(*row)[0] for row in apart if kept is not sentences)  # else ours is stricter
        record(
            function, "verdicts that differ", peer, f"{len(kept)} {words} of equivalence.jsonl", [float(len(apart))],
            differs=differs,
        )  # fmt: skip


def test_math_dapo_on_responses_that_could_be_read_apart() -> None:
    apart = {}
    for kind, response, reference in CRAFTED:
        mine, theirs = verdicts(response, reference)
        if mine != theirs:
            apart[kind] = (mine, theirs)
    assert apart == {"no answer line, boxed": (False, True), "the reference says [INVALID]": (False, True)}
    peer, function = "verl `math_dapo.compute_score`", "extract(answer_line)`, `decide(dapo)"
    record(
        function, "verdicts that differ", peer, f"{len(CRAFTED)} crafted responses", [float(len(apart))], differs="V13"
    )
