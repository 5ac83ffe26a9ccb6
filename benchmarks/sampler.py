"""Tokens a second: the torch sampler beside transformers' `generate`; same weights, same prompts, one run.

Two workloads for each batch size. `fixed`: nothing ends a response before the limit, so only the speed of a decode step
counts. `eos`: one id of a random model ends a response (lengths about geometric), so dropping finished rows counts too.
Only response tokens are counted. The samplers take turns, which goes first alternates, and the figure is the median of
the repeats. `generate` is asked for tokens alone; the torch sampler returns their log-probs as well. Left out: loading
weights, peak memory.

    OMP_NUM_THREADS=1 python benchmarks/sampler.py --out benchmarks/sampler.json
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from dapo_lit.rollout.engine import SampleRequest, Sampling
from dapo_lit.rollout.records import SampleKey
from dapo_lit.rollout.torch_engine import TorchEngine

EOS, PAD = 1, 0
GROUP = 16


def build_model(vocab_size: int) -> PreTrainedModel:
    """The shape of `policy=tiny` (0.3M parameters at the default vocabulary), randomly initialised."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def make_prompts(batch: int, tokens: int, vocab_size: int) -> list[tuple[int, ...]]:
    """One prompt a group of 16, all equally long; ids above the special ones."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(2, vocab_size, (-(-batch // GROUP), tokens), generator=generator).tolist()
    return [tuple(rows[i // GROUP]) for i in range(batch)]


def ours(engine: TorchEngine, prompts: list[tuple[int, ...]], limit: int, seed: int) -> int:
    """Response tokens sampled."""
    requests = [SampleRequest(SampleKey(seed, f"p{i // GROUP}", 0, i % GROUP), ids) for i, ids in enumerate(prompts)]
    return sum(len(sample.response_ids) for sample in engine.generate(requests, Sampling(limit)))


def hf_generate(model: PreTrainedModel, prompts: list[tuple[int, ...]], limit: int, seed: int, eos: int | None) -> int:
    """Response tokens sampled, without the padding after an EOS."""
    ids = torch.tensor(prompts)
    torch.manual_seed(seed)
    model.generation_config.eos_token_id = eos
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=limit,
            pad_token_id=PAD,
        )
    is_eos = (out[:, ids.shape[1] :] == (-1 if eos is None else eos)).long()
    return int((is_eos.cumsum(-1) - is_eos == 0).sum())


def tokens_per_s(samplers: dict[str, Callable[[int], int]], warmup: int, repeats: int) -> dict[str, list[float]]:
    """Runs the samplers in turns; each is called with the number of the repeat."""
    speeds: dict[str, list[float]] = {name: [] for name in samplers}
    for repeat in range(warmup + repeats):
        names = list(samplers)[:: 1 if repeat % 2 else -1]
        for name in names:
            start = time.perf_counter()
            count = samplers[name](repeat)
            elapsed = time.perf_counter() - start
            if repeat >= warmup:
                speeds[name].append(count / elapsed)
    return speeds


def measure(model: PreTrainedModel, workload: str, batch: int, args: argparse.Namespace) -> dict[str, object]:
    eos = EOS if workload == "eos" else None
    engine = TorchEngine(model.config, eos_ids=[] if eos is None else [eos], max_batch_size=batch)
    engine.sync_weights(model.state_dict().items(), version=0)
    prompts = make_prompts(batch, args.prompt_tokens, model.config.vocab_size)
    limit = args.response_tokens
    speeds = tokens_per_s(
        {
            "ours": lambda repeat: ours(engine, prompts, limit, repeat),
            "generate": lambda repeat: hf_generate(model, prompts, limit, repeat, eos),
        },
        args.warmup,
        args.repeats,
    )
    median = {name: statistics.median(values) for name, values in speeds.items()}
    return {"workload": workload, "batch": batch, "tokens_per_s": median, "repeats": speeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--workload", nargs="+", choices=["fixed", "eos"], default=["fixed", "eos"])
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--response-tokens", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file for the raw figures")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    model = build_model(args.vocab_size)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {args.threads} thread(s), median of {args.repeats}, response tokens a second")
    print(f"{'workload':>8} {'batch':>6} {'ours':>10} {'generate':>10} {'ratio':>6}")
    rows = []
    for workload in args.workload:
        for batch in args.batch:
            rows.append(measure(model, workload, batch, args))
            speed = rows[-1]["tokens_per_s"]
            assert isinstance(speed, dict)
            ratio = speed["ours"] / speed["generate"]
            print(
                f"{workload:>8} {batch:>6} {speed['ours']:>10,.0f} {speed['generate']:>10,.0f} {ratio:>6.2f}",
                flush=True,
            )
    if args.out:
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        settings = {name: value for name, value in vars(args).items() if name != "out"} | {"parameters": parameters}
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        record = {"settings": settings, "versions": versions, "machine": machine, "results": rows}
        args.out.write_text(json.dumps(record, indent=1) + "\n")
        print(f"raw figures: {args.out}")


if __name__ == "__main__":
    main()
