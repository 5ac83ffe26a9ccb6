"""Part c: the head with DAPO's loss at a vocabulary of 152k, by the number of rows in a chunk: ms, memory, error.

Each number of rows eager, and with its arithmetic compiled as a run has it (`trainer.compile`).

The roofline of one pass is three matrix products (2 tokens x vocabulary x hidden operations each) at the rate of a
large product. TRL's and Liger's heads, and plain torch, are in benchmarks/head.py.
"""

from collections.abc import Callable
from itertools import product
from unittest import mock

import torch
from head import Problem
from head_loss import head_loss
from part import DEVICE, ON_GPU, Report, milliseconds, options, peak_bytes, time_left

from dapo_lit.policy import head
from dapo_lit.policy.head import Head, chunk_rows


def product_rate(size: int, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product."""
    a, b = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
    return 2 * size**3 / milliseconds(lambda: a @ b, 5) * 1e3


def step(problem: Problem, compiles: bool) -> Callable[[], torch.Tensor]:
    def once() -> torch.Tensor:
        problem.hidden.grad = problem.weight.grad = None
        loss, logprobs = head_loss(
            problem.hidden, Head(problem.weight), problem.targets, problem.of_tokens, compiles=compiles
        )
        loss.backward()
        return logprobs

    return once


def main() -> None:
    args = options(__doc__).parse_args()
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    vocabulary, hidden = (4096, 64) if args.tiny else (151_936, 3584 if ON_GPU else 896)
    sizes = [256] if args.tiny else [16384, 4096, 65536] if ON_GPU else [1024]
    # First what is chosen, then what may be better, at last what is known to be slow.
    chosen = chunk_rows(vocabulary, DEVICE)
    chunks = [64, 256, 27] if args.tiny else [2048, 8192, 4096, 1024, 512, 256] if ON_GPU else [512, 256, 27]
    chunks = [chosen, *(chunk for chunk in chunks if chunk != chosen)]
    header = ["tokens, rows a chunk", "ms", "three products, ms", "share", "peak GB", "log-probs, from the first row's"]
    report, peak = Report("c_head", args, header), product_rate(512 if args.tiny else 4096, dtype)
    problems, references = dict[int, Problem](), dict[int, torch.Tensor]()
    # A dry run walks through the compiled way without generating code, for which a machine may have no compiler.
    torch.compiler.set_stance("force_eager" if args.tiny else "default")
    for chunk, tokens, compiles in product(chunks, sizes, (True, False)):
        if chunk > max(tokens, chosen) or not time_left(args):
            continue
        if tokens not in problems:
            problems[tokens] = Problem(tokens, vocabulary, hidden, dtype, DEVICE)
        problem = problems[tokens]
        problem.old = problem.noise - 5.0
        with mock.patch.object(head, "chunk_rows", lambda *_, chunk=chunk: chunk):
            once = step(problem, compiles)
            once()  # Compiles, which is no part of time and memory.
            memory, ms = peak_bytes(once), milliseconds(once, 2 if args.tiny else args.repeats)
            logprobs = once().detach().clone()
        apart = float((logprobs - references.setdefault(tokens, logprobs)).abs().max())
        floor = 3 * 2 * tokens * vocabulary * hidden / peak * 1e3
        found = {"ms": ms, "peak_bytes": memory, "floor_ms": floor, "apart": apart, "compiled": compiles}
        gb = "" if memory is None else f"{memory / 1e9:.2f}"
        cells = (f"{ms:.1f}", f"{floor:.1f}", f"{floor / ms:.2f}", gb, f"{apart:.1e}")
        name = f"{tokens:,}, {chunk:,}{' (chosen)' if chunk == chosen else ''}{', compiled' if compiles else ''}"
        report.add(name, found, *cells)
    torch.compiler.set_stance("default")
    report.close()


if __name__ == "__main__":
    main()
