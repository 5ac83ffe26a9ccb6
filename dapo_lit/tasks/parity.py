"""Parity of bit strings: a short answer is a guess, a long chain of running parities is right.

A prompt is `a1b0c1d1e0=`, each bit behind a letter. A response may answer at once (`#1`) or first repeat the string
with the parity so far behind each bit (`a11b01c10d11e01#1`): a small policy can look the next bit up and add it, but
it cannot see the parity of a long string at once. So what it can learn is to write. The share of long chains in its
demonstrations decides whether it does.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from operator import xor
from string import ascii_lowercase as LETTERS
from typing import Any

from dapo_lit.data.problem import Problem
from dapo_lit.seeds import named_generator
from dapo_lit.tasks.chain_sum import Demonstration
from dapo_lit.tasks.generated import ProblemSets

CHARACTERS = f"01=#{LETTERS}"
"""Every character of a prompt or a response."""


@dataclass(frozen=True)
class Strings:
    """The lengths of the bit strings."""

    min_bits: int = 8
    max_bits: int = 14

    def __post_init__(self) -> None:
        if not 1 <= self.min_bits <= self.max_bits <= len(LETTERS):
            raise ValueError(f"strings need 1 <= min_bits <= max_bits <= {len(LETTERS)}, not {self}")

    def draw(self, rng: random.Random) -> str:
        """A length, then each bit, uniformly."""
        return "".join(rng.choice("01") for _ in range(rng.randint(self.min_bits, self.max_bits)))


@dataclass(frozen=True)
class Mixture:
    """Demonstrations for a base policy."""

    chains: float
    """Share that writes the running parities; the others answer at once, and rightly."""
    step_wrong: float = 0.0
    """Probability that one running parity is wrong; the next ones carry on from it."""
    strings: Strings = field(default_factory=Strings)

    def __post_init__(self) -> None:
        if not 0 <= self.chains <= 1:
            raise ValueError(f"chains is a share between 0 and 1, not {self.chains}")

    def recipe(self) -> dict[str, object]:
        """Everything except the seed that determines what `stream` yields; part of a base policy's cache key."""
        return {"task": "parity", "format": 2, **asdict(self)}

    def stream(self, seed: int) -> Iterator[Demonstration]:
        """Endless demonstrations, determined by the seed, without held-out strings."""
        rng = named_generator("parity", "demonstrations", seed)
        while True:
            bits = self.strings.draw(rng)
            if is_held_out(bits):
                continue
            text = chain(bits, self.step_wrong, rng) if rng.random() < self.chains else f"#{parity(bits)}"
            yield Demonstration(f"{lettered(bits)}=", text, True)


def problems(kind: str, num_problems: int, strings: Strings) -> list[Problem]:
    """Different strings in random order: `train`, or `held_out`, which no demonstration contains.

    Raises ValueError: 100 times as many draws do not contain so many.
    """
    rng = named_generator("parity", kind)
    drawn = (strings.draw(rng) for _ in range(1000 + 100 * num_problems))
    chosen = list(dict.fromkeys(bits for bits in drawn if is_held_out(bits) == (kind == "held_out")))[:num_problems]
    if len(chosen) < num_problems:
        raise ValueError(
            f"{num_problems:,} {kind} problems requested, but there are only {len(chosen):,}; raise max_bits"
        )
    return [Problem(f"parity-{bits}", f"{lettered(bits)}=", parity(bits), {"num_bits": len(bits)}) for bits in chosen]


def is_held_out(bits: str) -> bool:
    """True for a tenth of the strings."""
    return int.from_bytes(hashlib.blake2b(bits.encode(), digest_size=8).digest()) % 10 == 0


def parity(bits: str) -> str:
    """
    >>> parity("10110")
    '1'
    """
    return str(bits.count("1") % 2)


def chain(bits: str, step_wrong: float, rng: random.Random) -> str:
    """The running parities and the last one as the answer.

    >>> chain("10110", 0.0, random.Random(0))
    'a11b01c10d11e01#1'
    """
    flips = [int(bit) ^ (rng.random() < step_wrong) for bit in bits]
    running = list(accumulate(flips, xor))
    return lettered(map("{}{}".format, bits, running)) + f"#{running[-1]}"


def lettered(items: Iterable[str]) -> str:
    """
    >>> lettered("101")
    'a1b0c1'
    """
    return "".join(letter + item for letter, item in zip(LETTERS, items, strict=False))


def has_written_steps(text: str) -> bool:
    """True if a response begins with a running parity; the mean over responses is `task/steps_frac`."""
    return text[:1].isalpha()


def problem_sets(num_train: int | None, num_heldout: int, options: Mapping[str, Any]) -> ProblemSets:
    strings = Strings(**options)
    train, heldout = problems("train", num_train or 4096, strings), problems("held_out", num_heldout, strings)
    return ProblemSets(train, heldout, {"task/steps_frac": has_written_steps})


def mixture(shares: Mapping[str, Any], options: Mapping[str, Any]) -> Mixture:
    return Mixture(**shares, strings=Strings(**options))


def long_chains(share: float) -> Mapping[str, float]:
    return {"chains": share}
