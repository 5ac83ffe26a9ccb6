"""A recorded step as one HTML file that can be played with: step.html, with the step as JSON in it.

The page computes kept groups, rewards, advantages, weights and clipped tokens by itself. What it cannot compute is
measured here once for each combination of the switches: the ratio of every token at its update, and the gradient.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dapo_lit.build.parts import Parts
from dapo_lit.config import Config, ConfigError
from dapo_lit.lit.module import DAPOModule
from dapo_lit.replays.recorded_step import Recording, replay
from dapo_lit.replays.tables import cosine, token_table
from dapo_lit.rollout.records import Group
from dapo_lit.runs.safe_loading import only_state
from dapo_lit.step.batch import counter_seed, token_batch
from dapo_lit.switches.algorithm import reward_function
from dapo_lit.techniques import REGISTER
from dapo_lit.web_page import allowed, inert, packed

TEMPLATE = Path(__file__).with_name("step.html")
COMPUTED: dict[str, tuple[Any, ...]] = {
    "loss": ("clip",),
    "advantage.estimator": ("group", "leave_one_out"),
    "advantage.whiten": (False,),
    "token_level_denominator": ("minibatch", "group"),
    "entropy.bonus": (0,),
    "entropy.top_frac": (1,),
    "kl.beta": (0,),
    "correction.kind": ("none",),
    "dynamic_sampling.pass_rate_margin": (0,),
    "dynamic_sampling.on_exhausted": ("error", "train_smaller", "top_up"),
}
"""Keys below `algorithm`, and the values that the page can compute with."""
FIELDS = ("switch", "label", "section", "equation", "on", "off", "colour")
"""Of a technique."""
RATIO_UNIT = 2.0**-24
"""A float32 between 0.5 and 2 is a whole number of these."""
NATS_UNIT = 1e-3


def check_computed(config: Config) -> None:
    """Raises ConfigError for an objective that the page cannot compute."""
    for key, values in COMPUTED.items():
        found: Any = config.algorithm
        for part in key.split("."):
            found = getattr(found, part)
        if found not in values:
            wanted = " or ".join(map(str, values))
            raise ConfigError(f"algorithm.{key}={found}: the page computes DAPO's Eq. 8 to 13 only, with {wanted}")


def step_page(
    recording: Recording, combinations: Mapping[frozenset[str], Config], text_of: Callable[[Sequence[int]], str]
) -> str:
    """The HTML of a recorded step.

    combinations: the config of each combination, by the switches that are on.
    text_of: decodes token ids.
    """
    check_computed(recording.config)
    own = recording.config
    recorded = replay(recording, own)
    groups = recorded.generated
    ratios: dict[bytes, np.ndarray] = {}  # replays without a difference share theirs
    replays: dict[Any, dict[str, Any]] = {}
    measured = []
    for on, config in combinations.items():
        effects = _effects(on, config, groups)
        if effects not in replays:
            arm = replay(recording, config)
            table = token_table(arm, lambda ids: "")
            ratio = table["ratio"].to_numpy() if len(table) else np.empty(0, np.float32)
            ratios.setdefault(ratio.tobytes(), ratio)
            update = {
                "cosine": cosine(arm.log.summed, recorded.log.summed),
                "norm": sum(float(g.double().square().sum()) for g in arm.log.summed or ()) ** 0.5,
            }
            replays[effects] = {"ratios": list(ratios).index(ratio.tobytes()), "update": update}
        measured.append({"on": sorted(on)} | replays[effects])
    ids = np.concatenate([c.sample.response_ids for g in groups for c in g.completions])
    vocabulary, places = np.unique(ids, return_inverse=True)
    numbers = [places, entropies(recording, groups) / NATS_UNIT]
    numbers += [(r - 1.0) / RATIO_UNIT for r in ratios.values()]
    return _filled(
        {
            "step": recording.step,
            "task": own.task.label,
            "policy": Path(own.policy.path or own.policy.name).name,
            "settings": own.algorithm.model_dump(mode="json")
            | {"limit": own.task.max_response_tokens, "wrong_value": own.reward.wrong_value},
            "techniques": [{name: getattr(technique, name) for name in FIELDS} for technique in REGISTER.values()],
            "groups": [_group(group) for group in groups],
            "combinations": measured,
            "orders": _orders(recording, len(groups)),
            "vocabulary": [text_of([int(i)]) for i in vocabulary],
            "lengths": [len(x) for x in numbers],
            "units": {"ratio": RATIO_UNIT, "nats": NATS_UNIT},
            "numbers": _packed(np.concatenate(numbers)),
        }
    )


def _effects(on: frozenset[str], config: Config, groups: Sequence[Group]) -> tuple[Any, ...]:
    """What the switches come to on these samples: combinations that come to the same need one replay."""
    completions = [c for group in groups for c in group.completions]
    reward = reward_function(config)
    rewards = tuple(reward(c.score, c.num_tokens, c.truncated)[1] for c in completions)
    elsewhere = on - {"soft_overlong_punishment", "overlong_filtering"}
    return elsewhere, rewards, "overlong_filtering" in on and any(c.truncated for c in completions)


def entropies(recording: Recording, groups: Sequence[Group]) -> np.ndarray:
    """[N] nats of the next-token distribution before the step at each response token, of dropped groups too."""
    parts = Parts(recording.config)
    with only_state(recording.checkpoint):
        module = DAPOModule.load_from_checkpoint(
            recording.checkpoint, config=recording.config, build_policy=lambda: parts.policy
        )
    module.policy.eval()
    num_tokens = sum(c.num_tokens for group in groups for c in group.completions)
    batch = token_batch(groups, torch.ones(num_tokens, dtype=torch.bool), module.policy_version)
    found = torch.zeros(num_tokens)
    for micro, _ in module.policy_forward.micro_batches(batch, range(len(batch.sequences))):
        with torch.no_grad():
            found[micro.tokens] = module.policy_forward.logprobs(micro)[1].cpu()
    return found.numpy()


def _group(group: Group) -> dict[str, Any]:
    completions = [
        {"correct": c.correct, "truncated": c.truncated, "value": c.score.value, "tokens": c.num_tokens}
        for c in group.completions
    ]
    return {
        "id": [group.step, group.index],
        "problem": group.problem.problem,
        "answer": group.problem.answer,
        "comparable": group.comparable,
        "completions": completions,
    }


def _orders(recording: Recording, most: int) -> list[list[list[int]]]:
    """For each epoch and each number of groups up to `most`, the order in which mini-batches take them."""
    seeds = [counter_seed(recording.config.seed, recording.step, e) for e in range(recording.config.algorithm.epochs)]
    return [
        [torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist() for n in range(most + 1)]
        for seed in seeds
    ]


def _packed(numbers: np.ndarray) -> str:
    """Whole numbers as zlib and base64. Signs go to the lowest bit and bytes of one place together: most are then 0."""
    whole = np.clip(np.rint(numbers), -(2**31), 2**31 - 1).astype(np.int64)
    unsigned = np.where(whole < 0, -2 * whole - 1, 2 * whole).astype("<u4")
    return packed(unsigned.view(np.uint8).reshape(-1, 4).T.tobytes())


def _filled(step: Mapping[str, Any]) -> str:
    """The template with the step in it."""
    page = TEMPLATE.read_text()
    hashes = allowed(re.findall(r"<script>(.*?)</script>", page, re.S))
    return page.replace("{{ scripts }}", hashes).replace("{{ step }}", inert(step))
