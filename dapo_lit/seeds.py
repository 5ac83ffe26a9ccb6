"""Where every random number of the package comes from: one function or constant for each stream, and what keys it.

A stream is a function of names and counters, never of a generator's state: what was drawn before cannot move it. So a
resumed run goes on with the same numbers, ranks agree without communication, and the arms of a study differ in nothing
but their switches (common random numbers: noise that two arms share cancels in their difference).

What a stream decides (who draws): function, key; what it does not depend on.

The order of problems (rollout/collect.py): `epoch_permutation`
    seed, epoch, number of problems; not on their texts, the step, ranks.
The noise of a sampled token (engines/torch_engine/): `row_key`, `uniforms`
    noise seed, step, problem id, attempt, sample, position; not on the batch, ranks, weights, other samples.
The same, where an engine draws by itself (engines/vllm_engine/stream.py): `request_seed`
    as above, and where the response is continued; not on the batch, the server.
The noise seed of a run (lit/datamodule.py): `stream_seed`
    seed, `rollout.noise_stream`. Forks and placebos change this one stream and keep problems and shuffling.
The noise of an evaluation (evaluation/sampled.py): `row_key` or `request_seed`
    seed, problem id, sample, EVALUATION_STEP as the step; not on when it runs, nor on `rollout.noise_stream`.
The groups of each mini-batch (step/batch.py): `minibatch_seed`
    seed, step, epoch; not on ranks or micro-batches.
What a loss draws, as Clip-Cov does (step/updates.py): `loss_seed`
    seed, step, epoch, completions of the mini-batch; not on ranks or micro-batches.
First values of LoRA's A (policy/lora.py): `adapter_seed`
    seed, the parameter's name; not on the order of parameters or their shards.
First weights of a base policy (policy/base.py): `task.base_seed` itself
    not on the run's seed.
What a base policy is pre-trained on, in which order (tasks/, policy/pretrain.py): `pretraining_seed`, `named_generator`
    `task.base_seed`, the stage; not on the run's seed.
Problems of a generated task (tasks/): `named_generator`
    the task, training or held out; not on a seed: all runs share them. A hash of the text decides which are held out.
The order of groups on a replay's page (dapo_lit_tools/replays/page.py): `minibatch_seed`, that of the run.
Random directions of a replay's page (sketch.py of the tools): DIRECTIONS. Tokens that try a model's attention
(preflight/policy.py) or a loss of your own (switches/trials.py): PROBE. Sign flips of a study's tests: SIGN_FLIPS
(ablations/compare/__init__.py)
    constants: the same runs give the same report.

Left out: vLLM's worker seed (engines/vllm_engine/options.py), from which nothing is drawn because each request brings
its own, and the process's global generators, from which only code from outside draws: `random_state` keeps those.
"""

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Values that no config changes: two pages of the same step must show the same figure.
DIRECTIONS = 0
PROBE = 0

# SplitMix64 (Steele, Lea and Flood 2014): the golden ratio in 64 bits is the step of its counter, the others mix.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class SampleName(Protocol):
    """What names one sample of a run (`engines/protocol.py: SampleKey`)."""

    @property
    def step(self) -> int: ...
    @property
    def problem_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def sample_index(self) -> int: ...


def epoch_permutation(num_problems: int, seed: int, epoch: int) -> list[int]:
    """The order of one epoch, a function of (num_problems, seed, epoch) only.

    Indices are sorted by a keyed hash: no library's random generator is used (their streams change between versions),
    and no earlier draw matters.
    """
    key = blake2b(f"{seed}/{epoch}".encode(), digest_size=16).digest()
    return sorted(range(num_problems), key=lambda index: blake2b(index.to_bytes(8), key=key, digest_size=16).digest())


def stream_seed(seed: int, stream: int) -> int:
    """The seed of one of a run's streams of noise: stream 0 is the seed itself, any other shares no draw with it."""
    # Unhashed: a run that names no stream keeps the noise of its seed.
    if stream == 0:
        return seed
    return int.from_bytes(blake2b(f"stream {stream} of {seed}".encode(), digest_size=7).digest(), "little")


def row_key(seed: int, key: SampleName) -> int:
    """A 64-bit key of one sample; stable over processes and machines."""
    # The id goes last: it alone may hold the separator, so no two names give the same text.
    name = f"{seed}|{key.step}|{key.attempt}|{key.sample_index}|{key.problem_id}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def uniforms(row_keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniforms in the open interval (0, 1), from 2**-53 to 1 - 2**-53, in the shape of the broadcast arguments.

    row_keys: from `row_key`. positions: index of the token in its response, from 0.
    """
    # SplitMix64 of the counter key + position: any position of any row is computed without the ones before it.
    bits = row_keys + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    bits ^= bits >> np.uint64(31)
    # 52 bits and a half: an odd multiple of 2**-53 is exact in float64 and is neither 0 nor 1.
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def request_seed(seed: int, key: SampleName, num_tokens: int) -> int:
    """The seed with which an engine that draws by itself samples one response, from its token `num_tokens` on.

    63 bits, because engines hold it in a signed integer. A response that is continued draws from other noise than
    its first tokens.
    """
    return stream_seed(row_key(seed, key), num_tokens) >> 1


def minibatch_seed(seed: int, step: int, epoch: int) -> int:
    """The seed that shuffles a step's groups into mini-batches, anew in each epoch over the batch."""
    return _counter_seed(seed, step, epoch)


def loss_seed(seed: int, step: int, epoch: int, completions: Sequence[int]) -> int:
    """The seed of what a loss draws for one mini-batch, named by its completions: the same on every rank."""
    return _counter_seed(seed, step, epoch, *completions)


def _counter_seed(*counters: int) -> int:
    """A 63-bit seed from counters, the same on every machine and rank and after every restart."""
    # Shifted: torch's generators take 64 bits, but other libraries hold a seed in a signed integer.
    return int.from_bytes(blake2b(repr(counters).encode(), digest_size=8).digest()) >> 1


def adapter_seed(seed: int, name: str) -> int:
    """The seed of one LoRA matrix; by its name, so that a rank that holds a shard need not draw the others first."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest()) >> 1


def pretraining_seed(base_seed: int, stages: int) -> int:
    """The seed of a base policy's last stage of pre-training; a thousand stages before two policies would share one."""
    return 1000 * base_seed + stages


def named_generator(*names: str | int) -> random.Random:
    """Python's generator under a name: its `seed` hashes text by SHA-512, alike in every version and process."""
    return random.Random("/".join(map(str, names)))


def random_state() -> dict[str, Any]:
    """State of the global generators of Python, numpy and torch, on the CPU and on this process's GPU.

    For code that draws from them (vLLM on a CPU, your own reward function): nothing in this package does.
    """
    import torch  # a second to import, and reports, which flip signs, need none of it

    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def restore_random_state(state: dict[str, Any]) -> None:
    """Restores what `random_state` returned; a GPU's state only if there is a GPU."""
    import torch

    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
