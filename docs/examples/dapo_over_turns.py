"""DAPO over several turns with a tool: what changes in dapo_in_one_file.py if some tokens are not the policy's.

    python docs/examples/dapo_over_turns.py POLICY_FOLDER

Eq. 8 to 13 stay as they are, because |o_i| and every sum over t are of the policy's tokens: ratio, advantage, clipping,
denominators and the length of Eq. 13. What changes is the row that the policy reads, where its tokens are in it
(`Episode`), and how it is sampled (`episode`). Its metrics are the package's (tests/test_one_file.py).
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch
from dapo_in_one_file import FOUR_SUMS, Policy, Response, Settings, is_correct, shaped_reward, train, uniform
from tokenizers import Tokenizer

MAX_TURNS, MAX_OBSERVATION_TOKENS = 3, 8
Environment = Callable[[dict, list[str]], str | None]


@dataclass
class Episode(Response):
    """`tokens` are the policy's in all its turns, each with its EOS token."""

    said: list[tuple[int, list[int]]] = field(default_factory=list)  # before which of them, and what the tool said

    @property
    def row(self) -> list[int]:
        found, last = list(self.prompt), 0
        for place, ids in self.said:
            found += self.tokens[last:place] + ids
            last = place
        return found + self.tokens[last:]

    @property
    def places(self) -> list[int]:
        seen = [sum(len(ids) for place, ids in self.said if place <= t) for t in range(len(self.tokens))]
        return [len(self.prompt) + t + before for t, before in enumerate(seen)]


def calculator(problem: dict, turns: list[str]) -> str | None:
    """The value of a turn that ends with a calculation such as `3*4=`; None: it asks nothing, and the episode ends."""
    call = re.search(r"([0-9]+) *([-+*]) *([0-9]+) *=$", turns[-1])
    if call is None:
        return None
    a, b = int(call[1]), int(call[3])
    return str({"+": a + b, "-": a - b, "*": a * b}[call[2]])


@torch.no_grad()
def episode(policy: Policy, tokenizer: Tokenizer, problem: dict, name: str, s: Settings, says: Environment) -> Episode:
    key = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    found, turns = Episode(tokenizer.encode(problem["problem"]).ids, [], False, True, 0.0), [""]
    start = 0  # of the turn
    while len(found.tokens) < s.max_response_tokens:
        # Without a cache, for shortness. The noise of a token is that of its number among the policy's.
        cdf = policy.logits(torch.tensor([found.row]))[0, -1].log_softmax(-1).exp().cumsum(-1, dtype=torch.float64)
        token = int(torch.searchsorted(cdf, uniform(key, len(found.tokens)) * cdf[-1], right=True))
        found.tokens.append(token)
        own = [t for t in found.tokens[start:] if t != policy.eos]
        turns[-1] = tokenizer.decode(own, skip_special_tokens=False)  # a call of a tool may be marked by some
        if token != policy.eos:
            continue
        said = says(problem, turns)
        if said is None:
            found.truncated = False  # the only end that is no limit
            break
        ids, num_said = tokenizer.encode(said).ids, sum(len(ids) for _, ids in found.said)
        if len(turns) == MAX_TURNS or num_said + len(ids) > MAX_OBSERVATION_TOKENS:
            break
        start = len(found.tokens)
        if start < s.max_response_tokens:  # the last token is the policy's
            found.said.append((start, ids))
            turns.append("")
    found.correct = is_correct(tokenizer.decode(own), problem["answer"], s.answer_mark)  # nothing that the tool said
    found.reward = shaped_reward(found.correct, len(found.tokens), found.truncated, s)
    return found


def episodes(
    policy: Policy, tokenizer: Tokenizer, problem: dict, names: list[str], s: Settings, says: Environment = calculator
) -> list[Response]:
    return [episode(policy, tokenizer, problem, name, s, says) for name in names]


if __name__ == "__main__":
    problems = [
        {"id": f"four_sums-{i}", "problem": text, "answer": answer} for i, (text, answer) in enumerate(FOUR_SUMS)
    ]
    train(Path(sys.argv[1]), problems, Settings(), partial(episodes, says=calculator))
