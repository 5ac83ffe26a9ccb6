"""The plan that a study registered before its first run: study.json.

    [{"at": "2026-11-23T...", "digest": "<sha256>", "git_commit": "<sha1>", "code_hash": "...", "plan": {...}}, ...]

The launch writes the first entry before the first cell, with the state of the code as run.json has it. Once a run has
started, a later command may add seeds, which appends an entry with its date; one that promises anything else is
refused. The digest is the SHA-256 of the plan as canonical JSON.
"""

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic's until Python 3.12
)

from filelock import FileLock
from pydantic import AfterValidator, Field, Strict, with_config
from typing_extensions import TypedDict

from ablations.border import (
    EXACT,
    OPEN,
    Flag,
    FolderName,
    Moment,
    Number,
    Seeds,
    Step,
    Texts,
    checked,
)
from ablations.files.atomic import make_folder, write_text
from ablations.read.counted import counted
from ablations.read.run import Run, StudyError
from ablations.texts import MB, json_tree, read_bytes

FILE, LOCK = "study.json", ".study.lock"
MOST_BYTES = 16 * MB
"""Of study.json, which may have an entry a seed."""
CODE = ("git_commit", "code_hash")
"""What an entry says of the code, in the keys of run.json."""


Level = Annotated[Number, Field(gt=0, lt=1)]
"""A share of error."""
Pairs = Annotated[int, Strict(), Field(gt=0, le=10_000)]


def _ascending(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if list(numbers) != sorted(set(numbers)):
        raise ValueError(f"{list(numbers)} must ascend")
    return numbers


def _window(steps: tuple[int, int]) -> tuple[int, int]:
    if steps[0] > steps[1]:
        raise ValueError(f"the last step of {list(steps)} is before the first")
    return steps


@with_config(EXACT)
class Stopping(TypedDict, total=False):
    """The rule that ends a study: after so many pairs, or at the first of its looks at which all is decided."""

    until: Literal["decided"]
    looks: Annotated[tuple[Pairs, ...], Field(min_length=1, max_length=10_000), AfterValidator(_ascending)]
    pairs: Pairs


@with_config(EXACT)
@dataclass(frozen=True)
class Registered:
    """One comparison of a family."""

    label: str
    technique: str | None
    weights: Annotated[Mapping[str, Number], Field(min_length=1)]
    """Its value at a seed is the weighted sum of the arms' outcomes."""
    outcome: str
    """The key of the metric."""
    words: str
    """The metric's name for readers, because keys are frozen: avg@32 at the end is logged as avg@2."""
    direction: Literal["up", "down", "either"] = "either"
    """The sign that is expected: up, down or either. The test has two sides in any case."""
    steps: Annotated[tuple[Step, Step], AfterValidator(_window)] | None = None
    """The rollout steps that the outcome is averaged over; None: the run's last values."""


@with_config(EXACT)
@dataclass(frozen=True)
class Family:
    """Comparisons that are decided together, at a share of the study's error."""

    name: str
    alpha: Level
    contrasts: Annotated[tuple[Registered, ...], Field(max_length=1000)]
    margin: Annotated[Number, Field(gt=0)] | None = None
    """A smaller difference does not matter; None: no margin was named."""


@with_config(EXACT)
@dataclass(frozen=True)
class Plan:
    """A study's promises; None where it promises nothing."""

    study: str
    metric: str | None = None
    """The primary metric."""
    reference: str | None = None
    arms: Annotated[tuple[FolderName, ...], Field(max_length=1000)] = ()
    seeds: Seeds = ()
    bases: Seeds = ()
    """Base policies that the seeds take in turn; empty: each seed has its own."""
    family: str | None = None
    """The decided family in plans of earlier versions, which named no contrasts."""
    families: Annotated[tuple[Family, ...], Field(max_length=100)] = ()
    rule: str | None = None
    """The rule that decides a comparison."""
    stopping: Stopping | None = None
    """The rule that ends the study."""
    budget: Mapping[str, Number | None] | None = None
    """Limits on steps, tokens_generated and wall_s; a run ends at the first that it reaches."""
    budgets: Seeds = ()
    """Generated tokens at which differences are reported where every run has generated as many; empty: none named."""
    alpha: Level = 0.05
    declared: Texts = ()
    """Config keys in which arms may differ, in addition to the switches."""
    pilot: Flag = False
    """Nothing is decided, and the code may have been of no commit."""
    event: Mapping[str, Any] | None = None
    """In plans of earlier versions, a time-to-event outcome, which reports no longer decide."""

    @classmethod
    def read(cls, tree: Mapping[str, Any], place: object = "a study's plan") -> "Plan":
        """A plan from the JSON of an entry. Raises StudyError in one line: place, field, what it must be."""
        plan = checked({**tree}, cls, place, StudyError)
        compared = {arm for family in plan.families for one in family.contrasts for arm in one.weights}
        if plan.arms and (unknown := sorted(compared - {*plan.arms})):
            raise StudyError(f"{place}: its families compare {unknown[0]!r}, which is not among its arms")
        return plan

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of base policies after which a study looks; none where it looks once, at all registered seeds."""
        return tuple((self.stopping or {}).get("looks", ()))

    def counted(self, seeds: Collection[int]) -> list[int]:
        """Of the seeds that a comparison has, those that its verdict may count, in the order in which they count.

        A study that looks once counts the registered seeds, and none while one of them is missing: its cell failed, or
        trains on another machine. Seeds that were added later count at no look of it. One that looks several times
        counts up to the first registered seed that is missing. So no verdict depends on which cell is late.
        """
        found = counted(seeds, sorted(self.seeds))
        if len(self.looks) > 1:
            return found
        look = len(self.seeds) or len(found)
        return found[:look] if len(found) >= look else []

    @property
    def digest(self) -> str:
        return digest(as_tree(self))


@with_config(OPEN)
class Entry(TypedDict):
    """One entry of study.json. Its plan stays a tree, because its digest is of that."""

    at: Moment
    plan: dict[str, Any]
    digest: NotRequired[str]
    git_commit: NotRequired[str | None]
    code_hash: NotRequired[str | None]


def as_tree(plan: Plan) -> dict[str, Any]:
    """A plan as JSON holds it."""
    return dict(json.loads(json.dumps(asdict(plan))))


def digest(tree: Mapping[str, Any]) -> str:
    """SHA-256 of canonical JSON: keys sorted, no spaces.

    >>> digest({"b": 1, "a": [2]})[:12]  # of {"a":[2],"b":1}
    '63c9663de90e'
    """
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def entries_in_force(folder: Path, packed: Path | None = None) -> list[Entry]:
    """The entries that a further plan has to agree with: of the study's folder once a run of it has started, else those
    of the packed cells that it extends."""
    # Until then nothing was promised that a result could have changed, and a mistyped plan can be mended.
    started = any(folder.glob("*/seed_*/run.json"))
    return (read_entries(folder) if started else []) or (read_entries(packed) if packed else [])


def with_plan(
    entries: list[Entry], plan: Plan, folder: Path, code: Mapping[str, str | None] | None = None
) -> list[Entry]:
    """The entries with what the plan adds to them: all of it to none, else its seeds.

    code: `git_commit` and `code_hash` of what is about to run; None where nothing will be written.

    Raises StudyError: the entries promise anything else than the plan.
    """
    tree = as_tree(plan)
    if entries:
        registered = entries[-1]["plan"]
        # Seeds may be added: looks at further ones are in the rule. `family` is of earlier versions.
        known = {key: value for key, value in registered.items() if key not in ("seeds", "family")}
        if changed := [key for key, value in known.items() if tree[key] != value]:
            shown = "; ".join(f"{key} {_short(registered[key])}, now {_short(tree[key])}" for key in changed)
            raise StudyError(
                f"{folder / FILE} registers another study ({shown}); repeat its command with further seeds, or give "
                "this one a name of its own: study_name=..."
            )
        tree = {**registered, "seeds": sorted({*registered["seeds"], *plan.seeds})}
        if tree == registered:
            return entries
    at = datetime.now(UTC).isoformat(timespec="seconds")
    commit, hashed = ((code or {}).get(key) for key in CODE)
    return [*entries, Entry(at=at, digest=digest(tree), git_commit=commit, code_hash=hashed, plan=tree)]


def register(folder: Path, plan: Plan, packed: Path | None = None, code: Mapping[str, str | None] | None = None) -> str:
    """Writes the plan into the study's folder and returns its digest. A plan of which no run has started is replaced;
    to any other, only seeds are added.

    packed: the packed cells that the study extends; their registration is taken over.
    code: as in `with_plan`.
    """
    make_folder(folder)
    with FileLock(folder / LOCK):  # two commands may start the same study
        own, entries = read_entries(folder), with_plan(entries_in_force(folder, packed), plan, folder, code)
        # Without its date: the same command again is no further promise.
        if list(map(_promise, own)) != list(map(_promise, entries)):
            write_text(folder / FILE, json.dumps(entries, indent=1) + "\n")
    return digest(entries[-1]["plan"])


def _promise(entry: Mapping[str, Any]) -> list[Any]:
    """An entry without its date."""
    return [entry.get(key) for key in ("plan", *CODE)]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def read_entries(folder: Path) -> list[Entry]:
    """The entries of study.json, first the registration; none where there is no file."""
    file = folder / FILE
    if not file.is_file():
        return []
    entries = checked(
        json_tree(read_bytes(file, MOST_BYTES, StudyError), file, StudyError), list[Entry], file, StudyError
    )
    if not entries:
        raise StudyError(f"{file}: there is no plan in it")
    for number, entry in enumerate(entries):
        Plan.read(entry["plan"], f"{file}, entry {number}")
        # It finds a change by hand. Whoever changes the digest too is found by git, where the file is committed.
        if entry.get("digest", digest(entry["plan"])) != digest(entry["plan"]):
            raise StudyError(f"{file}: the plan of {entry['at']} does not have its digest: it was changed by hand")
    return entries


def read_plan(folder: Path) -> tuple[Plan | None, list[str]]:
    """The plan as it was first registered, and what was added or edited after that (one sentence a changed key)."""
    entries = read_entries(folder)
    if not entries:
        return None, []
    edits = [
        f"{key} was changed at {after['at']} from {before['plan'].get(key)} to {after['plan'].get(key)}"
        for before, after in itertools.pairwise(entries)
        for key in sorted({*before["plan"], *after["plan"]})
        if before["plan"].get(key) != after["plan"].get(key)
    ]
    return Plan.read(entries[0]["plan"]), edits


def last_plan(folder: Path) -> Plan | None:
    """The plan as it was last registered; None where there is none."""
    entries = read_entries(folder)
    return Plan.read(entries[-1]["plan"]) if entries else None


def doubts(folder: Path, runs: Sequence[Run]) -> list[str]:
    """What speaks against a registration, a sentence each: there is none, it is a pilot's, runs ran other code, or
    one had started before (as when study.json is deleted)."""
    entries = read_entries(folder)
    if not entries:
        return ["No plan was registered before the first run."]
    found = []
    if entries[0]["plan"].get("pilot"):
        found.append("A pilot: nothing was registered to be decided, and its code need not have been committed.")
    named = {hashed for entry in entries if (hashed := entry.get("code_hash"))}
    if named and (others := {str(run.record.get("code_hash")) for run in runs} - named):
        found.append(f"Registered with the code {', '.join(sorted(named))}; runs ran {', '.join(sorted(others))}.")
    # The runs have their own clock in run.json, so that a study.json that was written anew is seen.
    starts = [datetime.fromisoformat(str(run.record["started_at"])) for run in runs if run.record.get("started_at")]
    at = datetime.fromisoformat(str(entries[0]["at"]))
    if starts and min(starts) < at:
        found.append(f"The plan was registered at {at}, after the first run had started ({min(starts)}).")
    return found
