"""The equivalence matrix: {one process, FSDP on one and two, 16-bit copies, checkpointing} x {as it is, prefixes
shared, LoRA, a step ahead, corrected, episodes of several turns} x the algorithms, against the float64 of
tests/reference.py. Compiled layers, three steps ahead and carried answers have a few algorithms each.

The reference starts each update from the weights that the package had, and gives its loss and every parameter's
gradient, over two or three rollout steps of two epochs. The step that follows is the reference's optimiser's. `make
test` runs the diagonal, DAPO_LIT_MATRIX=1 (`make sweeps`) every cell. DAPO from problems to metrics, with every switch
toggled: tests/test_one_file.py.
"""

import ast
import math
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from command_line import run_cli
from equivalence_case import AHEAD, ALGORITHMS, CLIP, DECAY, LR, VARIANTS, WAYS, settings_of
from reference import AdamW, Reference, Samples, clip_scale

WHOLE = bool(os.environ.get("DAPO_LIT_MATRIX"))
DIAGONAL = [
    "single:prefixes:all five", "16-bit copies:plain:dapo", "fsdp 2:lora:grpo",
    "checkpointing:plain:gspo, some tokens", "fsdp 2:ahead:dapo", "single:ahead:icepop", "single:plain:reinforce++",
    "single:plain:adamw", "single:turns and prefixes:all five", "fsdp 2:turns, corrected:critic", "single:turns:gspo",
    "single:turns:penalty by pass rate", "single:plain:microbatch",
    "single:branches:parts of a user's file", "single:carried:icepop",
    "fsdp 2:plain:penalty in mixed groups, entropy control",
]  # fmt: skip
CORRECTED = {name for name, (_, settings) in ALGORITHMS.items() if settings.correction} | {"rollout"}
"""Algorithms with a correction of their own, or none that is possible."""
FEW = {
    "compiled": ("dapo", "gspo, some tokens"), "three ahead": ("dapo", "icepop"), "carried": ("dapo", "icepop"),
    "turns, corrected": ("critic",),
}  # fmt: skip
"""Ways and variants that are slow, of sampling, or two at once: with these algorithms only."""
MATRIX = [
    f"{way}:{variant}:{algorithm}"
    for way in WAYS
    for variant in (VARIANTS if way in ("single", "fsdp 2") else ("plain",))
    for algorithm in ALGORITHMS
    if variant != "correction" or algorithm not in CORRECTED
    if not {way, variant} & {*FEW} or algorithm in FEW.get(way, FEW.get(variant, ()))
]
CELLS = list(dict.fromkeys([*DIAGONAL, *MATRIX])) if WHOLE else DIAGONAL
TOLERANCE = dict.fromkeys(WAYS, 2e-5) | {"16-bit copies": 0.1}
"""Of a gradient's difference, relative to its norm. 16 bits: of the first update, before ratios leave 1."""
ORDINARY = 20.0
"""About the norm of a mini-batch's gradient here. One without advantages, whose groups are all right or all wrong, has
a gradient of rounding only, and that is compared with this."""


@pytest.fixture(scope="module")
def cells(made_once, request) -> Path:
    """The folder with the records of every cell that a selected test asks for."""
    selected = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = list(dict.fromkeys(params["cell"] for params in selected if params.get("cell") in CELLS))

    def make(out: Path) -> None:
        done = run_cli(str(out), *names, cwd=Path(__file__).parents[1], module="lit.equivalence_case", timeout=3000)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    return made_once("cells", make)


def load(cells: Path, cell: str) -> list[dict]:
    return [torch.load(file, weights_only=False) for file in sorted(cells.glob(f"{cell}.*.pt"))]


def doubled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.double() for name, tensor in tensors.items()}


@cache
def expected(cells: Path, cell: str) -> list[dict[str, Any]]:
    """Of each rollout step the reference's losses, gradients and statistics, from the weights that rank 0 had."""
    found, steps = load(cells, cell)[0], []
    mine = Reference(settings_of(cell), found["shape"], doubled(found["start"]))
    for step in found["steps"]:
        samples, updates = step["samples"], step["updates"]
        known = mine.known(samples, doubled(updates[0]["before"]), step["version"])
        record: dict[str, Any] = {"losses": [], "gradients": [], "sums": [], "tokens": []}
        for update in updates:
            leaves = {name: tensor.requires_grad_() for name, tensor in doubled(update["before"]).items()}
            chosen, micro = (torch.tensor(update[name]) for name in ("chosen", "micro"))
            policy, critic, sums = mine.losses(samples, known, chosen, leaves, micro)
            gradients = torch.autograd.grad(policy + critic, list(leaves.values()), allow_unused=True)
            record["losses"].append(float(policy.detach()))
            record["gradients"].append({n: g for n, g in zip(leaves, gradients, strict=True) if g is not None})
            record["sums"].append(sums)
            record["tokens"].append(int(known.there[update["chosen"]].sum()))
        record["bonus"], first = mine.bonus, len(updates) // 2
        mine.after_step(sum(sums["policy/entropy"] for sums in record["sums"][:first]) / sum(record["tokens"][:first]))
        steps.append(record)
    return steps


@pytest.mark.parametrize("cell", CELLS)
def test_losses_and_gradients_are_those_of_the_papers(cells, cell):
    way = cell.split(":")[0]
    tolerance, ranks = TOLERANCE[way], load(cells, cell)
    assert len(ranks) == WAYS[way][0]
    for rank in ranks:
        for step, record in zip(rank["steps"], expected(cells, cell), strict=True):
            assert sorted(b for update in step["updates"] for b in update["chosen"]) == sorted(
                [*range(len(step["samples"].responses))] * 2  # each completion once an epoch
            )
            for index, update in enumerate(step["updates"][:1] if way == "16-bit copies" else step["updates"]):
                assert update["loss"] == pytest.approx(record["losses"][index], rel=tolerance, abs=tolerance)
                gradients = record["gradients"][index]
                assert update["gradients"].keys() == gradients.keys()
                scale = max(float(clip_scale(gradients, 1.0)[0]), ORDINARY)
                for name, gradient in gradients.items():
                    error = float((update["gradients"][name].double() - gradient).norm())
                    assert error <= tolerance * max(float(gradient.norm()), 1e-2 * scale), (index, name)


@pytest.mark.skipif(not WHOLE, reason="a cell of the whole matrix: DAPO_LIT_MATRIX=1")
@pytest.mark.parametrize("cell", ["16-bit copies:plain:sequence mask"])
def test_16_bits_put_no_completion_on_the_other_side_of_a_bound_of_its_mask(cells, cell):
    """They move the logarithm of a product over ten tokens by up to 0.11, and one that changes sides is no rounding."""
    found = load(cells, cell)[0]
    mine = Reference(settings_of(cell), found["shape"], doubled(found["start"]))
    for step in found["steps"]:
        known = mine.known(step["samples"], doubled(step["updates"][0]["before"]), step["version"])
        products = ((known.old - step["samples"].engine_logprobs) * known.there).sum(1)
        low, high = map(math.log, mine.s.band)
        assert min(float((products - bound).abs().min()) for bound in (low, high)) > 0.2
        # Completions are kept, and each bound drops some.
        assert {int(side) for side in (products > low).int() + (products > high).int()} == {0, 1, 2}


EXACT = [cell for cell in CELLS if not cell.startswith("16-bit copies")]


@pytest.mark.parametrize("cell", EXACT)
def test_what_is_counted_of_the_first_epoch_is_what_the_reference_counts(cells, cell):
    for step, record in zip(load(cells, cell)[0]["steps"], expected(cells, cell), strict=True):
        first, tokens = len(step["updates"]) // 2, sum(record["tokens"]) / 2
        for key in record["sums"][0]:
            found = sum(sums[key] for sums in record["sums"][:first]) / tokens
            assert step["metrics"][key] == pytest.approx(found, rel=1e-4, abs=1e-6), key
        if cell.endswith("entropy control"):
            assert step["metrics"]["policy/entropy_bonus"] == pytest.approx(record["bonus"])


@pytest.mark.parametrize("cell", CELLS)
def test_the_recorded_norm_is_of_all_gradients_and_every_parameter_is_clipped_by_it(cells, cell):
    for rank in load(cells, cell):
        adamw = AdamW((0.8, 0.9), 1e-3, DECAY) if cell.endswith("adamw") else None
        for number, step in enumerate(rank["steps"]):
            updates, norms = step["updates"], []
            for update, then in zip(updates, [*(u["before"] for u in updates[1:]), step["after"]], strict=True):
                for part in ("policy.", "critic."):
                    before = {n: w for n, w in doubled(update["before"]).items() if n.startswith(part)}
                    gradients = {n: g for n, g in doubled(update["gradients"]).items() if n.startswith(part)}
                    if not gradients:
                        continue
                    norm, scale = clip_scale(gradients, CLIP)
                    norms += [norm] if part == "policy." else []
                    clipped = {name: scale * gradient for name, gradient in gradients.items()}
                    if adamw:  # the rate falls to 0 after the last step
                        after = adamw.step(before, clipped, lr=0.002 * (1 - number / len(rank["steps"])))
                    else:
                        after = {name: before[name] - LR * gradient for name, gradient in clipped.items()}
                    for name, weight in after.items():
                        moved, rounding = float((weight - before[name]).norm()), 2e-7 * float(weight.norm())
                        assert float((then[name].double() - weight).norm()) <= 1e-4 * moved + rounding, name
            assert step["metrics"]["optim/grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-5)
            own = [{n: g for n, g in doubled(u["gradients"]).items() if n.startswith("policy.")} for u in updates]
            flat = torch.stack([torch.cat([g.flatten() for g in gradients.values()]) for gradients in own])
            noise = flat.var(0).sum() / flat.mean(0).square().sum()
            if flat.any():
                assert step["metrics"]["optim/grad_noise"] == pytest.approx(float(noise), rel=1e-4)
            else:  # of gradients that are all 0
                assert step["metrics"]["optim/grad_noise"] is None


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.split(":")[1] in AHEAD])
def test_each_token_comes_from_the_weights_of_the_version_it_claims(cells, cell):
    found = load(cells, cell)[0]
    mine = Reference(settings_of(cell), found["shape"], doubled(found["start"]))
    weights = {step["version"]: doubled(step["updates"][0]["before"]) for step in found["steps"]}
    for number, step in enumerate(found["steps"]):
        samples: Samples = step["samples"]
        there = reference.padded(samples.policy).bool()
        if ahead := AHEAD[cell.split(":")[1]]:
            (version,) = samples.versions[there].unique().tolist()
            assert step["version"] - version == min(number, ahead) == step["sampled"]["sampling/staleness_max"]
        for version in samples.versions[there].unique().tolist():
            of_it = there & (samples.versions == version)
            with torch.no_grad():
                logprobs, _ = mine.logprobs(weights[version], samples)
            torch.testing.assert_close(logprobs[of_it], samples.engine_logprobs[of_it], rtol=0, atol=1e-5)
    if not ahead:
        rows = [row[row >= 0] for step in found["steps"] for row in step["samples"].versions]
        assert any(len(row.unique()) > 1 for row in rows)  # an answer that two versions sampled


@pytest.mark.parametrize("cell", DIAGONAL)
def test_a_cell_reaches_what_it_is_there_for(cells, cell):
    """Bounds cut tokens, gradients are clipped, answers are right, wrong and truncated."""
    steps = load(cells, cell)[0]["steps"]
    for step in steps:
        assert step["metrics"]["optim/grad_norm"] > 2 * CLIP
        assert 0 < step["samples"].correct.float().mean() < 1
    assert any(step["samples"].truncated.any() for step in steps)
    observed = [row for step in steps for row in step["samples"].policy if False in row]
    assert bool(observed) == cell.split(":")[1].startswith("turns")
    if cell.endswith(":microbatch"):
        assert all(max(update["micro"]) >= 1 for step in steps for update in step["updates"])
    if "mixed groups" in cell:  # groups that are all wrong, where it differs from the penalty of all answers
        samples = [step["samples"] for step in steps]
        assert any((s.correct[s.groups == g] == 0).all() for s in samples for g in s.groups.unique())
    assert all(row[-1] for row in observed)
    if cell.endswith("entropy control"):
        assert len({step["metrics"]["policy/entropy_bonus"] for step in steps}) == len(steps)
    for side in ("low", "high"):
        assert cell.endswith("adamw") or any(step["metrics"][f"clip/{side}_frac"] > 0 for step in steps)


def test_the_reference_imports_torch_and_nothing_of_the_package():
    tree = ast.parse(Path(reference.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {a.name for node in imports for a in node.names if isinstance(node, ast.Import)}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}
