"""The groups of one rollout step under way: samples come in one by one, in any order, and close their groups."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import SampleRequest
from dapo_lit.engines.samples import NOT_BEGUN, Begun, Sample, SampleKey
from dapo_lit.rollout.dynamic_sampling import Admission, AdmissionRules, KeepRate
from dapo_lit.rollout.records import Completion, Group


@dataclass
class OpenGroup:
    """A group that was submitted, as far as it has come. What a checkpoint holds of it goes on from there."""

    group: Group
    """Its completions are empty until all of them are scored."""
    position: int
    """Of the problem among the run's prompts."""
    num_samples: int
    scored: dict[int, Completion] = field(default_factory=dict)
    """By sample index."""
    begun: dict[int, Begun] = field(default_factory=dict)
    """Samples that were interrupted, by sample index."""
    carried: bool = False
    """Submitted in an earlier step."""
    ended_earlier: bool = False
    """All of its samples were there before this step."""

    @property
    def finished(self) -> bool:
        return len(self.scored) == self.num_samples

    @property
    def num_tokens(self) -> int:
        """Response tokens so far."""
        ended = sum(c.num_tokens for c in self.scored.values())
        return ended + sum(len(b.response_ids) for b in self.begun.values())

    @property
    def oldest_version(self) -> int | None:
        """Of the weights that sampled any of its tokens; None: there is no token yet."""
        versions = [c.sample.versions[0] for c in self.scored.values()]
        versions += [b.versions[0] for b in self.begun.values() if b.versions]
        return min(versions, default=None)

    def key(self, index: int) -> SampleKey:
        return SampleKey(self.group.step, self.group.problem.id, self.group.attempt, index)

    def copy(self) -> "OpenGroup":
        """Goes on by itself: what happens to one does not show in the other."""
        group = replace(self.group, completions=list(self.group.completions))
        return replace(self, group=group, scored=dict(self.scored), begun=dict(self.begun))

    def requests(self) -> list[SampleRequest]:
        """For the samples that are not there."""
        return [
            SampleRequest(self.key(i), self.group.prompt_ids, self.begun.get(i, NOT_BEGUN))
            for i in range(self.num_samples)
            if i not in self.scored
        ]


class Accumulation:
    """Groups by place, the samples they wait for, and the tokens sampled in this step."""

    def __init__(self, rules: AdmissionRules, keep_rate: KeepRate, in_rounds: bool = False) -> None:
        self.admission = Admission(rules, keep_rate)
        self._in_rounds = in_rounds  # a group ends for all ranks at once, in `take_group`
        self.groups: list[OpenGroup] = []
        self.tokens_generated = 0
        self.expired: list[OpenGroup] = []
        """Carried into this step and dropped for their age; they have no place."""
        self._places: dict[SampleKey, int] = {}
        self._unscored: dict[SampleKey, tuple[Sample, str]] = {}
        self._sampled: dict[int, int] = {}  # samples that ended, by place, while the group is open
        self._withdrawn_from: int | None = None

    def add(self, group: OpenGroup) -> list[SampleRequest]:
        """Takes a group in; what is still to be sampled of it."""
        place = self.admission.submit(carried=group.carried)
        self.groups.append(group)
        requests = group.requests()
        self._places |= {request.key: place for request in requests}
        self._sampled[place] = len(group.scored)
        if group.finished:
            self._resolve(place)
        return requests

    def take_sample(self, sample: Sample, text: str) -> bool:
        """A sample ended; whether it was the last of its group."""
        place = self._places[sample.key]
        self._unscored[sample.key] = sample, text
        self._sampled[place] += 1
        self.tokens_generated += len(sample.response_ids) - len(sample.earlier_versions)
        return self._sampled[place] == self.groups[place].num_samples

    def problem(self, key: SampleKey) -> Problem:
        """That a sample answers."""
        return self.groups[self._places[key]].group.problem

    def unscored(self, key: SampleKey) -> tuple[Sample, str]:
        """A sample that is about to be scored, and its text."""
        return self._unscored.pop(key)

    def take_score(self, completion: Completion) -> None:
        """The verdict on a sample; the last one closes its group."""
        key = completion.sample.key
        place = self._places.pop(key)
        group = self.groups[place]
        group.scored[key.sample_index] = completion
        group.begun.pop(key.sample_index, None)
        if group.finished:
            group.group.completions = [group.scored[i] for i in range(group.num_samples)]
            if not self._in_rounds:
                self._resolve(place)

    def _resolve(self, place: int) -> None:
        self.admission.resolve(place, self.groups[place].group.mixed)

    def take_group(self, place: int, completions: Sequence[Completion]) -> None:
        """All completions of a group, as the rank that tells has them: this rank's own verdicts decide nothing."""
        group = self.groups[place]
        for index, completion in enumerate(completions):
            self._places.pop(group.key(index), None)
            unscored = self._unscored.pop(group.key(index), None)
            if unscored is None and index not in group.scored:  # sampled elsewhere
                self.tokens_generated += len(completion.sample.response_ids) - len(completion.sample.earlier_versions)
        group.scored, group.begun = dict(enumerate(completions)), {}
        group.group.completions = list(completions)
        self._resolve(place)

    def take_withdrawn(self, begun: dict[SampleKey, Begun]) -> None:
        """Samples were given up on the way."""
        for key, tokens in begun.items():
            group = self.groups[self._places[key]]
            before = group.begun.get(key.sample_index, NOT_BEGUN)
            self.tokens_generated += len(tokens.response_ids) - len(before.response_ids)
            group.begun[key.sample_index] = tokens

    def keys_beyond_cut(self) -> list[SampleKey]:
        """Samples whose group can no longer be accepted; empty where the cut has not moved since the last call."""
        cut = self.admission.cut
        if self.admission.rules.request_groups is not None or cut is None or cut == self._withdrawn_from:
            return []
        self._withdrawn_from = cut
        return self.waiting_for(self.groups[cut + 1 :])

    def waiting_for(self, groups: Iterable[OpenGroup] | None = None) -> list[SampleKey]:
        """Samples that have not ended."""
        chosen = self.groups if groups is None else groups
        return [
            group.key(i)
            for group in chosen
            if not group.finished
            for i in range(group.num_samples)
            if group.key(i) in self._places and group.key(i) not in self._unscored
        ]

    @property
    def examined(self) -> list[OpenGroup]:
        return self.groups[: self.admission.num_examined]

    @property
    def accepted(self) -> list[Group]:
        """At most `num_prompts`."""
        return [self.groups[place].group for place in self.admission.accepted]

    @property
    def leftover(self) -> list[OpenGroup]:
        """Groups behind the last accepted one."""
        return self.groups[self.admission.num_examined :]


def sampling_metrics(
    step: Accumulation, accepted: Sequence[Group], carried_out: Sequence[OpenGroup], policy_version: int
) -> dict[str, float | None]:
    """`sampling/*`: what the groups of a step came to. Formulas: docs/metrics.md.

    Args:
        step: at its end; what was under way is withdrawn.
        accepted: groups trained on.
        carried_out: groups kept for the next step.
        policy_version: of the weights that train on the step.
    """
    rules = step.admission.rules
    used = {id(group) for group in accepted} | {id(group.group) for group in carried_out}
    unused = [group for group in step.groups if id(group.group) not in used]
    filtered = [g for g in unused if rules.dynamic_sampling and g.finished and not g.group.mixed]
    filtered_tokens = sum(g.num_tokens for g in filtered)
    surplus_tokens = sum(g.num_tokens for g in [*unused, *step.expired]) - filtered_tokens
    ended = [g.group for g in step.groups if g.finished and not g.ended_earlier]
    submitted = sum(not g.carried for g in step.groups)
    total = max(step.tokens_generated, 1)
    carried_in = {id(g.group) for g in step.groups if g.carried}
    metrics: dict[str, float | None] = {
        "sampling/rounds": submitted / rules.num_prompts,
        "sampling/groups_generated": submitted,
        "sampling/groups_kept": sum(g.mixed or not rules.dynamic_sampling for g in ended),
        "sampling/groups_surplus": len(unused) - len(filtered),
        "sampling/groups_carried_in": sum(id(g) in carried_in for g in accepted),
        "sampling/groups_carried_out": len(carried_out),
        "sampling/groups_expired": len(step.expired),
        "sampling/tokens_filtered_frac": filtered_tokens / total,
        "sampling/tokens_surplus_frac": surplus_tokens / total,
        "sampling/tokens_wasted_frac": (filtered_tokens + surplus_tokens) / total,
    }
    return metrics | staleness(accepted, policy_version) | _lengths(accepted, ended)


def staleness(accepted: Sequence[Group], policy_version: int) -> dict[str, float | None]:
    """How many updates of the weights lie between the sampling of a token and its training."""
    ages = [policy_version - v for g in accepted for c in g.completions for v in c.sample.versions]
    return {
        "sampling/staleness_mean": sum(ages) / len(ages) if ages else None,
        "sampling/staleness_max": max(ages, default=None),
        "sampling/stale_tokens_frac": sum(age > 0 for age in ages) / len(ages) if ages else None,
    }


def _lengths(accepted: Sequence[Group], ended: Sequence[Group]) -> dict[str, float | None]:
    """The length-bias audit: quantiles over completions, and the distance between the two distributions."""
    metrics: dict[str, float | None] = {}
    ours, all_of_them = (np.sort([c.num_tokens for g in groups for c in g.completions]) for groups in (accepted, ended))
    for name, lengths in (("accepted", ours), ("generated", all_of_them)):
        for percent in (10, 50, 90):
            value = float(np.percentile(lengths, percent)) if len(lengths) else None
            metrics[f"sampling/length_{name}_p{percent}"] = value
    metrics["sampling/length_ks"] = ks_distance(ours, all_of_them) if len(ours) and len(all_of_them) else None
    return metrics


def ks_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance: the largest difference between two empirical distribution functions.

    Args:
        first, second: sorted, neither empty.

    >>> ks_distance(np.array([1, 2]), np.array([1, 2, 3, 4]))
    0.5
    """
    values = np.concatenate([first, second])
    shares = [np.searchsorted(sample, values, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())
