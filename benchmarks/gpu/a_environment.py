"""Part a: what the machine has, and whether everything that the other parts import can be imported.

make gpu-wheels                   # here: packages that a GPU machine without a network lacks, to build/gpu_wheels
make gpu PART=a WHEELS=build/gpu_wheels GPU_PYTHON=python3    # there: installs them and lists versions
"""

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from part import DEVICE, ON_GPU, Report, options

NEEDED = (
    *(
        "torch",
        "transformers",
        "lightning",
        "accelerate",
        "peft",
        "pandas",
        "pyarrow",
        "hydra",
        "omegaconf",
        "pydantic",
    ),
    *("sympy", "safetensors", "filelock", "aiohttp", "rich", "jinja2", "scipy", "gguf", "pytest"),
    *(("triton",) if ON_GPU else ()),
)
OPTIONAL = ("wandb", "math_verify", "trl", "liger_kernel", "vllm")


def importable(name: str) -> tuple[bool, str]:
    """Whether a module can be imported, and its version or the error."""
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"[:160]
    return True, str(getattr(module, "__version__", ""))


def works() -> dict[str, Any]:
    """One operation of each kind that the parts rely on: a product in bf16, float32 sums, a graph, fused AdamW."""
    found: dict[str, Any] = {}
    a = torch.randn(64, 64, device=DEVICE, dtype=torch.bfloat16)
    exact = a.double() @ a.double()
    found["mm_bf16_error"] = float(((a @ a).double() - exact).norm() / exact.norm())
    if ON_GPU:
        wide = torch.mm(a, a, out_dtype=torch.float32)
        found["mm_out_dtype_error"] = float((wide.double() - exact).norm() / exact.norm())
        more = torch.addmm(wide, a, a, out_dtype=torch.float32)
        found["addmm_out_dtype_error"] = float((more.double() - 2 * exact).norm() / exact.norm())
        graph, total = torch.cuda.CUDAGraph(), torch.zeros(1, device=DEVICE)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            total.add_(1)
        graph.replay()
        found["captured_sum"] = float(total)
    weight = torch.nn.Parameter(torch.ones(8, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], lr=0.1, fused=True).step()
    found["fused_adamw"] = float(weight[0].detach())
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    args = parser.parse_args()
    if args.wheels:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--find-links",
            str(args.wheels),
        ]
        subprocess.run([*pip, *map(str, sorted(args.wheels.glob("*.whl")))], check=True)
        importlib.invalidate_caches()
    report, missing = Report("a_environment", args, ["module", "there", "version"]), []
    for name in (*NEEDED, *OPTIONAL, "dapo_lit.lit.fit"):
        there, version = importable(name)
        if not there and name not in OPTIONAL:
            missing.append(name)
        said = "yes" if there else "no (optional)" if name in OPTIONAL else "NO"
        report.add(name, {"there": there, "version": version}, said, version)
    for name, value in works().items():
        report.add(f"operation: {name}", value, "yes", f"{value:.3g}")
    report.close()
    if missing:
        sys.exit(f"missing: {', '.join(missing)}")


if __name__ == "__main__":
    main()
