"""Counter-based noise: one uniform for every (seed, step, problem, attempt, sample, position), whatever the batch.

A row key is a hash of the names; the position is a counter that SplitMix64 (Steele, Lea and Flood 2014) mixes into it.
No state is kept, so a sample's noise depends neither on its batch nor on the rank: arms of an ablation share it.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from dapo_lit.engines.protocol import SampleKey

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def row_key(seed: int, key: SampleKey) -> int:
    """A 64-bit key of one sample; stable over processes and machines."""
    # The id goes last: it alone may hold the separator, so no two names give the same text.
    name = f"{seed}|{key.step}|{key.attempt}|{key.sample_index}|{key.problem_id}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def request_seed(seed: int, key: SampleKey, num_tokens: int) -> int:
    """The seed with which an engine that draws by itself samples one response, from its token `num_tokens` on.

    63 bits, because engines hold it in a signed integer. A response that is continued draws from other noise than
    its first tokens.
    """
    return stream_seed(row_key(seed, key), num_tokens) >> 1


def stream_seed(seed: int, stream: int) -> int:
    """The seed of one of a run's streams of noise: stream 0 is the seed itself, any other shares no draw with it."""
    if stream == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"stream {stream} of {seed}".encode(), digest_size=7).digest(), "little")


def uniforms(row_keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniforms in the open interval (0, 1), from 2**-53 to 1 - 2**-53, in the shape of the broadcast arguments.

    row_keys: from `row_key`. positions: index of the token in its response, from 0.
    """
    bits = row_keys + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    bits ^= bits >> np.uint64(31)
    # 52 bits and a half: an odd multiple of 2**-53 is exact in float64 and is neither 0 nor 1.
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
