"""The ablation of a converted run: the commands that run it again without each technique that it has.

A study sets the switches itself, and comes with values of its own (conf/study/shared), so its arguments are
not those of the run with a word added: each key in which the study would differ from the run is given.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablations.command_text import command, setting
from ablations.compare.statistics import pairs_needed
from ablations.designs import Arm, switches
from ablations.trainer import flatten
from dapo_lit.config.shipped import is_group
from dapo_lit_tools.conversion.converted import WANTED
from dapo_lit_tools.conversion.shell_text import in_lines

OF_A_STUDY = (
    "algorithm.techniques", "evaluation.final_samples", "fork", "resume", "seed", "study", "study_name",
    "task.base_seed",
)  # fmt: skip
"""Keys that a study sets for its arms and seeds, or that it has so that arms can be compared."""


def ablation(settings: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    """Lines for a shell: what the study costs, the study, and one technique with a trial before it.

    settings: as the conversion has them; run: the composed config of its command.
    """
    from dapo_lit.cli.config_tree import composed_tree, resolved

    on = frozenset(technique for technique, value in run["algorithm"]["techniques"].items() if value)
    reference = Arm(on).name
    others = [Arm(on - {technique}).name for technique in switches(on) if technique in on] or [
        Arm(frozenset({technique})).name for technique in switches(on)
    ]
    name = re.sub(r"\W+", "_", str(settings.get("study_name", "run"))).strip("_")
    design = [
        "+study=leave_one_out", setting("study.name", f"ablation_{name}"),
        setting("study.arms", [reference, *others]), setting("study.reference", reference),
    ]  # fmt: skip
    groups = [setting(key, value) for key, value in settings.items() if is_group(key)]
    # Without interpolations, as for the run.
    study = flatten(resolved(composed_tree([*groups, *(setting(key, WANTED[key]) for key in WANTED), *design])))
    study |= dict.fromkeys(WANTED)  # given in any case
    given = {key: value for key, value in settings.items() if not is_group(key) and not _is_of(key, OF_A_STUDY)}
    wanted = {key: value for key, value in given.items() if study.get(key, ...) != value}
    wanted |= {
        key: value
        for key, value in flatten(run).items()
        if study.get(key, ...) != value and not _is_of(key, (*OF_A_STUDY, *given))
    }
    seeds = pairs_needed(len(others))
    yield (
        "\nIts ablation, with the same values: the run without each technique that it has"
        if on
        else ("\nIts ablation, with the same values: it has none of the techniques, and each is added")
    )
    yield from in_lines(
        "run=(", [*groups, *("+" * (study.get(key) == {}) + setting(key, v) for key, v in wanted.items())], ")"
    )
    yield from in_lines("study=(", [*design, f"seed=range(0,{seeds})"], ")")
    turned_on = "".join(f" algorithm.techniques.{technique}=true" for technique in switches(on) if technique in on)
    number = seeds * (1 + len(others))
    yield f'{command("plan")} "${{run[@]}}"{turned_on} runs={number} hardware=h100'
    if run["trainer"]["devices"] != 1 or run["trainer"]["num_nodes"] != 1:
        yield "# on several GPUs under torchrun or srun, like the run itself: docs/tutorials/cluster.md"
    yield f'{command("train")} -m "${{run[@]}}" "${{study[@]}}"'
    first = next((technique for technique in switches(on) if technique in on), "clip_higher")
    yield "# or one technique, after a few steps that show whether it can act:"
    yield f'{command("ablate")} {first} --as-given "${{run[@]}}"{turned_on}'


def _is_of(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)
