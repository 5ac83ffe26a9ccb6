"""verl's own logger and metric functions write a log; `report --from verl` reads it. No training: verl needs GPUs."""

import json

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics, compute_throughout_metrics, compute_timing_metrics
from verl.utils.tracking import Tracking

from ablations.read.foreign import import_runs
from ablations.read.runs import load


def batch(seed: int, step: int, share: float) -> DataProto:
    """16 responses of at most 8 tokens, a share of them right."""
    noise = torch.Generator().manual_seed(100 * seed + step)
    lengths = torch.randint(2, 9, (16, 1), generator=noise)
    mask = (torch.arange(8) < lengths).long()
    scores = mask * 0.0
    right = (torch.rand(16, generator=noise) < share).float() * 2 - 1
    scores[torch.arange(16), lengths[:, 0] - 1] = right
    fields = {
        "prompts": torch.ones(16, 4, dtype=torch.long),
        "responses": torch.ones(16, 8, dtype=torch.long),
        "attention_mask": torch.cat([torch.ones(16, 4, dtype=torch.long), mask], 1),
        "response_mask": mask,
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "advantages": scores,
        "returns": scores,
    }
    data = DataProto(TensorDict(fields, batch_size=16))
    data.meta_info["global_token_num"] = (lengths[:, 0] + 4).tolist()
    return data


def test_a_log_of_verl_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", str(tmp_path / "logs"))
    for arm, gain in (("grpo", 0.05), ("dapo", 0.1)):
        for seed in range(3):
            logger = Tracking("sums", f"{arm}_seed_{seed}", default_backend=["file"], config={})
            for step in range(1, 7):
                data, timing = batch(seed, step, 0.2 + gain * step), {"step": 2.0, "gen": 1.5}
                row = compute_data_metrics(data, use_critic=False) | compute_timing_metrics(data, timing)
                row |= compute_throughout_metrics(data, timing, n_gpus=1)
                row |= {"actor/entropy": 0.5 - 0.01 * step, "actor/pg_clipfrac": 0.02, "actor/grad_norm": 0.3}
                row["val-core/sums/acc/mean@4"] = 0.2 + gain * step
                logger.log(row, step)
    metric, _, left_out = import_runs("verl", [tmp_path / "logs"], tmp_path / "out", "val-core/sums/acc/mean@4")
    runs = load(tmp_path / "out")
    assert (metric, left_out) == ("eval/sums/avg@4", [])
    assert {(run.arm, run.seed) for run in runs} == {(arm, seed) for arm in ("grpo", "dapo") for seed in range(3)}
    run = runs.of("dapo")[0]
    written = [json.loads(line)["data"] for line in (tmp_path / "logs/sums/dapo_seed_0.jsonl").read_text().splitlines()]
    for ours, theirs in (
        ("rollout/reward", "critic/score/mean"),
        ("rollout/length_mean", "response_length/mean"),
        ("rollout/truncated_frac", "response_length/clip_ratio"),
    ):
        assert run.series(ours).to_list() == [torch.tensor(row[theirs]).item() for row in written]
    assert run.series("wall_s").to_list() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert run.series("tokens_generated").iloc[-1] == sum(row["perf/total_num_tokens"] for row in written)
