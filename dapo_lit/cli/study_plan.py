"""What a study promises before its first run: enough pairs to decide, and its plan in study.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from dapo_lit.config import Config, ConfigError
from dapo_lit.files import make_folder, remove_empty
from dapo_lit.study.compare.contrasts import contrasts, primary_family
from dapo_lit.study.compare.decision import pairs_needed
from dapo_lit.study.designs import Design
from dapo_lit.study.read.registration import FILE, Plan, last_plan, register
from dapo_lit.study.read.runs import StudyError
from dapo_lit.techniques import REGISTER

LOCK = ".study.lock"


def check_power(study: Design, config: Config, seeds: Sequence[int]) -> None:
    """Refuses a study whose test cannot reach alpha, whatever its runs turn out to be.

    Raises:
        ConfigError: too few seeds for the comparisons that the study decides.
    """
    section = config.study
    assert section is not None
    before = _registered(config)
    pairs = len({*seeds, *(before.seeds if before else ())})
    found = contrasts(study.names, study.reference)
    family = primary_family(found)
    comparisons = 1 if section.event else sum(contrast.family == family for contrast in found)
    if section.underpowered or not comparisons or pairs >= pairs_needed(comparisons, section.alpha):
        return
    raise ConfigError(
        f"study {study.name}: {pairs} seed{'' if pairs == 1 else 's'} cannot decide anything: the smallest exact p of "
        f"{pairs} pairs is {2.0 ** (1 - pairs):.2g}, and {comparisons} comparison{'' if comparisons == 1 else 's'} at "
        f"alpha {section.alpha:g} need{'s' if comparisons == 1 else ''} {section.alpha / comparisons:.2g}. Take "
        f"'seed=range(0,{pairs_needed(comparisons, section.alpha)})' or more, or study.underpowered=true to run it "
        "nonetheless"
    )


@dataclass(frozen=True)
class Registration:
    """A plan that was registered for runs which are about to start."""

    folder: Path
    made: tuple[Path, ...]
    """Folders that were made for it, innermost first."""
    before: str | None
    """Content of study.json until then; None: there was none."""
    after: str
    runs: frozenset[tuple[Path, int]]

    def withdrawn_unless_started(self) -> bool:
        """Puts study.json back if no run of the study was started or resumed since: the command was refused."""
        file = self.folder / FILE
        with FileLock(self.folder / LOCK):
            if _runs(self.folder) != self.runs or file.read_text() != self.after:  # started, or of another command
                return False
            if self.before is not None:
                file.write_text(self.before)
                return True
            file.unlink()
            (self.folder / LOCK).unlink()
        remove_empty(self.made)
        return True


def register_plan(study: Design, config: Config, seeds: Sequence[int]) -> Registration:
    """Registers the plan in the study's folder; seeds that were registered before stay in it.

    Raises:
        ConfigError: the plan that is there cannot be read.
    """
    section = config.study
    assert section is not None
    folder = Path(config.runs_dir) / config.study_name
    made = make_folder(folder)
    file = folder / FILE
    with FileLock(folder / LOCK):  # two multiruns may launch the same study
        content = file.read_text() if file.is_file() else None
        before = _registered(config)
        registered = {*seeds, *(before.seeds if before else ())}
        plan = Plan(
            study=study.name,
            metric=section.metric,
            reference=study.reference,
            arms=study.names,
            seeds=tuple(sorted(registered)),
            bases=section.bases if config.policy.path is None else (),
            family=primary_family(contrasts(study.names, study.reference)),
            budget=config.budget.model_dump(),
            alpha=section.alpha,
            declared=tuple(sorted(declared_keys(study, config))),
            event=section.event.model_dump() if section.event else None,
        )
        register(folder, plan)
        return Registration(folder, made, content, file.read_text(), _runs(folder))


def _runs(folder: Path) -> frozenset[tuple[Path, int]]:
    """The records of a study's runs, with the time of their last change."""
    return frozenset((record, record.stat().st_mtime_ns) for record in folder.glob("*/seed_*/run.json"))


def _registered(config: Config) -> Plan | None:
    """The plan that the study's folder has.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return last_plan(Path(config.runs_dir) / config.study_name)
    except StudyError as error:
        raise ConfigError(str(error)) from None


def declared_keys(study: Design, config: Config) -> set[str]:
    """Config keys in which the arms may differ. Arms from study.arms declare only their switches."""
    assert config.study is not None
    switches = {f"algorithm.techniques.{technique}" for technique in REGISTER}
    own = config.study.arms is not None
    return {key for key in study.declared if not own or key in switches} | set(config.study.declared)
