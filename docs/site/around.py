"""What counts as an effect around DAPO, and the refusal to state one of them from one set of base policies.

Such an effect is the size that a reader takes away, and sets of base policies differ in it by more than one set's
interval says. So every road by which an effect gets onto README or a page of docs/ asks `of_several_sets`; the mean
over sets is in pooled.py. A study's own page says what that study found.
"""

from collections.abc import Mapping

from ablations.compare.contrasts import Contrast
from ablations.designs import Setting, read_arm
from ablations.techniques import DAPO, REGISTER

SOFT, DYNAMIC, FILTERING = "soft_overlong_punishment", "dynamic_sampling", "overlong_filtering"
On = frozenset[str]
NEITHER = DAPO - {SOFT, DYNAMIC}
AROUND: dict[str, Mapping[On, float]] = {
    **{technique: {DAPO | {technique}: 1.0, DAPO - {technique}: -1.0} for technique in REGISTER},
    "soft_overlong_punishment without dynamic_sampling": {DAPO - {DYNAMIC}: 1.0, NEITHER: -1.0},
    "dynamic_sampling without soft_overlong_punishment": {DAPO - {SOFT}: 1.0, NEITHER: -1.0},
    "interaction": {DAPO: 1.0, DAPO - {DYNAMIC}: -1.0, DAPO - {SOFT}: -1.0, NEITHER: 1.0},
}
"""Effect around DAPO -> weights of the techniques that are on: each technique with minus without, soft punishment and
dynamic sampling where the other is off too, and the difference of the two."""


def normal(arm: str) -> tuple[On, dict[str, Setting]]:
    """The techniques that are on in an arm, and its settings. A penalty that is nobody's is none.

    >>> normal("dapo@overlong.punish=none") == normal("dapo-soft_overlong_punishment")
    True
    """
    read = read_arm(arm)
    settings = dict(read.settings)
    on = frozenset(read.on)
    if settings.get("algorithm.overlong.punish") == "none":
        del settings["algorithm.overlong.punish"]
        on -= {SOFT}
    return on, settings


def name(contrast: Contrast) -> str | None:
    """Which effect around DAPO a comparison is; None: it is none of them. The arms may share settings, and have
    learning rates of their own; a setting of one side is another question.

    >>> name(Contrast("", "", None, {"dapo@epochs=1": 1, "dapo-clip_higher@epochs=1": -1}))
    'clip_higher'
    >>> name(Contrast("", "", None, {"dapo@clip.high=5": 1, "dapo": -1})) is None
    True
    """
    weights: dict[On, float] = {}
    settings = []
    for arm, weight in contrast.weights.items():
        try:
            on, own = normal(arm)
        except ValueError:  # an arm of another algorithm
            return None
        weights[on] = weights.get(on, 0.0) + weight
        settings.append({key: value for key, value in own.items() if key != "algorithm.optimizer.lr"})
    if any(one != settings[0] for one in settings):
        return None
    found = (effect for effect, known in AROUND.items() if weights in (known, {on: -w for on, w in known.items()}))
    return next(found, None)


def of_several_sets(folder: str, contrast: Contrast) -> None:
    """Refuses an effect around DAPO that is read off one study.

    Raises SystemExit: it is one.
    """
    if found := name(contrast):
        raise SystemExit(
            f"experiments/{folder}: {found.replace('_', ' ')} around DAPO from one set of base policies: state the "
            "mean over sets, `<!-- n: pooled TASK EFFECT SHOW -->` (docs/site/pooled.py), or what was decided, without "
            "a size"
        )
