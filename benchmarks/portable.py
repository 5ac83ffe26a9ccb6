"""Which arithmetic gives the same bits on another processor: digests of its parts, in three settings of the libraries.

    python benchmarks/portable.py --out benchmarks/results/portable.json

Each setting is a process of its own, because libraries choose their kernels when they are loaded. The results hold a
row a processor; a run on another one adds its row. A part whose digests are equal in all rows of a setting is portable
in it. tests/pages/test_portable.py compares the machine it runs on with the row of its processor.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SETTINGS = {
    "native": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    # MKL promises the same bits on every processor for this mode only.
    "compatible": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
ROWS, WIDTH, HIDDEN = 768, 128, 384
"""Tokens of a micro-batch, and sizes of the toy policies' layers."""


def parts() -> dict[str, Callable[[], object]]:
    """Name -> a computation on fixed inputs, whose result is digested."""
    import torch
    import torch.nn.functional as F

    # From integers, so that no library draws the inputs; in (-2, 2).
    def numbers(*shape: int) -> torch.Tensor:
        count = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
        return (((count * 2654435761) % 65521).double() / 65521 * 4 - 2).float().reshape(shape)

    x, w, q = numbers(ROWS, WIDTH), numbers(WIDTH, HIDDEN), numbers(4, 8, 96, 16)
    positive = x.abs() + 0.1

    def attention_with_gradient() -> tuple[torch.Tensor, ...]:
        inputs = [(q + shift).requires_grad_() for shift in (0.0, 0.1, 0.2)]
        F.scaled_dot_product_attention(*inputs, is_causal=True).sum().backward()
        return tuple(each.grad for each in inputs if each.grad is not None)

    def adam() -> torch.Tensor:
        weights = torch.nn.Parameter(w.clone())
        optimizer = torch.optim.AdamW([weights], lr=1e-2)
        for step in range(3):
            weights.grad = w.cos() + step
            optimizer.step()
        return weights.detach()

    return {
        "product": lambda: x @ w,
        "product, long sum": lambda: x.T @ numbers(ROWS, WIDTH),
        "product of few rows": lambda: x[:8] @ w,
        "batched product": lambda: torch.bmm(numbers(8, 96, 64), numbers(8, 64, 96)),
        "exp": x.exp,
        "log": positive.log,
        "tanh": x.tanh,
        "silu": lambda: F.silu(x),
        "rsqrt": positive.rsqrt,
        "sin and cos": lambda: (x.sin(), x.cos()),
        "sum of a row": lambda: x.sum(-1),
        "sum": x.sum,
        "sum in float64": lambda: x.double().sum(),
        "softmax": lambda: x.softmax(-1),
        "log-softmax": lambda: x.log_softmax(-1),
        "attention": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "attention's gradient": attention_with_gradient,
        "AdamW": adam,
    }


def digests() -> dict[str, str]:
    """Of each part, 12 hexadecimal digits of the SHA-256 of its results' bytes."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for name, compute in parts().items():
        result, digest = compute(), hashlib.sha256()
        for tensor in result if isinstance(result, tuple) else (result,):
            digest.update(tensor.detach().contiguous().numpy().tobytes())  # type: ignore[attr-defined]
        found[name] = digest.hexdigest()[:12]
    return found


def measured(setting: str) -> dict[str, object]:
    """Digests of one setting, from a process of its own, with its seconds for a hundred products."""
    command = [sys.executable, __file__, "--one"]
    # What is set here already would make another setting of it.
    kept = {key: value for key, value in os.environ.items() if key not in SETTINGS["avx2"]}
    done = subprocess.run(
        command, env=kept | SETTINGS[setting], capture_output=True, text=True, encoding="utf-8", check=True
    )
    return dict(json.loads(done.stdout))


def one() -> dict[str, object]:
    import torch

    found, x = digests(), torch.ones(ROWS, WIDTH)
    start = time.process_time()
    for _ in range(100):
        x @ x.T
    return {"digests": found, "product_ms": round((time.process_time() - start) * 10, 2)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--out", type=Path)
    options.add_argument("--one", action="store_true", help="this process's setting only, as JSON")
    chosen = options.parse_args()
    if chosen.one:
        print(json.dumps(one()))
        return
    from dapo_lit.runs.run_folder import processor

    row = {setting: measured(setting) for setting in SETTINGS}
    if chosen.out:
        rows = json.loads(chosen.out.read_text(encoding="utf-8")) if chosen.out.is_file() else {}
        chosen.out.write_text(json.dumps(rows | {processor(): row}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
