"""The values and groups of conf/, read without Hydra: the default run, the choices, an algorithm's own switches."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ablations.errors import suggestion
from ablations.texts import read_text, yaml_tree
from dapo_lit.config.sections import as_written


def config_folder() -> Path:
    """`conf/`: inside an installed package, or at the top of the checkout."""
    package = Path(__file__).parent.parent
    # A wheel has conf/ inside the package, a checkout next to it.
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


@cache
def choice(group: str, name: str) -> dict[str, Any]:
    """The values of conf/<group>/<name>.yaml on top of those of the files in its defaults list; {} without a file."""
    file = config_folder() / group / f"{name}.yaml"
    if not file.is_file():
        return {}
    tree = yaml_tree(read_text(file), file)
    values: dict[str, Any] = {}
    # The lists of conf/ as this project writes them, and no more of Hydra, which light commands do not import.
    for base in tree.pop("defaults", ()):
        # A mapping chooses a file of another group.
        if isinstance(base, str) and base != "_self_":
            values = _merged(values, choice(group, base))
    return _merged(values, tree)


@cache
def default_run() -> dict[str, Any]:
    """The config of a run for which nothing was chosen (conf/config.yaml)."""
    tree = yaml_tree(read_text(file := config_folder() / "config.yaml"), file)
    groups = [entry for entry in tree.pop("defaults") if isinstance(entry, Mapping)]
    chosen = {group: name for entry in groups for group, name in entry.items() if " " not in group}
    return _merged({group: choice(group, name) for group, name in chosen.items()}, tree)


MOST_BYTES, MOST_VALUES = 200_000, 5_000
"""Of a file of settings; the largest of conf/ has some hundred values."""
SEARCHED = "hydra.searchpath"
"""The setting of Hydra's with further folders of configs; the flag `--config-dir` becomes it."""


def own_folders(arguments: Iterable[str]) -> list[Path]:
    """The folders of configs that a command line names besides `conf/`.

    >>> own_folders(["seed=1", "hydra.searchpath=[file:///home/me/conf]"])
    [PosixPath('/home/me/conf')]
    """
    values = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{SEARCHED}=")]
    named = [place for value in values for place in yaml_tree(value, "a setting")]
    return [Path(place.removeprefix("file://")) for place in named if place.startswith("file://")]


def group_file(group: str, name: str, own: Iterable[Path] = ()) -> dict[str, Any]:
    """What a file of a group holds, of `conf/` or of one's own folders; {} without a file."""
    files = [folder / group / f"{name}.yaml" for folder in (config_folder(), *own)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return {}
    return yaml_tree(read_text(file, MOST_BYTES), file, most=MOST_VALUES) or {}


def overridden(group: str, name: str, own: Sequence[Path] = ()) -> dict[str, str]:
    """The choices of other groups that a file and those it is built on make, such as the task of a regime."""
    tree = group_file(group, name, own)
    found: dict[str, str] = {}
    for entry in tree.get("defaults", ()):
        if isinstance(entry, Mapping):
            found |= {key.removeprefix("override /").split("@")[0]: value for key, value in entry.items()}
        elif entry != "_self_":
            found |= overridden(group, entry, own)
    return found


def switches_of(family: str) -> dict[str, bool]:
    """The switches that an algorithm's own file sets: what a run of it is named against."""
    return dict(choice("algorithm", family).get("techniques", {}))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(below[key], value) if isinstance(value, Mapping) and isinstance(below.get(key), Mapping) else value
        for key, value in above.items()
    }
    return {**below, **both}


def base_of(bases: Sequence[int] | None, seed: int) -> int:
    """The resolver `base_of` of conf/: the base policy that a seed starts from.

    Seed 40 starts from base policy 40, with noise of its own: one seed a base, so that a study speaks of base policies.
    A list of bases is taken in turn, so that seeds are nested in them. All arms of a seed share its base policy.

    >>> [base_of([1, 3, 4], seed) for seed in range(5)], base_of([], 7)
    ([1, 3, 4, 1, 3], 7)
    """
    return int(bases[seed % len(bases)]) if bases else seed


def share_of(share: float, tokens: int) -> int:
    """The resolver `share_of` of conf/: a length as a share of a limit, in tokens.

    >>> share_of(0.2, 20_480), share_of(0.2, 3)
    (4096, 1)
    """
    return max(1, round(share * tokens))


# replace=True: a second import in the same process, as notebooks make, must not fail.
OmegaConf.register_new_resolver("share_of", share_of, replace=True)
OmegaConf.register_new_resolver("base_of", base_of, replace=True)


WITH_PLUS = ("experiment", "regime", "study")
"""Groups without a default choice; Hydra wants a plus before them."""


def group_fault(
    group: str, choices: Sequence[object], added: bool, sweeps: bool, own: Sequence[Path] = ()
) -> str | None:
    """One line on what is wrong with choosing `choices` in a group; None if nothing is."""
    known, plus = known_choices(group, own), group in WITH_PLUS or not is_group(group)
    if len(choices) > 1 and not sweeps and group != "experiment":
        names = ",".join(map(str, choices))
        return f"{group}=[{names}]: one {group} at a time; {group}={names} with -m runs one after the other"
    for choice in choices:
        name = choice if isinstance(choice, str) else as_written(choice)
        # A quoted name of a sweep is of a class of Hydra's.
        is_name = choice is not None and not isinstance(choice, (bool, int, float, dict))
        if not is_name or (isinstance(choice, str) and name.removesuffix(".yaml") not in known and "/" not in name):
            form = f"{'+' if plus else ''}{group}={{}}"
            return f"{group}={name}: there is no such {group}; {suggestion(name, known, form)}"
    if plus and not added:
        chosen = ",".join(map(str, choices))
        return f"{group}={chosen}: write +{group}={chosen}, with a plus; the defaults choose no {group}"
    return None


def is_group(key: str, own: Iterable[Path] = ()) -> bool:
    """True for a group of `conf/` or of one's own folders, false for a key of the config."""
    return any((folder / key).is_dir() for folder in (config_folder(), *own))


def known_groups(own: Iterable[Path] = ()) -> list[str]:
    """The groups of `conf/` and of one's own folders."""
    folders = {child for folder in (config_folder(), *own) for child in folder.iterdir() if any(child.glob("*.yaml"))}
    return sorted(child.name for child in folders)


def known_choices(group: str, own: Iterable[Path] = ()) -> list[str]:
    """The files of a group, without their ending."""
    return sorted({file.stem for folder in (config_folder(), *own) for file in (folder / group).glob("*.yaml")})


def regime_fault(arguments: Sequence[str]) -> str | None:
    """One line if an experiment on the command line replaces the task of the regime on it; None otherwise."""
    given = dict(argument.lstrip("+").partition("=")[::2] for argument in arguments)
    regime, experiment, own = given.get("regime", ""), given.get("experiment", ""), own_folders(arguments)
    if "task" not in overridden("regime", regime, own) or "task" not in overridden("experiment", experiment, own):
        return None
    return (
        f"+experiment={experiment} brings a task of its own, which would replace that of regime={regime}; leave one out"
    )


def brings_regime(arguments: Sequence[str]) -> bool:
    """True if the experiment on a command line has a regime of its own, which `regime=NAME` then replaces."""
    chosen = [a.removeprefix("+experiment=") for a in arguments if a.startswith("+experiment=")]
    contents = [group_file("experiment", name, own_folders(arguments)) for name in chosen]
    return any("/regime" in entry for content in contents for entry in content.get("defaults", ()))
