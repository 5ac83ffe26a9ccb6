"""The groups of one rollout step while it is collected: samples arrive one by one, in any order."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import SampleRequest
from dapo_lit.engines.samples import NO_TOKENS, PartialSample, SampleKey
from dapo_lit.rollout.dynamic_sampling import Admission, AdmissionRules, KeepRate
from dapo_lit.rollout.records import Completion, Group, check_independent


@dataclass
class OpenGroup:
    """A submitted group with the samples it has so far. A checkpoint holds it, and collection continues from there."""

    group: Group
    """Its completions are empty until all of them are scored."""
    position: int
    """Position of the problem among the run's prompts."""
    num_samples: int
    scored: dict[int, Completion] = field(default_factory=dict)
    """By sample index."""
    partial: dict[int, PartialSample] = field(default_factory=dict)
    """Interrupted samples, by sample index."""
    carried: bool = False
    """Submitted in an earlier step."""
    ended_earlier: bool = False
    """All of its samples ended before this step."""

    @property
    def finished(self) -> bool:
        return len(self.scored) == self.num_samples

    @property
    def num_tokens(self) -> int:
        """Response tokens so far."""
        ended = sum(c.num_tokens for c in self.scored.values())
        return ended + sum(len(p.response_ids) for p in self.partial.values())

    @property
    def oldest_version(self) -> int | None:
        """Of the weights that sampled any of its tokens; None: there is no token yet."""
        runs = [c.sample.versions for c in self.scored.values()] + [p.versions for p in self.partial.values()]
        return min((versions[0][0] for versions in runs if versions), default=None)

    def key(self, index: int) -> SampleKey:
        return SampleKey(self.group.step, self.group.problem.id, self.group.attempt, index)

    def copy(self) -> "OpenGroup":
        """An independent copy; the samples themselves are shared."""
        group = replace(self.group, completions=list(self.group.completions), missing=list(self.group.missing))
        return replace(self, group=group, scored=dict(self.scored), partial=dict(self.partial))

    def saved(self) -> "OpenGroup":
        """A copy for a checkpoint."""
        copy = self.copy()
        copy.group.problem = copy.group.problem.stub
        return copy

    def requests(self) -> list[SampleRequest]:
        """For the samples that have not ended."""
        return [
            SampleRequest(self.key(i), self.group.prompt_ids, self.partial.get(i, NO_TOKENS))
            for i in range(self.num_samples)
            if i not in self.scored
        ]


class OpenGroups:
    """The groups of a step by place, the samples they wait for, and the tokens sampled in this step."""

    def __init__(self, rules: AdmissionRules, keep_rate: KeepRate) -> None:
        self.admission = Admission(rules, keep_rate)
        self.groups: list[OpenGroup] = []
        self.tokens_generated = 0
        self.expired: list[OpenGroup] = []
        """Carried into this step and dropped for their age; they have no place."""
        self._places: dict[SampleKey, int] = {}
        self._withdrawn_from: int | None = None

    def add(self, group: OpenGroup) -> list[SampleRequest]:
        """Gives a group its place; returns requests for the samples it lacks."""
        place = self.admission.submit(carried=group.carried)
        self.groups.append(group)
        requests = group.requests()
        self._places |= {request.key: place for request in requests}
        if group.finished:
            self._resolve(place)
        return requests

    def problem(self, key: SampleKey) -> Problem:
        """The problem that a sample answers."""
        return self.groups[self._places[key]].group.problem

    def take_completion(self, completion: Completion) -> None:
        """Takes a scored sample; the last one closes its group."""
        key = completion.sample.key
        self.tokens_generated += completion.sample.num_new_tokens
        place = self._places.pop(key)
        group = self.groups[place]
        group.scored[key.sample_index] = completion
        group.partial.pop(key.sample_index, None)
        if group.finished:
            ended = [group.scored[i] for i in range(group.num_samples)]
            group.group.completions = [c for c in ended if not c.score.missing]
            group.group.missing = [c for c in ended if c.score.missing]
            check_independent([completion.sample for completion in ended])
            self._resolve(place)

    def _resolve(self, place: int) -> None:
        self.admission.resolve(place, self.groups[place].group.passes(self.admission.rules.filter_on))

    def take_withdrawn(self, withdrawn: dict[SampleKey, PartialSample]) -> None:
        """Takes the tokens of samples that were stopped before their end."""
        for key, partial in withdrawn.items():
            group = self.groups[self._places[key]]
            before = group.partial.get(key.sample_index, NO_TOKENS)
            self.tokens_generated += len(partial.response_ids) - len(before.response_ids)
            group.partial[key.sample_index] = partial

    def keys_beyond_cut(self) -> list[SampleKey]:
        """Samples whose group can no longer be accepted; empty where the cut has not moved since the last call."""
        cut = self.admission.cut
        if self.admission.rules.request_groups is not None or cut is None or cut == self._withdrawn_from:
            return []
        self._withdrawn_from = cut
        return self.waiting_for(self.groups[cut + 1 :])

    def waiting_for(self, groups: Iterable[OpenGroup] | None = None) -> list[SampleKey]:
        """Samples of `groups` (None: of all) that are not scored."""
        chosen = self.groups if groups is None else groups
        return [
            group.key(i)
            for group in chosen
            if not group.finished
            for i in range(group.num_samples)
            if group.key(i) in self._places
        ]

    @property
    def examined(self) -> list[OpenGroup]:
        return self.groups[: self.admission.num_examined]

    @property
    def accepted(self) -> list[Group]:
        """At most `num_prompts`."""
        return [g for place in self.admission.accepted if (g := self.groups[place].group).comparable]

    @property
    def leftover(self) -> list[OpenGroup]:
        """Groups after the last accepted one."""
        return self.groups[self.admission.num_examined :]
