"""Part e: whole runs with the torch sampler, three steps, saved, resumed, repeated; and a bf16 update against float64.

A repeated run must give the same rows bit for bit, and so must one that was saved after two steps and resumed.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from head_loss import head_loss
from part import DEVICE, ON_GPU, Report, options, time_left
from runs import learned, rows, train
from transformers import AutoModelForCausalLM, Qwen2Config

from dapo_lit.policy.attention import layout, packed_hidden
from dapo_lit.policy.head import Head

SMALL = ("algorithm.num_prompts=6", "algorithm.minibatch_prompts=3", "evaluation.samples=1", "evaluation.every=0")


def compared(folder: Path, *overrides: str) -> dict[str, Any]:
    """Three runs of three steps: whole, again, and interrupted after two."""
    common = (*overrides, "trainer.checkpoint_every=1")
    for name in ("whole", "again"):
        train(folder / name, *common, "budget.steps=3")
    train(folder / "resumed", *common, "budget.steps=2")
    train(folder / "resumed", *common, "budget.steps=3", "resume=true")
    whole, again, resumed = ([learned(row) for row in rows(folder / n)] for n in ("whole", "again", "resumed"))
    last = rows(folder / "whole")[-1]
    apart = [key for key in whole[-1] if whole[-1][key] != resumed[-1][key]]
    return {
        "repeats": whole == again,
        "resumes": whole[-1] == resumed[-1],
        "differs_in": apart,
        "step_s": last["time/generate_s"] + last["time/score_s"] + last["time/train_s"],
        "tokens_per_s": last["perf/tokens_per_s"],
        "peak_gb": last["memory/peak_gb"],
    }


def update_errors() -> dict[str, float]:
    """Relative error of the gradient of a mini-batch in bf16 and float32 against float64, on the same weights."""
    config = Qwen2Config(
        vocab_size=4096, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    weights = AutoModelForCausalLM.from_config(config).state_dict()
    lengths = [700, 300, 40, 900] if ON_GPU else [70, 30, 4, 90]
    ids = torch.randint(0, 4096, (sum(lengths),))
    slopes = torch.randn(sum(lengths) - 1)
    found: dict[str, torch.Tensor] = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_config(config)
        model.load_state_dict({n: t.to(torch.bfloat16).to(t.dtype) for n, t in weights.items()})
        model = model.to(DEVICE, dtype).eval()
        on = ids.to(DEVICE)
        of = slopes.to(DEVICE)
        hidden = packed_hidden(model, on, layout(lengths, device=DEVICE))[:-1]
        loss, _ = head_loss(hidden, Head.of(model), on[1:], lambda new, part, of=of: new * of[part])
        loss.backward()
        found[str(dtype)] = torch.cat([p.grad.flatten().double().cpu() for p in model.parameters()])
    exact = found.pop("torch.float64")
    return {name: float((g - exact).norm() / exact.norm()) for name, g in found.items()}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--smollm2", default="models/smollm2_135m", help="folder of SmolLM2-135M; skipped if absent")
    args = parser.parse_args()
    cases = {"four_sums": ("+experiment=four_sums", *SMALL)}
    model = Path(args.smollm2).absolute()
    if not args.tiny:
        cases["chain_sum"] = ("+experiment=dapo", "evaluation.every=0")
        if (model / "config.json").exists():
            cases["smollm2"] = ("+experiment=smollm2_arithmetic", f"policy.path={model}", "evaluation.every=0")
    report = Report("e_end_to_end", args, ["run", "repeats bit for bit", "resumes bit for bit", "s a step", "peak GB"])
    equal = True
    for name, overrides in cases.items():
        if not time_left(args):
            break
        with tempfile.TemporaryDirectory() as folder:
            of = compared(Path(folder), *overrides)
        equal &= of["repeats"] and of["resumes"]
        report.add(name, of, str(of["repeats"]), str(of["resumes"]), f"{of['step_s']:.2f}", f"{of['peak_gb']:.2f}")
    for name, error in update_errors().items():
        report.add(f"gradient in {name}: error", error, f"{error:.1e}", "", "", "")
    report.close()
    if not equal:
        raise SystemExit("a run was not repeated bit for bit")


if __name__ == "__main__":
    main()
