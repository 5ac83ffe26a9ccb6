"""The config of `python -m dapo_lit.launch_slurm`: a run's config, and the machines that it gets."""

from typing import Annotated

from pydantic import Field, PositiveInt

from dapo_lit.config.run import Config
from dapo_lit.config.sections import Count, Section


class Nodes(Section):
    train: PositiveInt
    """Machines that train."""
    sample: Count
    """Machines of vLLM servers; 0: the engine is in the trainer's processes."""
    gpus: Count
    """GPUs of a machine; 0: none, one process and one server a machine."""
    server_gpus: PositiveInt
    """GPUs that one server spans."""


class Slurm(Section):
    script: str
    """Where the job's script is written."""
    submit: bool
    """Submit it with sbatch."""
    time: str
    """Limit of the job, as sbatch takes it."""
    notice_s: PositiveInt
    """Seconds before the limit at which the run saves and requeues its job; longer than a rollout step."""
    cpus_per_process: PositiveInt
    partition: str | None
    account: str | None
    setup: str
    """Shell commands before anything else on every machine, such as `module load cuda`."""
    health_s: PositiveInt
    """Seconds for all servers to answer."""
    port: Annotated[int, Field(gt=1023, lt=65000)]
    """Of the first server of a machine; the next ones follow."""


class LaunchConfig(Config):
    nodes: Nodes
    slurm: Slurm
