"""Renders and submits the SLURM script of a run, started by dapo_lit/launch_slurm.py."""

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.config.launch import LaunchConfig, Nodes
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.engines.vllm_server.command import serve_command, write_config
from dapo_lit.recipe.engine import server_settings
from dapo_lit.recipe.parts import Parts

GUARD = " --middleware dapo_lit.engines.vllm_server.guard.TokenGuard"


def launch(config: LaunchConfig, overrides: list[str]) -> None:
    """Writes the script, and submits it if the config says so."""
    own = [o for o in overrides if not o.lstrip("+").startswith(("nodes.", "slurm."))]
    script = Path(config.slurm.script)
    script.write_text(render(config, own))
    script.chmod(0o755)
    print(f"script {script}")
    if config.slurm.submit:
        try:
            print(subprocess.run(["sbatch", str(script)], check=True, capture_output=True, text=True).stdout.strip())
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(f"sbatch {script}: {getattr(error, 'stderr', None) or error}") from None


def render(config: LaunchConfig, overrides: Sequence[str]) -> str:
    """The script of a run with these overrides.

    Raises:
        ConfigError: the run cannot be placed like this.
    """
    nodes, slurm = config.nodes, config.slurm
    placed = placement(config)
    run = placed_run(config, placed)
    template = Path(__file__).with_name("slurm_job.sh.jinja").read_text()
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    places = server_places(nodes, slurm.port)
    return environment.from_string(template).render(
        name=config.study_name,
        train=nodes.train,
        sample=nodes.sample,
        processes=max(nodes.gpus, 1),
        gpus=nodes.gpus,
        servers=len(places) if nodes.sample else 0,
        places=places,
        cpus=slurm.cpus_per_process,
        time=slurm.time,
        notice_s=slurm.notice_s,
        partition=slurm.partition,
        account=slurm.account,
        setup=slurm.setup,
        health_s=slurm.health_s,
        folder=shlex.quote(str(Path.cwd())),
        overrides=" ".join(map(shlex.quote, [*overrides, *placed])),
        server_folder=shlex.quote(str(run.rollout.vllm.server.folder)),
        command=shlex.quote(server_command(run, nodes)) if nodes.sample else "",
    )


def placement(config: LaunchConfig) -> list[str]:
    """The overrides that the machines decide."""
    nodes, devices = config.nodes, max(config.nodes.gpus, 1)
    found = [f"trainer.num_nodes={nodes.train}", f"trainer.devices={devices}"]
    found.append("resume=auto")  # after a requeue
    if nodes.sample:
        folder = config.rollout.vllm.server.folder or str(Path(config.runs_dir).absolute() / "servers")
        wait_s = max(config.rollout.vllm.server.wait_s, config.slurm.health_s)
        found += ["rollout.engine=vllm", "rollout.vllm.placement=server"]
        found += [f"rollout.vllm.server.folder={folder}", f"rollout.vllm.server.wait_s={wait_s:g}"]
    return found


def placed_run(config: LaunchConfig, placed: Sequence[str]) -> Config:
    """The run's config with these overrides, checked; the addresses of the servers are not known yet."""
    tree = config.model_dump(exclude={"nodes", "slurm"}, mode="json")
    urls = [f"http://node-{n}:{port}" for n in range(config.nodes.sample) for port, _ in server_places(config.nodes, 1)]
    for override in [*placed, f"rollout.vllm.server.urls={json.dumps(urls)}"]:
        key, _, value = override.partition("=")
        *path, last = key.split(".")
        section = tree
        for part in path:
            section = section[part]
        section[last] = json.loads(value) if value[:1] in "[0123456789" else value
    return parse(tree)


def server_places(nodes: Nodes, port: int) -> list[tuple[int, str]]:
    """Port and GPUs of each server of a machine.

    Raises:
        ConfigError: servers do not divide the GPUs of a machine.
    """
    if nodes.gpus == 0:
        return [(port, "none")]
    if nodes.gpus % nodes.server_gpus:
        raise ConfigError(f"nodes.server_gpus={nodes.server_gpus} does not divide nodes.gpus={nodes.gpus}")
    firsts = range(0, nodes.gpus, nodes.server_gpus)
    return [(port + i, ",".join(map(str, range(g, g + nodes.server_gpus)))) for i, g in enumerate(firsts)]


def server_command(run: Config, nodes: Nodes) -> str:
    """The shell command of a server at $HOST and $PORT; writes the folder that it starts from."""
    parts = Parts(run)
    model = ServedModel(parts.policy.config)
    settings = server_settings(parts.policy.config, run.rollout, parts.longest_tokens)
    folder = write_config(model.config, parts.engine_dtype, settings.folder)
    command = serve_command(folder, parts.engine_dtype, settings, "$HOST", "$PORT")
    if GUARD not in command:  # the job makes a token, whatever this shell has
        command += GUARD
    return command + (f" --tensor-parallel-size {nodes.server_gpus}" if nodes.server_gpus > 1 else "")
