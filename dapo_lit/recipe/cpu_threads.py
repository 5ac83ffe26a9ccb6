"""`trainer.cpu.auto`: measures how many threads are fastest on this machine before the run starts.

A small step is sampled and trained on with one thread, two, four and so on; the fastest number is written into the
run's config, where a resumed run reads it. Tiny models are fastest with one thread, because threads would synchronise
too often. The dtype is not chosen here: it changes learning, since small updates are lost in bfloat16 weights.
"""

import os
import time

import numpy as np
import torch
from transformers import PreTrainedModel

from dapo_lit.config import Config
from dapo_lit.engines.protocol import SampleRequest, Sampling
from dapo_lit.engines.samples import SampleKey, token_ids
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.policy.attention import layout, packed_hidden
from dapo_lit.policy.head import token_loss

PROMPT, RESPONSE = 16, 16
ENOUGH_S = 0.5
"""Rows are added to the probe step until it takes at least this many seconds."""
MOST_ROWS = 128
REPEATS = 3


def is_measured(config: Config) -> bool:
    return bool(config.trainer.cpu.auto) and config.trainer.accelerator == "cpu"


def with_threads(config: Config, threads: int) -> Config:
    return config.model_copy(update={"trainer": config.trainer.model_copy(update={"threads": threads})})


def measure(model: PreTrainedModel, cores: int | None = None) -> dict[int, float]:
    """Seconds of a small step by number of threads, best of three; restores torch's number of threads.

    Neither changes the weights nor leaves gradients.
    """
    before, cores = torch.get_num_threads(), cores or os.cpu_count() or 1
    numbers = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < cores] + [cores]
    engine = TorchEngine(model.config, eos_ids=[], dtype=model.dtype, max_batch_size=MOST_ROWS)
    engine.sync_weights(model.state_dict().items(), version=0)
    try:
        torch.set_num_threads(1)
        rows = 4
        while _small_step(model, engine, rows) < ENOUGH_S and rows < MOST_ROWS:
            rows *= 2
        found = {}
        for threads in numbers:
            torch.set_num_threads(threads)
            found[threads] = min(_small_step(model, engine, rows) for _ in range(REPEATS))
        return found
    finally:
        torch.set_num_threads(before)
        engine.close()


def fastest(seconds: dict[int, float]) -> int:
    """The fastest number of threads; within 5 %, the smaller."""
    least = min(seconds.values())
    return min(threads for threads, took in seconds.items() if took <= 1.05 * least)


def _small_step(model: PreTrainedModel, engine: TorchEngine, rows: int) -> float:
    """Seconds to sample `rows` short responses and compute their gradient."""
    started = time.perf_counter()
    prompt = token_ids(range(PROMPT))
    requests = [SampleRequest(SampleKey(0, "small", 0, row), prompt) for row in range(rows)]
    samples = list(engine.generate(requests, Sampling(RESPONSE)))
    ids = torch.from_numpy(np.concatenate([ids for s in samples for ids in (prompt, s.response_ids)], dtype=np.int64))
    with torch.enable_grad():
        hidden = packed_hidden(model, ids, layout([PROMPT + RESPONSE] * rows))
        head = model.get_output_embeddings().weight
        loss, _, _ = token_loss(hidden, head, ids.roll(-1), lambda logprobs, part: -logprobs, temperature=1.0)
        loss.backward()
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - started
