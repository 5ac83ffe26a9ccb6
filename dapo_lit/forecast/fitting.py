"""What `auto` becomes on a GPU of a given size: tokens of a micro-batch, recomputation, the engine's cache.

The peaks are those of forecast/memory.py, simulated for four and five layers and extrapolated, so a choice takes some
seconds. In order:

1. The engine in the trainer's process keeps its reserve, and, unless it sleeps, its weights and a cache: the given one,
   or a quarter of the GPU at most.
2. Nothing is recomputed if ENOUGH_TOKENS fit into the rest so, or a whole mini-batch; otherwise all layers are.
3. The micro-batch is the largest that fits, a mini-batch and MOST_TOKENS at most: a larger one is no faster.
4. The cache gets what is left, as far as `rollout.max_batch_size` sequences of full length fill it.

On a CPU `auto` is a fixed number, so that a run is the same on every machine.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

from dapo_lit.config import Config, ConfigError
from dapo_lit.forecast.architecture import architecture, cache_bytes, head_width
from dapo_lit.forecast.memory import GIB, Memory, engine_weights, training_memory

USABLE = 0.92
"""Share of a GPU's free memory that is used: blocks of uneven size leave gaps, and CUDA's context is not simulated."""
ENGINE_RESERVE_GIB = 4.0
"""That vLLM wants besides weights and cache, asleep too (`engines/vllm_engine/options.py`)."""
STEP_TOKENS = 1024
"""Micro-batches are multiples of this."""
ENOUGH_TOKENS = 16_384
"""With so many an H100 trains 0.5B parameters at 65,000 tokens/s, and at 53,000 with four times as many and
recomputation (docs/performance.md)."""
MOST_TOKENS = 65_536
SECOND_TOKENS, TRIES = 8192, 4
LEAST_CACHE_GIB = 0.25
CPU_TOKENS, CPU_CACHE_GB = 4096, 4.0


@dataclass(frozen=True)
class Fit:
    """What was chosen, and what it was chosen from."""

    config: Config
    """Without `auto`."""
    words: str
    """For the table before the first step; empty: nothing was to be chosen."""


def fitted(config: Config, gpu_bytes: int | None) -> Fit:
    """The config with a value for each `auto`. gpu_bytes: free on each GPU; None: the run is on a CPU."""
    keys = config.sized_by_gpu
    if not keys:
        return Fit(config, "")
    if gpu_bytes is None:
        plain = {"micro_batch_tokens": CPU_TOKENS, "activation_checkpointing": "none"}
        return _chosen(config, keys, plain, CPU_CACHE_GB, "on a CPU")
    room = USABLE * gpu_bytes / GIB
    colocated = config.rollout.engine == "vllm" and config.rollout.vllm.placement != "server"
    awake = colocated and not config.rollout.vllm.sleep
    wanted = max(_full_cache(config), LEAST_CACHE_GIB) if colocated else 0.0
    cache = config.rollout.vllm.kv_cache_gb if colocated else 0.0
    given = min(wanted, room / 4) if cache == "auto" else float(cache)
    sizes, memory = _largest(config, lambda of: room - _engine(config, of) - (given if awake else 0.0))
    engine = _engine(config, memory)
    # Asleep, the engine wakes when only the training state is left on the GPU.
    weights = 0.0 if awake or not colocated else engine_weights(config, memory.parameters)
    trainer = _training(memory) if awake else memory.state
    left = min(wanted, room - trainer - engine - weights)
    if colocated and cache == "auto" and left < LEAST_CACHE_GIB:
        raise ConfigError(
            f"rollout.vllm.kv_cache_gb=auto: {left:.1f} GiB are left for the engine's cache of the {room:.1f} that can "
            "be used on each GPU; set rollout.vllm.sleep=true, rollout.vllm.placement=server or more trainer.devices"
        )
    where = f"a peak of {_training(memory):.1f} GiB of {room:.1f}, as simulated"
    return _chosen(config, keys, sizes, round(left, 2), where)


def largest_micro_batch(config: Config, room: float, known: tuple[int, Memory] | None = None) -> tuple[int, Memory]:
    """The most tokens of a micro-batch whose training peak is within `room` GiB, 0 if not even the longest sequence is,
    and the memory of that many or of that sequence.

    The peak is nearly a line over the tokens: one is drawn through the longest sequence alone and a larger micro-batch,
    and its answer is simulated, TRIES times at most. known: a number of tokens and their memory, which spare the first.
    """
    least, most = _longest(config), max(_most(config), _longest(config))
    low = _of(config, micro_batch_tokens=least)
    if _training(low) > room:
        return 0, low
    best, tokens, too_many = (least, low), min(most, _rounded(least + SECOND_TOKENS)), most + STEP_TOKENS
    if known and least < known[0] <= most:
        tokens = known[0]
    for tried in range(TRIES):
        if tokens <= best[0]:
            break
        memory = known[1] if known and not tried and tokens == known[0] else _of(config, micro_batch_tokens=tokens)
        if _training(memory) <= room:
            best = tokens, memory
        else:
            too_many = tokens
        slope = max(_training(memory) - _training(low), 1e-9) / (tokens - least)
        answer = least + min((room - _training(low)) / slope, float(most))
        tokens = min(int(answer) // STEP_TOKENS * STEP_TOKENS, too_many - STEP_TOKENS, most)
    return best


def fewest_nodes(config: Config, fits: Callable[[Config], bool]) -> int | None:
    """The fewest machines of trainer.devices GPUs, up to those of the config or 64, with which the config `fits`.

    What fits on some machines fits on more: their number is doubled until it is enough, then bisected.
    """

    def enough(number: int) -> bool:
        return fits(changed(config, num_nodes=number))

    most = max(config.trainer.num_nodes, 64)
    doubled = [*takewhile(lambda number: number < most, (2**power for power in count())), most]
    upper = next(filter(enough, doubled), None)
    return upper and bisect_left(range(upper), True, lo=upper // 2 + 1, key=enough)


def changed(config: Config, **changes: Any) -> Config:
    """The config with other values in its section `trainer`."""
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=changes)})


def _largest(config: Config, room_beside: Any) -> tuple[dict[str, Any], Memory]:
    """The chosen values of `trainer`, and the memory with them."""
    tokens, recomputes = config.trainer.micro_batch_tokens, config.trainer.activation_checkpointing
    tries = ["none", "full"] if recomputes == "auto" else [recomputes]
    for choice in tries:
        of = changed(config, activation_checkpointing=choice)
        memory = _of(of, micro_batch_tokens=_longest(config))
        room = room_beside(memory)
        if tokens == "auto":
            found, memory = largest_micro_batch(of, room)
            fits = found >= min(ENOUGH_TOKENS, _most(config)) or (found > 0 and choice == tries[-1])
        else:
            found, memory = tokens, _of(of, micro_batch_tokens=tokens)
            fits = _training(memory) <= room
        if fits:
            return {"micro_batch_tokens": found, "activation_checkpointing": choice}, memory
    raise ConfigError(
        f"{', '.join(config.sized_by_gpu)}=auto: training needs {_training(memory):.1f} GiB on each GPU, and "
        f"{max(room, 0):.1f} can be used; set rollout.vllm.sleep=true, policy.lora, or trainer=fsdp with more GPUs"
    )


def _chosen(config: Config, keys: list[str], sizes: dict[str, Any], cache: float, where: str) -> Fit:
    values = {f"trainer.{name}": value for name, value in sizes.items()} | {"rollout.vllm.kv_cache_gb": cache}
    values = {key: value for key, value in values.items() if key in keys}
    found = changed(config, **{name: value for name, value in sizes.items() if f"trainer.{name}" in keys})
    if "rollout.vllm.kv_cache_gb" in keys:
        vllm = config.rollout.vllm.model_copy(update={"kv_cache_gb": cache})
        found = found.model_copy(update={"rollout": config.rollout.model_copy(update={"vllm": vllm})})
        if config.rollout.engine != "vllm" or config.rollout.vllm.placement == "server":
            values.pop("rollout.vllm.kv_cache_gb")  # nothing reads it
    return Fit(found, f"{', '.join(f'{key}={value}' for key, value in values.items())}: {where}")


def _training(memory: Memory) -> float:
    return sum(memory.training.values())


def _of(config: Config, **changes: Any) -> Memory:
    """The simulated memory, without the engine's, which is counted here."""
    placed = config.rollout.vllm.model_copy(update={"kv_cache_gb": 0.0, "sleep": True})
    of = changed(config, **changes)
    of = of.model_copy(update={"rollout": of.rollout.model_copy(update={"vllm": placed})})
    key = of.model_dump_json()
    if key not in _KNOWN:
        _KNOWN[key] = training_memory(of, quick=True)
    return _KNOWN[key]


_KNOWN: dict[str, Memory] = {}
"""Simulations of this process: the questions of a plan share them."""


def _engine(config: Config, memory: Memory) -> float:
    """GiB of the engine in the trainer's process, without its cache, while the policy trains."""
    rollout = config.rollout
    if rollout.engine == "torch":
        return engine_weights(config, memory.parameters)
    if rollout.vllm.placement == "server":
        return 0.0
    return ENGINE_RESERVE_GIB + (0.0 if rollout.vllm.sleep else engine_weights(config, memory.parameters))


def _longest(config: Config) -> int:
    """Tokens of the longest sequence, which is never divided."""
    return config.task.max_prompt_tokens + config.task.max_response_tokens + config.turns.most_observed


def _rounded(tokens: int) -> int:
    return -(-tokens // STEP_TOKENS) * STEP_TOKENS


def _most(config: Config) -> int:
    """Tokens of a mini-batch of one process in multiples of STEP_TOKENS, or MOST_TOKENS."""
    algorithm, trainer = config.algorithm, config.trainer
    sequences = algorithm.minibatch_prompts * algorithm.samples_per_prompt / (trainer.devices * trainer.num_nodes)
    return min(MOST_TOKENS, max(_rounded(int(sequences * _longest(config))), STEP_TOKENS))


def _full_cache(config: Config) -> float:
    """GiB of keys and values, on each GPU of an engine, of all the sequences that it decodes at once."""
    sizes = architecture(config.policy)
    of_token = cache_bytes(sizes["num_hidden_layers"], sizes["num_key_value_heads"], head_width(sizes))
    return config.rollout.max_batch_size * _longest(config) * of_token / config.rollout.vllm.tensor_parallel / GIB
