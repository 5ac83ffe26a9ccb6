"""A recorded step as one HTML file that can be played with: step.html, with the step as JSON in it.

The page computes kept groups, rewards, advantages, weights and clipped tokens by itself. What it cannot compute is
measured here once for each combination of the switches: the ratio of every token at its update, and the gradient.
Between the combinations it sketches the gradient (sketch.py); replays at other settings show the error.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ablations.errors import UserError
from ablations.screen import with_status
from ablations.techniques import REGISTER
from ablations.texts import read_text
from ablations.web_page import allowed, inert, packed
from dapo_lit.build.components import RunComponents
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.identity import with_defaults
from dapo_lit.engines.protocol import Sample
from dapo_lit.lit.module import DAPOModule
from dapo_lit.objective.needs import needs_of
from dapo_lit.rollout.records import Group
from dapo_lit.runs.safe_loading import safe_state_types
from dapo_lit.seeds import minibatch_seed
from dapo_lit.step.batch import token_batch
from dapo_lit.switches.algorithm import reward_shaping
from dapo_lit.switches.parts import ESTIMATOR, LOSS, PENALTY, part_of
from dapo_lit_tools.replays.recorded_step import Recording, Replayed, replay, trained_weights
from dapo_lit_tools.replays.sketch import MOST_ALONG, Directions, derivative, saved_weights
from dapo_lit_tools.replays.tables import cosine, token_table

TEMPLATE = Path(__file__).with_name("step.html")
COMPUTED: dict[str, tuple[Any, ...]] = {
    "own_techniques": ((),),
    "advantage.whiten": (False,),
    "token_level_denominator": ("minibatch", "group"),
    "entropy.bonus": (0,),
    "entropy.control": ("none",),
    "entropy.top_frac": (1,),
    "kl.beta": (0,),
    "correction.kind": ("none",),
    "dynamic_sampling.pass_rate_margin": (0,),
    "dynamic_sampling.on_exhausted": ("error", "train_smaller", "top_up"),
}
"""Keys below `algorithm`, and the values that the page can compute with."""
FIELDS = ("switch", "label", "section", "equation", "on", "off", "colour")
"""Fields of a technique that the page shows."""
RATIO_UNIT = 2.0**-24
"""A float32 between 0.5 and 2 is a whole number of these."""
NATS_UNIT = 1e-3
SKETCH_PLACES = 2**11
"""The largest derivative along a direction is this many units."""


def check_computed(config: Config) -> None:
    """Raises ConfigError for an objective that the page cannot compute."""
    for part in (part_of(slot, config.algorithm) for slot in (LOSS, ESTIMATOR, PENALTY)):
        if not part.needs.on_page:
            able = [name for name, function in part.slot.built_in.items() if needs_of(function).on_page]
            _refuse(part.slot.key, part.name, able)
    for key, values in COMPUTED.items():
        found: Any = config.algorithm
        for name in key.split("."):
            found = getattr(found, name)
        if found not in values:
            _refuse(key, found, values)


def _refuse(key: str, found: object, values: Sequence[object]) -> None:
    wanted = " or ".join(map(str, values))
    raise ConfigError(f"algorithm.{key}={found}: the page computes DAPO's Eq. 8 to 13 only, with {wanted}")


def step_page(
    recording: Recording,
    combinations: Mapping[frozenset[str], Config],
    checks: Sequence[Config],
    text_of: Callable[[Sequence[int]], str],
    folder: Path,
) -> str:
    """The HTML of a recorded step.

    combinations: the config of each combination, by the switches that are on.
    checks: configs with other bounds, buffers and denominators, which are replayed to show the error of the sketch.
    text_of: decodes token ids.
    folder: for files of the weights' size, up to 16 directions and one for each update; not needed afterwards.

    Raises UserError if its disk has too little space for the directions.
    """
    check_computed(recording.config)
    own = recording.config
    recorded = replay(recording, own, weights_in=folder)
    recorded.log.first = None  # as large as the weights
    _check_space(folder, MOST_ALONG * sum(g.nbytes for g in recorded.log.summed or ()))
    groups = recorded.generated
    directions = Directions(folder)
    if recorded.log.summed:
        directions.add(recorded.log.summed)
    ratios: dict[bytes, np.ndarray] = {}
    measured = _measured(recording, combinations, recorded, directions, ratios)
    policy = PolicyOfStep(recording, groups)
    entropy = policy.forward(range(policy.num_completions))[1]
    sketch = _sketch(policy, recorded, directions)
    units = [float(np.abs(s).max()) / SKETCH_PLACES or 1.0 for s in sketch]
    ids = np.concatenate([c.sample.response_ids for g in groups for c in g.completions])
    vocabulary, places = np.unique(ids, return_inverse=True)
    numbers = [places, entropy.numpy() / NATS_UNIT]
    numbers += [(r - 1.0) / RATIO_UNIT for r in ratios.values()]
    numbers += [s / unit for s, unit in zip(sketch, units, strict=True)]
    return filled(
        {
            "step": recording.step,
            "task": own.task.label,
            "policy": Path(own.policy.path or own.policy.name).name,
            "settings": own.algorithm.model_dump(mode="json")
            | {"limit": own.task.max_response_tokens, "wrong_value": own.reward.wrong_value},
            "techniques": [{name: getattr(technique, name) for name in FIELDS} for technique in REGISTER.values()],
            "groups": [_group(group, text_of, own.algorithm.overlong.counts == "all") for group in groups],
            "combinations": measured,
            "orders": _orders(recording, len(groups)),
            "vocabulary": [text_of([int(i)]) for i in vocabulary],
            "lengths": [len(x) for x in numbers],
            "units": {"ratio": RATIO_UNIT, "nats": NATS_UNIT, "sketch": units},
            "along": directions.num_along,
            "checks": [
                _check(recording, config, recorded)
                for config in with_status(checks, len(checks), "page", "checks replayed")
            ],
            "numbers": _packed(np.concatenate(numbers)),
        }
    )


def _measured(
    recording: Recording,
    combinations: Mapping[frozenset[str], Config],
    recorded: Replayed,
    directions: Directions,
    ratios: dict[bytes, np.ndarray],
) -> list[dict[str, Any]]:
    """The replay of each combination: its ratios, by their place in `ratios`, and its update along the directions.

    Adds the ratios and the directions of each replay; replays without a difference share theirs.
    """
    replays: dict[Any, dict[str, Any]] = {}
    found = []
    for on, config in with_status(combinations.items(), len(combinations), "page", "combinations replayed"):
        effects = _effects(on, config, recorded.generated)
        if effects not in replays:
            arm = replay(recording, config)
            table = token_table(arm, lambda ids: "")
            ratio = table["ratio"].to_numpy() if len(table) else np.empty(0, np.float32)
            ratios.setdefault(ratio.tobytes(), ratio)
            along = directions.add(arm.log.summed) if arm.log.summed else []
            update = _update(arm, recorded) | {"along": along}
            replays[effects] = {"ratios": list(ratios).index(ratio.tobytes()), "update": update}
            del arm  # or its gradients would be kept through the next replay
        found.append({"on": sorted(on)} | replays[effects])
    return found


def _effects(on: frozenset[str], config: Config, groups: Sequence[Group]) -> tuple[Any, ...]:
    """The effects of the switches on these samples: combinations with the same effects need one replay."""
    shape = reward_shaping(config)
    shaped = [[replace(c) for c in group.completions] for group in groups]
    for completions in shaped:
        shape(completions)
    rewards = tuple(c.reward_shaped for completions in shaped for c in completions)
    elsewhere = on - {"soft_overlong_punishment", "overlong_filtering"}
    return (
        elsewhere,
        rewards,
        "overlong_filtering" in on and any(c.truncated for completions in shaped for c in completions),
    )


class PolicyOfStep:
    """The policy before the step, on the responses of the step, those of dropped groups too.

    weights: its trained ones, in the order of a gradient.
    """

    def __init__(self, recording: Recording, groups: Sequence[Group]) -> None:
        parts = RunComponents(recording.config)
        with safe_state_types(recording.checkpoint):
            self._module = DAPOModule.load_from_checkpoint(
                recording.checkpoint, config=recording.config, build_policy=lambda: parts.policy
            )
        self._module.policy.eval()
        self.weights = trained_weights(self._module)
        self.num_completions = sum(len(group.completions) for group in groups)
        self.keys = [c.sample.key for group in groups for c in group.completions]
        self.num_tokens = sum(c.num_tokens for group in groups for c in group.completions)
        mask = torch.ones(self.num_tokens, dtype=torch.bool, device="cpu")
        self._batch = token_batch(groups, mask, self._module.policy_version)
        self._embedding = self._module.policy.get_input_embeddings()
        self._embedding.register_forward_hook(self._with_fixed_padding)
        self.set_weights(self.weights)

    def _with_fixed_padding(self, embedding: Any, ids: tuple[Tensor], found: Tensor) -> Tensor:
        """The padding's embedding has no gradient, though log-probs depend on it: no direction may change it."""
        padding = embedding.padding_idx
        return found if padding is None else torch.where((ids[0] == padding)[..., None], self._padding, found)

    @torch.no_grad()
    def set_weights(self, weights: Sequence[Tensor]) -> None:
        for own, other in zip(self.weights, weights, strict=True):
            own.copy_(other)
        self._padding = self._embedding.weight[self._embedding.padding_idx or 0].detach().clone()

    @torch.no_grad()
    def forward(self, completions: Sequence[int]) -> Tensor:
        """[2, N] log-prob of each response token, and nats of the next-token distribution there; 0 elsewhere."""
        found = torch.zeros(2, self.num_tokens, device="cpu")
        forward = self._module.policy_forward
        for micro, _ in forward.micro_batches(self._batch, completions):
            found[:, micro.tokens] = torch.stack(forward.logprobs(micro)).cpu()
        return found


def _sketch(policy: PolicyOfStep, recorded: Replayed, directions: Directions) -> list[np.ndarray]:
    """[E * N] for each direction: derivatives of the log-probs, at the weights of a token's update in each epoch."""
    epochs = recorded.config.algorithm.epochs
    parts = _completions_by_update(policy, recorded, epochs)
    found = []
    for direction in with_status(directions, len(directions), "page", "directions of the sketch"):
        row = torch.zeros(epochs, policy.num_tokens, device="cpu")
        for (epoch, update), completions in parts.items():
            policy.set_weights(saved_weights(recorded.log.weights[update]))
            row[epoch] += derivative(policy.weights, direction, partial(policy.forward, completions))[0]
        found.append(row.flatten().numpy())
    return found


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder.parent}: the page needs up to {needed / 1e9:.1f} GB of this disk while it is made, and "
            f"{free / 1e9:.1f} GB are free; free some space, or move the run to a larger disk"
        )


def _completions_by_update(policy: PolicyOfStep, recorded: Replayed, epochs: int) -> dict[tuple[int, int], list[int]]:
    """The completions of each (epoch, update), from 0; those that no update had go to the middle one of each epoch."""
    place = {key: i for i, key in enumerate(policy.keys)}
    trained = [place[c.sample.key] for group in recorded.accepted for c in group.completions]
    found: dict[tuple[int, int], set[int]] = {}
    for row in recorded.log.rows:
        at = int(row["epoch"][0]) - 1, min(int(row["update"][0]), len(recorded.log.losses)) - 1
        found.setdefault(at, set()).update(trained[int(i)] for i in row["completion"].unique())
    for epoch in range(epochs if found else 0):
        updates = sorted(at for at in found if at[0] == epoch)
        found[updates[len(updates) // 2]] |= set(range(len(place))) - set(trained)
    return {at: sorted(completions) for at, completions in found.items()}


def _update(arm: Replayed, recorded: Replayed) -> dict[str, float | None]:
    """The sum of a step's gradients: its norm, and the cosine to the recorded one."""
    norm = sum(float(g.double().square().sum()) for g in arm.log.summed or ()) ** 0.5
    return {"cosine": cosine(arm.log.summed, recorded.log.summed), "norm": norm}


def _check(recording: Recording, config: Config, recorded: Replayed) -> dict[str, Any]:
    """A replay at other settings than the combinations', with which the page compares its sketch."""
    algorithm, clip = config.algorithm, config.algorithm.clip
    state = {
        "on": sorted(name for name, on in algorithm.techniques.model_dump().items() if on),
        "low": clip.low,
        "high": clip.high,
        "cache": algorithm.overlong.cache_tokens,
        "token": algorithm.token_level_denominator,
        "completion": algorithm.completion_level_denominator,
    }
    return {"state": state, "update": _update(replay(recording, config), recorded)}


def _group(group: Group, text_of: Callable[[Sequence[int]], str], counts_all: bool) -> dict[str, Any]:
    """counts_all: Eq. 13 counts the tokens of an environment too."""
    completions = [
        {"correct": c.correct, "truncated": c.truncated, "value": c.score.value, "tokens": c.num_tokens}
        | _turns(c.sample, text_of, counts_all)
        | ({"turns": c.turn_reward} if c.turn_reward else {})
        for c in group.completions
    ]
    return {
        "id": [group.step, group.index],
        "problem": group.problem.problem,
        "answer": group.problem.answer,
        "comparable": group.comparable,
        "completions": completions,
    }


def _turns(sample: Sample, text_of: Callable[[Sequence[int]], str], counts_all: bool) -> dict[str, Any]:
    """Of an episode: its end, the texts of its environment with the token of the policy that each is before, and the
    length in Eq. 13 where that is not the number of the policy's tokens."""
    if not sample.ended_by:
        return {}
    seen = [[place, text_of(ids.tolist())] for place, ids in sample.observations.by_place]
    return {"end": sample.ended_by, "seen": seen} | ({"length": len(sample.row_ids)} if counts_all else {})


def _orders(recording: Recording, most: int) -> list[list[list[int]]]:
    """For each epoch and each number of groups up to `most`, the order in which mini-batches take them."""
    seeds = [minibatch_seed(recording.config.seed, recording.step, e) for e in range(recording.config.algorithm.epochs)]
    return [
        [
            torch.randperm(n, generator=torch.Generator(device="cpu").manual_seed(seed), device="cpu").tolist()
            for n in range(most + 1)
        ]
        for seed in seeds
    ]


def refilled(page: str) -> str:
    """A page that was made before, as the template of today shows its step."""
    found = re.search(r'<script type="application/json" id="step">(.*?)</script>', page, re.DOTALL)
    assert found, "not the page of a step"
    step = json.loads(found[1])
    # The template may read keys that came after the recording; each had its default's effect before it came.
    step["settings"] = with_defaults({"algorithm": step["settings"]})["algorithm"]
    return filled(step)


def _packed(numbers: np.ndarray) -> str:
    """Whole numbers as zlib and base64. Signs go to the lowest bit and bytes of one place together: most are then 0."""
    whole = np.clip(np.rint(numbers), -(2**31), 2**31 - 1).astype(np.int64)
    unsigned = np.where(whole < 0, -2 * whole - 1, 2 * whole).astype("<u4")
    return packed(unsigned.view(np.uint8).reshape(-1, 4).T.tobytes())


def filled(step: Mapping[str, Any]) -> str:
    """The page of a step, given the JSON that it holds."""
    page = read_text(TEMPLATE)
    hashes = allowed(re.findall(r"<script>(.*?)</script>", page, re.S))
    return page.replace("{{ scripts }}", hashes).replace("{{ step }}", inert(step))
