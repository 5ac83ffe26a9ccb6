"""Prints the shell command of a vLLM server at $HOST:$PORT for a run, and writes the folder that it starts from.

    python docs/examples/slurm/serve_command.py vllm 8 +experiment=qwen2_5_7b_dapo_math \
        rollout.vllm.placement=server rollout.vllm.server.folder=/shared/servers

Arguments: vLLM's program, the number of servers, and the overrides of the run. The server asks for the token
VLLM_API_KEY, which trainer and servers have in their environment.
"""

import sys

from dapo_lit.build.components import RunComponents
from dapo_lit.build.engine import server_settings
from dapo_lit.cli.command import compose, exit_code_of
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.engines.vllm_server.command import serve_command, write_config


def main() -> None:
    program, servers, *overrides = sys.argv[1:]
    urls = ",".join(f"http://server-{n}:1" for n in range(int(servers)))  # only their number matters here
    config = compose(*overrides, f"rollout.vllm.server.urls=[{urls}]")
    parts = RunComponents(config)
    model, dtype = ServedModel(parts.policy.config), parts.engine_dtype
    settings = server_settings(model.config, config.rollout, parts.longest_tokens)
    folder = write_config(model.config, dtype, settings.folder)
    print(serve_command(folder, dtype, settings, "$HOST", "$PORT").replace("vllm serve", f"{program} serve"))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
