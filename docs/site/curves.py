"""Dynamic sampling at equal tokens in the studies before experiments/price_of_sampling, whose curve price.py draws."""

from around import DYNAMIC
from cells import cells, on_accuracy, points

from ablations.compare.contrasts import Contrast, difference
from ablations.compare.equal_budget import at_marks
from ablations.compare.statistics import Estimate
from ablations.designs import Arm
from ablations.read.outcomes import primary_metric
from ablations.techniques import DAPO

WITH, WITHOUT = Arm(DAPO).name, Arm(DAPO - {DYNAMIC}).name
REFILLED = difference("", "", None, WITH, WITHOUT)
MASKED = difference("", "", None, "dapo@dynamic_sampling.max_rounds=1", WITHOUT)
MARKS = (80_000, 160_000, 320_000)
ROWS = (
    ("sums", "mask_or_refill/joint"),
    ("sums", "cheaper_sampling/joint"),
    ("sums, groups of four", "cheaper_sampling/sparse"),
    ("programs", "mask_or_refill/programs"),
    ("programs", "cheaper_sampling/programs"),
)


def along_tokens() -> str:
    """Markdown: with minus without dynamic sampling in held-out accuracy after each mark, refilled and masked, in each
    set."""
    heads = " | ".join(f"{mark // 1000}k" for mark in MARKS)
    lines = [f"| task | base policies | less off | {heads} |", "|---" * (3 + len(MARKS)) + "|"]
    for task, folder in ROWS:
        seeds = sorted({run.seed for run in cells(folder)})
        name = f"[{seeds[0]} to {seeds[-1]}](../experiments/{folder.split('/')[0]})"
        for words, contrast in (("refilled", REFILLED), ("masked", MASKED)):
            found = dict(held_out(folder, contrast))
            texts = [points(found[mark]) if mark in found else "" for mark in MARKS]
            lines.append(f"| {task} | {name} | {words} | {' | '.join(texts)} |")
    return "\n".join(lines)


def held_out(folder: str, contrast: Contrast) -> list[tuple[int, Estimate]]:
    """With minus without in the evaluations after the steps that pass each mark, and at the end, at the budget."""
    runs = cells(folder)
    config = next(iter(runs)).config
    marks = config["evaluation"].get("at_tokens") or ()
    end = on_accuracy(folder, contrast, one_set=True).estimate
    return [*at_marks(runs, contrast, primary_metric(runs), marks), (config["budget"]["tokens_generated"], end)]
