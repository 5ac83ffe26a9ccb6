"""Writes data.json, what docs/play/train.html has from the package: base policy, problems and settings of `browser`.

    python docs/play/train/data.py

Nothing is chosen here: all values are those of `+experiment=dapo +regime=browser seed=0`.
"""

import json
from base64 import b64encode
from pathlib import Path

from dapo_lit.build.base_policy import find_base
from dapo_lit.cli.command import compose
from dapo_lit.config import Config
from dapo_lit.tasks.generated import generated

WATCHED = 3
"""Held-out problems that the page answers at every step."""


def settings(config: Config) -> dict[str, object]:
    """The page's settings under the names that docs/examples/dapo_in_one_file.py gives them."""
    algorithm, optimizer = config.algorithm, config.algorithm.optimizer
    return {
        **algorithm.techniques.model_dump(),
        "seed": config.seed,
        "num_prompts": algorithm.num_prompts,
        "samples_per_prompt": algorithm.samples_per_prompt,
        "minibatch_prompts": algorithm.minibatch_prompts,
        "epochs": algorithm.epochs,
        "max_rounds": algorithm.dynamic_sampling.max_rounds,
        "max_response_tokens": config.task.max_response_tokens,
        "cache_tokens": algorithm.overlong.cache_tokens,
        "penalty_factor": algorithm.overlong.penalty_factor,
        "clip_low": algorithm.clip.low,
        "clip_high": algorithm.clip.high,
        "lr": optimizer.lr,
        "warmup_steps": optimizer.warmup_steps,
    }


def made() -> dict[str, object]:
    """The content of data.json."""
    config = compose("+experiment=dapo", "+regime=browser", "seed=0")
    base, optimizer = find_base(config.policy, config.task).folder, config.algorithm.optimizer
    task = config.task
    problems = generated(task.name).problem_sets(task.num_problems, task.num_heldout, task.options)
    weights = (base / "model.safetensors").read_bytes()
    first, second = optimizer.betas
    return {
        "steps": 40,
        "settings": settings(config),
        "optimizer": {"beta1": first, "beta2": second, "epsilon": optimizer.eps, "most": optimizer.grad_clip},
        "config": json.loads((base / "config.json").read_text()),
        "parameters": (len(weights) - 8 - int.from_bytes(weights[:8], "little")) // 4,
        "prompts": [problem.problem for problem in problems.train],
        "watched": [problem.problem for problem in problems.heldout[:WATCHED]],
        "weights": b64encode(weights).decode(),
    }


def main() -> None:
    (Path(__file__).parent / "data.json").write_text(json.dumps(made(), indent=1) + "\n")


if __name__ == "__main__":
    main()
