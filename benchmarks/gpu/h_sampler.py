"""Part h: the torch sampler with its steps launched one by one, and as CUDA graphs (`rollout.torch.cuda_graphs`).

Twice as many requests as rows, so that rows leave and enter. `first` includes the captures. Afterwards both get other
weights and sample with the same keys: a graph that read the old weights would show in `log-probs apart`, up to the
first token that differs. On a CPU the second one has the fixed shapes only.
"""

from itertools import takewhile
from typing import Any

import torch
from measure import in_turns, median, seconds
from part import DEVICE, ON_GPU, finish, options, peak_bytes, time_left
from policies import SIZES
from sampler import EOS, make_prompts
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen2Config

from dapo_lit.engines.protocol import SampleRequest, Sampling
from dapo_lit.engines.samples import Sample, SampleKey
from dapo_lit.engines.torch_engine.engine import TorchEngine

QWEN_0_5B = {
    "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2,
}  # fmt: skip
PROMPT = 16


def config_of(size: str) -> PretrainedConfig:
    small = {"vocab_size": 64, "num_key_value_heads": 4, **SIZES[size]} if size in SIZES else QWEN_0_5B
    return Qwen2Config(max_position_embeddings=4096, tie_word_embeddings=True, **small)


def weights(config: PretrainedConfig, dtype: torch.dtype, seed: int) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).to(DEVICE)
    return list(model.state_dict().items())


def sampled(engine: TorchEngine, rows: int, limit: int, seed: int) -> list[Sample]:
    prompts = make_prompts(2 * rows, PROMPT, 64)
    requests = [SampleRequest(SampleKey(0, "p", 0, i), ids) for i, ids in enumerate(prompts)]
    found = list(engine.generate(requests, Sampling(limit, seed=seed)))
    engine.rest()
    return found


def apart(one: list[Sample], other: list[Sample]) -> tuple[float, float]:
    """The share of samples with the same tokens; the largest difference of log-probs up to the first that differs."""
    by_key, same, worst = {s.key: s for s in other}, 0, 0.0
    for sample in one:
        twin = by_key[sample.key]
        pairs = list(zip(sample.response_ids, twin.response_ids, strict=False))
        agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        same += sample.response_ids.tolist() == twin.response_ids.tolist()
        if agreed:
            gap = abs(sample.rollout_logprobs[:agreed] - twin.rollout_logprobs[:agreed]).max()
            worst = max(worst, float(gap))
    return same / len(one), worst


def compared(size: str, rows: int, limit: int, repeats: int) -> dict[str, Any]:
    config, dtype = config_of(size), torch.float32 if size in SIZES else torch.bfloat16
    engines = {
        name: TorchEngine(
            config, eos_ids=[EOS], device=DEVICE, dtype=dtype, max_batch_size=rows, cuda_graphs=name == "graphs"
        )
        for name in ("launched", "graphs")
    }
    found: dict[str, Any] = {}
    for name, engine in engines.items():
        engine.sync_weights(weights(config, dtype, seed=0), 0)
        found[f"{name}: first_s"] = seconds(lambda engine=engine: sampled(engine, rows, limit, 0))
        found[f"{name}: peak_bytes"] = peak_bytes(lambda engine=engine: sampled(engine, rows, limit, 0))
    counts: list[int] = []

    def once(engine: TorchEngine) -> float:
        """Tokens a second; the last token is on the host before it returns."""
        took = seconds(lambda: counts.append(sum(len(s.response_ids) for s in sampled(engine, rows, limit, 1))))
        return counts[-1] / took

    rates = in_turns({name: lambda engine=engine: once(engine) for name, engine in engines.items()}, 0, repeats)
    found |= {f"{name}: tokens_per_s": median(of) for name, of in rates.items()}
    for engine in engines.values():
        engine.sync_weights(weights(config, dtype, seed=1), 1)
    same, gap = apart(*(sampled(engine, rows, limit, 2) for engine in engines.values()))
    return found | {"same_samples": same, "logprobs_apart": gap, "dtype": str(dtype)}


def main() -> None:
    args = options(__doc__).parse_args()
    sizes = ["0.3M"] if args.tiny else ["0.3M", "7M", *(["0.5B"] if ON_GPU else [])]
    batches, limit = ([8], 24) if args.tiny else ([64, 512], 256)
    rows, results, wrong = [], {}, []
    for size in sizes:
        for batch in batches:
            if not time_left(args):
                continue
            name = f"{size}, {batch} rows"
            of = results[name] = compared(size, batch, limit, min(args.repeats, 3))
            launched, graphs = of["launched: tokens_per_s"], of["graphs: tokens_per_s"]
            memory = [of[f"{kind}: peak_bytes"] for kind in ("launched", "graphs")]
            rows.append(
                [
                    name,
                    f"{launched:,.0f}",
                    f"{graphs:,.0f} ({graphs / launched:.2f})",
                    f"{of['launched: first_s']:.2f}",
                    f"{of['graphs: first_s']:.2f}",
                    " / ".join("" if m is None else f"{m / 1e9:.2f}" for m in memory),
                    f"{of['same_samples']:.3f}",
                    f"{of['logprobs_apart']:.1e}",
                ]
            )
            if of["logprobs_apart"] > (1e-3 if size in SIZES else 0.2):
                wrong.append(name)
    header = [
        "response tokens a second",
        "launched one by one",
        "CUDA graphs (times as fast)",
        "first, launched, s",
        "first, graphs, s",
        "peak GB of both",
        "same samples",
        "log-probs apart",
    ]
    finish("h_sampler", args, header, rows, results)
    if wrong:
        raise SystemExit(f"graphs and launched steps sample from other distributions: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
