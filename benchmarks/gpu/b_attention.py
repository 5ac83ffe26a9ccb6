"""Part b: packed attention, forward and backward, against float64: error and time.

The function that training uses (on a GPU torch's variable-length kernel, elsewhere batches of similar length), with
grouped heads as they are and repeated, with a window, with shared prompts, at unequal lengths.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from part import DEVICE, ON_GPU, Report, milliseconds, options, rate, time_left

from dapo_lit.policy.attention import Layout, layout, packed_attention


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: Layout, window: int | None) -> torch.Tensor:
    """[T, heads, D] each -> [T, heads, D]."""
    query, key, value = (x.transpose(0, 1)[None] for x in (q, k, v))
    module = torch.nn.Module()
    return packed_attention(module, query, key, value, None, packed_layout=packed, sliding_window=window)[0][0]


Both = Callable[[list[torch.Tensor], torch.Tensor], list[torch.Tensor]]
"""(query, key and value, slope of the output) -> output and gradients, each [T, heads, D]."""


def by_head(both: Both, given: list[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
    """Like `both`, one head of the queries at a time.

    The scores of 28 heads of 16,384 tokens are 60 GB in float64, of one head 2 GB.
    """
    query, key, value = given
    repeats = query.shape[1] // key.shape[1]
    found = [torch.zeros_like(x) for x in (query, query, key, value)]
    for head in range(query.shape[1]):
        of, group = slice(head, head + 1), slice(head // repeats, head // repeats + 1)
        out, d_query, d_key, d_value = both([query[:, of], key[:, group], value[:, group]], grad[:, of])
        found[0][:, of], found[1][:, of] = out, d_query
        found[2][:, group] += d_key  # a key head has the gradients of all query heads that read it
        found[3][:, group] += d_value
    return found


def case(
    lengths: list[int],
    parents: list[int] | None,
    heads: int,
    key_heads: int,
    window: int | None,
    tiny: bool,
    repeats: int,
) -> dict[str, Any]:
    """Relative errors of output and gradients, and milliseconds of forward and backward."""
    dim, dtype = (16, torch.float32) if not ON_GPU else (128, torch.bfloat16)
    draw = torch.Generator(device=DEVICE).manual_seed(0)
    packed, total = layout(lengths, parents, device=DEVICE), sum(lengths)

    def tensor(count: int) -> torch.Tensor:
        return torch.randn(total, count, dim, generator=draw, device=DEVICE).to(dtype)

    given = [tensor(heads), tensor(key_heads), tensor(key_heads)]
    grad = tensor(heads)

    def both(inputs: list[torch.Tensor], slope: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = run(*leaves, packed, window)  # type: ignore[arg-type]
        return [out.detach(), *torch.autograd.grad(out, leaves, slope)]

    found = both(given, grad)
    exact = by_head(both, [x.double() for x in given], grad.double())
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
    grouped = milliseconds(lambda: both(given, grad), repeats)
    repeated = [given[0], *(x.repeat_interleave(heads // key_heads, dim=1) for x in given[1:])]
    whole = milliseconds(lambda: both(repeated, grad), repeats)
    pairs = sum(n * n / 2 for n in lengths)
    return {"errors": errors, "ms": grouped, "ms_repeated": whole, "operations": 3.5 * 4 * pairs * heads * dim}


def main() -> None:
    args = options(__doc__).parse_args()
    scale = 0.02 if args.tiny else 1.0
    draw = np.random.default_rng(0)
    tail = np.clip(draw.lognormal(6.5, 0.8, 24), 64, 8192) * scale
    uneven = [max(int(n), 2) for n in tail]
    prompts = [max(int(512 * scale), 2), *([max(int(700 * scale), 2)] * 8)]
    cases = {
        "uneven lengths, 28 heads, 4 key heads": (uneven, None, 28, 4, None),
        "uneven lengths, 14 heads, 2 key heads": (uneven, None, 14, 2, None),
        "one sequence": ([max(int(16384 * scale), 2)], None, 28, 4, None),
        "a window": (uneven, None, 28, 4, max(int(1024 * scale), 2)),
        "8 responses to a shared prompt": (prompts, [-1, *[0] * 8], 28, 4, None),
    }
    header = ["case", "errors: out, dq, dk, dv", "against float64", "ms", "ms, keys repeated", "rate"]
    report, limit, is_right = Report("b_attention", args, header), 2e-2 if ON_GPU else 1e-5, True
    for name, given in cases.items():
        if not time_left(args):
            break
        of = case(*given, args.tiny, 2 if args.tiny else args.repeats)
        right = max(of["errors"]) < limit
        is_right &= right
        errors = ", ".join(f"{e:.1e}" for e in of["errors"])
        speed = rate(0.0, of["operations"], of["ms"]).split(", ")[1]
        said = "right" if right else f"WRONG (above {limit:g})"
        report.add(name, of, errors, said, f"{of['ms']:.2f}", f"{of['ms_repeated']:.2f}", speed)
    report.close()
    if not is_right:
        raise SystemExit("attention is wrong")


if __name__ == "__main__":
    main()
