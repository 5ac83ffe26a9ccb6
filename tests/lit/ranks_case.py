"""Rollout steps and updates on several gloo processes; `python -m lit.ranks_case OUT` writes what each rank came to.

One process imports, then forks the ranks of every world size: the imports cost more than the runs.
"""

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from dapo_lit.build.components import RunComponents
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, parse
from dapo_lit.lit.callbacks import Checkpoints, Recorder
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.processes import joined
from dapo_lit.policy.sharding import full_tensors
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.step.batch import RolloutStep

SIZES = (1, 2)
COMMON = (
    "trainer=fsdp", "trainer.accelerator=cpu", "trainer.sharding.dtype=null",
    "trainer.threads=1", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3", "budget.steps=2",
    "evaluation.samples=2", "logger.progress=none", "algorithm.dynamic_sampling.carry_over=none",
    "trainer.micro_batch_tokens=100", "task.max_response_tokens=16",
)  # fmt: skip
SHRUNKEN = (
    "policy=micro", "policy.path=null", "task=four_sums", "reward=number", "trainer.num_nodes=1",
    "algorithm.overlong.cache_tokens=5", "rollout=torch", "algorithm.samples_per_prompt=4",
    "algorithm.optimizer.lr=0.001", "task.num_heldout=4",
    "evaluation.benchmarks=[]", "evaluation.every=0", "logger.rollouts_every=1",
)  # fmt: skip
"""What makes the experiment at the paper's size small; all its other keys stay."""
BESIDE = ("critic", "warmup", "lora")
"""Cases with more than the policy: a value model and a reference, sharded too, from the start or after steps of the
value model alone; adapters, with the base as reference."""
ADAPTERS = (
    "policy.lora={rank: 4, alpha: 32}", "policy.architecture.num_attention_heads=6",
    "policy.architecture.num_key_value_heads=1",
)  # fmt: skip
"""Keys have a bias of 8 values, so that a shard has fewer than a fingerprint takes."""
CASES = {
    "tied": ("+experiment=four_sums",),
    "ahead": ("+experiment=four_sums", "rollout.steps_ahead=2", "budget.steps=4"),
    "critic": (
        "+experiment=four_sums", "algorithm=ppo", "algorithm.critic.warmup_steps=0",
        "algorithm.kl={beta: 0.1, where: loss, estimator: k2}", "policy.architecture.tie_word_embeddings=false",
        "trainer.activation_checkpointing=full",
    ),
    "warmup": ("+experiment=four_sums", "algorithm=ppo", "algorithm.critic.warmup_steps=2"),
    "saved": ("+experiment=four_sums", "replay.record=[1]"),
    "lora": (
        "+experiment=four_sums",
        *ADAPTERS,
        "algorithm.kl={beta: 0.1, where: loss, estimator: k2}",
    ),
    "verl": (
        "+experiment=verl_qwen2_5_32b",
        *SHRUNKEN,
        "algorithm.dynamic_sampling.request_groups=18",
        "algorithm.dynamic_sampling.on_exhausted=train_smaller",
    ),
}  # fmt: skip


def compose(*overrides: str) -> Config:
    return parse(resolved(composed_tree(overrides)))


def whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A copy of each tensor, put together from the shards of all ranks; one exchange is quicker than one each."""
    own = {
        name: (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()
        for name, tensor in tensors.items()
    }
    sharded = {name for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    if not sharded:
        return own
    assert all(tensors[name].placements == (Shard(0),) for name in sharded)
    of_ranks: list[dict[str, torch.Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_ranks, {name: own[name] for name in sharded})
    return own | {name: torch.cat([of_rank[name] for of_rank in of_ranks]) for name in sharded}


class Probe(DAPOModule):
    """Records each step."""

    found: dict

    def training_step(self, batch: RolloutStep, batch_idx: int) -> None:
        assert batch.tokens is not None
        self.policy.eval()
        record = {"groups": [(g.step, g.index, g.problem.id) for g in batch.collected.accepted]}
        record["ids"] = [tuple(c.sample.response_ids.tolist()) for g in batch.collected.accepted for c in g.completions]
        super().training_step(batch, batch_idx)
        untimed = {k: v for k, v in self.step_metrics.items() if not k.startswith(("time/", "perf/"))}
        record["metrics"] = untimed
        record["collected"] = {k: v for k, v in batch.collected.metrics.items() if not k.startswith("time/")}
        record["weights"] = {name: tensor.detach().clone() for name, tensor in full_tensors(self.policy)}
        if self.critic is not None:
            of_critic = whole(dict(self.critic.named_parameters()))
            record["weights"] |= {f"critic.{name}": tensor for name, tensor in of_critic.items()}
        self.found[batch.step] = record


def case(out: Path, name: str, size: int, config: Config, checkpoint: Path | None = None) -> None:
    """Runs a case and writes every step's record; with a checkpoint it goes on from there for one step."""
    label = f"{name}_resumed" if checkpoint else name
    with joined(config.trainer) as ranks:
        parts, stop = RunComponents(config, ranks), StopSignal()
        folder = RunFolder(out / label / str(size), resumes=False)
        for sub in ("rollouts", "eval", "checkpoints"):
            (folder.path / sub).mkdir(parents=True, exist_ok=True)
        module = Probe(config, lambda: parts.policy, ranks, parts.fill)
        module.found, module.logs = {}, False
        datamodule = RolloutDataModule(config, parts, stop, ranks)
        rows: list[dict] = []
        recorder = Recorder(config, folder, None, ranks)
        evaluated = recorder._write

        def kept(datamodule, module, row, evaluates, **how):
            evaluated(datamodule, module, row, evaluates, **how)
            rows.append(dict(row))

        recorder._write = kept
        callbacks = [recorder, Checkpoints(config, folder, stop, ranks)]
        trainer = build_trainer(config, callbacks)
        trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=False)
        found = {"steps": module.found, "rows": rows, "base_fingerprint": module.base_fingerprint}
        torch.save(found, out / f"{label}_{size}_{ranks.rank}.pt")


def fork_ranks(size: int, name: str, work: Callable[[], None]) -> None:
    """Does `work` on `size` processes of one group, forked from this one: the imports cost more than the runs."""
    with socket.socket() as found:  # just before it is used: another test may take a free port at any time
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size))
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
                torch.set_num_threads(1)  # not before the fork: torch 2.11 cannot use its parent's pool of threads
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        sys.exit(f"{name}: the {size} ranks ended with {codes}")


def run_cases(out: Path, size: int, names: tuple[str, ...], resumes: int | None = None) -> None:
    """Runs cases on `size` ranks, from the checkpoints of `resumes` ranks if that is given."""
    for name in names:
        saved = out / name / str(resumes) / "checkpoints" / "step_000002.ckpt"
        overrides = [*COMMON, *CASES[name], f"trainer.devices={size}"]
        config = compose(*overrides, *(["budget.steps=3"] if resumes else []))  # once for all ranks
        fork_ranks(size, name, partial(case, out, name, size, config, saved if resumes else None))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for size in SIZES:
        run_cases(out, size, ("tied", "ahead", *BESIDE))
    run_cases(out, 1, ("saved",))
    run_cases(out, 2, ("verl",))
    run_cases(out, 4, ("tied",))
    run_cases(out, 1, BESIDE, resumes=2)
