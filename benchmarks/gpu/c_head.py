"""Part c: the head with DAPO's loss at a vocabulary of 152k, by the number of rows in a chunk: ms, memory, error.

The roofline of one pass is three matrix products (2 tokens x vocabulary x hidden operations each) at the rate of a
large product. TRL's and Liger's heads, and plain torch, are in benchmarks/head.py.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from head import Problem
from head_loss import head_loss
from part import DEVICE, ON_GPU, finish, milliseconds, options, peak_bytes, time_left

from dapo_lit.policy import head
from dapo_lit.policy.head import Head, chunk_rows


def product_rate(size: int, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product."""
    a, b = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
    return 2 * size**3 / milliseconds(lambda: a @ b, 5) * 1e3


def step(problem: Problem) -> Callable[[], torch.Tensor]:
    def once() -> torch.Tensor:
        problem.hidden.grad = problem.weight.grad = None
        loss, logprobs = head_loss(problem.hidden, Head(problem.weight), problem.targets, problem.of_tokens)
        loss.backward()
        return logprobs

    return once


def main() -> None:
    args = options(__doc__).parse_args()
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    vocabulary, hidden = (4096, 64) if args.tiny else (151_936, 3584 if ON_GPU else 896)
    sizes = [256] if args.tiny else [4096, 16384, 65536] if ON_GPU else [1024]
    chunks = [27, 64, 256] if args.tiny else [27, 256, 512, 1024, 2048, 4096, 8192] if ON_GPU else [27, 256, 512]
    peak, rows, results = product_rate(512 if args.tiny else 4096, dtype), [], {}
    for tokens in sizes:
        problem = Problem(tokens, vocabulary, hidden, dtype, DEVICE)
        problem.old = problem.noise - 5.0
        floor = 3 * 2 * tokens * vocabulary * hidden / peak * 1e3
        reference: Any = None
        for chunk in chunks:
            if chunk > tokens or not time_left(args):
                continue
            with mock.patch.object(head, "chunk_rows", lambda *_, chunk=chunk: chunk):
                once = step(problem)
                memory, ms = peak_bytes(once), milliseconds(once, 2 if args.tiny else args.repeats)
                logprobs = once().detach().clone()
            reference = logprobs if reference is None else reference
            apart = float((logprobs - reference).abs().max())
            chosen = " (chosen)" if chunk == chunk_rows(vocabulary, DEVICE) else ""
            results[f"{tokens}, {chunk}"] = {"ms": ms, "peak_bytes": memory, "floor_ms": floor, "apart": apart}
            gb = "" if memory is None else f"{memory / 1e9:.2f}"
            rows.append(
                [
                    f"{tokens:,}",
                    f"{chunk:,}{chosen}",
                    f"{ms:.1f}",
                    f"{floor:.1f}",
                    f"{floor / ms:.2f}",
                    gb,
                    f"{apart:.1e}",
                ]
            )
    header = [
        "tokens",
        "rows a chunk",
        "ms",
        "three products, ms",
        "share",
        "peak GB",
        "log-probs, from the first row's",
    ]
    finish("c_head", args, header, rows, results)


if __name__ == "__main__":
    main()
