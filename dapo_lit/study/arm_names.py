"""Reading an arm's name back into its switches and settings, and telling a mistyped one."""

import difflib

import yaml

from dapo_lit.study.designs import DAPO, NAIVE_GRPO, TECHNIQUES, Arm, Design, Setting

OUTSIDE = ("rollout.", "reward.", "policy.", "task.", "trainer.", "evaluation.", "budget.")
"""Keys that stand in a name as they are; all others are short for `algorithm.<key>`."""


def read_arm(name: str) -> Arm:
    """The arm of a name as `Arm.name` writes it.

    >>> read_arm("dapo-clip_higher@optimizer.lr=0.0003").settings
    {'algorithm.optimizer.lr': 0.0003}

    Raises:
        ValueError: not such a name, with what is wrong about it and how it is written.
    """
    vector, *settings = name.split("@")
    reference, base = next(
        (
            (word, switches)
            for word, switches in (("naive_grpo", NAIVE_GRPO), ("dapo", DAPO))
            if vector.startswith(word)
        ),
        ("", {}),
    )
    if not reference:
        raise ValueError(f"{name!r} is no arm: a name begins with dapo or naive_grpo")
    techniques = dict(base)
    for change in vector[len(reference) :].replace("+", " +").replace("-", " -").split():
        if change[1:] not in TECHNIQUES or change[0] not in "+-":
            near = difflib.get_close_matches(change.lstrip("+-"), TECHNIQUES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(TECHNIQUES)}"
            raise ValueError(f"{name!r} is no arm: {change.lstrip('+-')} is no technique; {hint}")
        techniques[change[1:]] = change[0] == "+"
    arm = Arm(techniques, dict(_setting(name, text) for text in settings))
    if arm.name != name:
        raise ValueError(f"{name!r}: this arm's one name is {arm.name!r}")
    return arm


def find_arm(study: Design, name: str) -> Arm:
    """The arm of a study by its name.

    Raises:
        ValueError: the study has no such arm; with the nearest one, or all.
    """
    for arm in study.arms:
        if arm.name == name:
            return arm
    near = difflib.get_close_matches(name, study.names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"its arms are {', '.join(study.names)}"
    raise ValueError(f"study {study.name} has no arm {name!r}; {hint}")


def _setting(name: str, text: str) -> tuple[str, Setting]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{name!r} is no arm: @{text} has no value; a setting is written @clip.high=0.5")
    # YAML 1.1 reads 1e-4 as text.
    try:
        read: Setting = int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        read = yaml.safe_load(value)
    return (key if key.startswith(OUTSIDE) else f"algorithm.{key}"), read
