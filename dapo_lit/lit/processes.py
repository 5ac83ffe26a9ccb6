"""The processes of a run: started here on one machine, or by torchrun or srun, and joined to one group.

The group exists before anything is read or written, so that only rank 0 opens the run's folder and broadcasts what it
found. Lightning uses the group as it is.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import SLURMEnvironment
from torch.distributed.rendezvous import rendezvous

from ablations.errors import DamagedError
from dapo_lit.build.models import uses_gpu
from dapo_lit.config import ConfigError
from dapo_lit.config.trainer import Trainer
from dapo_lit.preflight.machine import check_devices
from dapo_lit.ranks import LostRankError, Ranks
from dapo_lit.ranks.open_files import allow_files
from dapo_lit.ranks.watch import STARTED_BY, RankWatch
from dapo_lit.runs.checkpoint_files import damage_reason
from dapo_lit.runs.run_folder import RunFolder

Child = subprocess.Popen[bytes]
"""A process that rank 0 started."""
END_S = 5.0


@dataclass(frozen=True)
class Place:
    """This process's place among the processes of the run."""

    rank: int
    local_rank: int
    size: int


@dataclass(frozen=True)
class StartPoint:
    """The folder that a run writes to, and the checkpoint that it continues from (None: it starts)."""

    folder: RunFolder
    checkpoint: Path | None
    day: date | None = None
    """The date in prompts whose chat template writes one; None: today."""


class RunStart:
    """Rank 0 broadcasts once where the run starts, or None if there is nothing to do."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._sent = False

    def broadcast(self, start: StartPoint | None) -> None:
        if not self._sent:
            self._sent = True
            self.ranks.first(lambda: start)

    def received(self) -> StartPoint | None:
        """The start for the other ranks, after they have taken part in checks of the checkpoints that rank 0 names."""
        while isinstance(found := self.ranks.first(lambda: None), Path):
            # Rank 0 has the same error, and broadcasts None.
            with suppress(OSError, DamagedError):
                damage_reason(found, self.ranks)
        return found


def place_from_outside() -> Place | None:
    """The place that torchrun or srun put into the environment; None if neither started this process."""
    if SLURMEnvironment.detect() and int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        slurm = SLURMEnvironment(auto_requeue=False)
        os.environ.setdefault("MASTER_ADDR", slurm.main_address)
        os.environ.setdefault("MASTER_PORT", str(slurm.main_port))
        os.environ["RANK"], os.environ["LOCAL_RANK"] = str(slurm.global_rank()), str(slurm.local_rank())
        os.environ["WORLD_SIZE"], os.environ["GROUP_RANK"] = str(slurm.world_size()), str(slurm.node_rank())
    if "RANK" in os.environ and "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return Place(*(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
    return None


def check_address() -> None:
    """Raises ConfigError: this machine cannot find the one of the first rank, for which torch would look for hours."""
    name = os.environ.get("MASTER_ADDR")
    try:
        socket.getaddrinfo(name, 0)  # without a name: torch says which variable is missing
    except OSError as error:
        raise ConfigError(
            f"MASTER_ADDR={name}, the machine of the first rank, is not known to this one ({error.strerror}): set "
            "MASTER_ADDR to a name or address that every machine of the run knows"
        ) from None


STARTED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", STARTED_BY)
"""Environment variables that `start_others` sets."""


@contextmanager
def joined(settings: Trainer) -> Iterator[Ranks]:
    """Joins the processes of the run to one group.

    Without torchrun or srun, starts the other processes of this machine with the same command line, and ends them if
    this one fails.
    """
    if uses_gpu(settings):
        check_devices(settings, torch.cuda.device_count())
    if settings.strategy == "single":
        yield Ranks()
        return
    allow_files(settings.devices * settings.num_nodes)
    place, children = place_from_outside(), list[Child]()
    has_starter = place is not None and STARTED_BY not in os.environ
    size = settings.devices * settings.num_nodes
    if place is None:
        if settings.num_nodes > 1:
            raise ConfigError(
                f"trainer.num_nodes={settings.num_nodes}, but only this process was started; start one per device "
                "with torchrun or srun (docs/scaling.md)"
            )
        place, children = start_others(size)
    if place.size != size:
        raise ConfigError(
            f"{place.size} processes were started, but trainer.devices x trainer.num_nodes = {settings.devices} x "
            f"{settings.num_nodes}; make them agree"
        )
    watch = RankWatch(place.rank, place.size, children, has_starter)
    try:
        yield from _in_group(place, settings, watch, children)
    finally:
        watch.close()
        if children:  # the next run of this process starts its own
            for name in STARTED:
                os.environ.pop(name, None)
    failed = [code for child in children if (code := child.wait())]
    if failed:
        raise RuntimeError(f"{len(failed)} of the processes of this run failed")


def end(children: Sequence[Child]) -> None:
    """Ends processes, those that are busy after END_S seconds by force: without this rank none can save its part."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + END_S
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _in_group(place: Place, settings: Trainer, watch: RankWatch, children: Sequence[Child]) -> Iterator[Ranks]:
    """Makes the process group, and takes it down together; if this rank fails, the processes it started are ended."""
    on_gpu = uses_gpu(settings)
    timeout = timedelta(minutes=settings.timeout_min)
    check_address()
    try:
        if on_gpu:
            torch.cuda.set_device(place.local_rank)
        store, rank, size = next(rendezvous("env://", place.rank, place.size, timeout=timeout))
        # Objects are exchanged on the CPU, those of a sharded checkpoint over this group.
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        # torchrun starts ranks again with the store that they had, and what it knows of those before.
        start = [os.urandom(8).hex()]
        dist.broadcast_object_list(start, device=torch.device("cpu"))
        watch.joined(dist.PrefixStore(start[0], store))
        group = dist.new_group(backend="gloo", timeout=timeout) if on_gpu else None
        sampling = dist.new_group(backend="gloo", timeout=timeout)
        with lost_rank_named(watch.lost):
            yield Ranks(rank, size, group, sampling, lost=watch.lost)
            dist.barrier()
    except SystemExit:  # every rank was asked to stop
        dist.barrier()
        raise
    except BaseException:
        end(children)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def lost_rank_named(lost: Callable[[], str | None]) -> Iterator[None]:
    """Replaces the error of a collective, which is about sockets, by one that names the rank that was lost."""
    try:
        yield
    except LostRankError:
        raise
    except RuntimeError as error:
        if reason := lost():
            raise LostRankError(f"{reason}; continue with resume=true") from error
        raise


def start_others(size: int) -> tuple[Place, list[Child]]:
    """Runs this command line again for ranks 1 to size - 1 on this machine; this process becomes rank 0."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    shared[STARTED_BY] = str(os.getpid())
    module = sys.modules["__main__"].__spec__
    assert module is not None
    name = module.name.removesuffix(".__main__")
    children = [
        subprocess.Popen(
            [sys.executable, "-m", name, *sys.argv[1:]],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(1, size)
    ]
    os.environ.update(shared, RANK="0", LOCAL_RANK="0")
    return Place(0, 0, size), children
