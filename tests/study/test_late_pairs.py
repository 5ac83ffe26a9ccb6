"""No claim is withdrawn, whatever the order in which runs end: studies, ledgers, and the logs of other trainers."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations.compare.contrasts import Contrast, compare
from ablations.compare.effects import _judged
from ablations.compare.referee import referee
from ablations.read.counted import counted
from ablations.read.ledger import Ledger, read_ledger
from ablations.read.registration import Family, Plan, Registered
from ablations.read.run_ledger import _change
from dapo_lit.decide import main

PAIRS, LOOKS = 12, (8, 12)
WEIGHTS = {"with": 1.0, "without": -1.0}
Ended = Mapping[str, Mapping[int, float]]
"""Side -> pair -> value, of the runs that have ended."""
Verdict = tuple[str, int | None]


def plan(*looks: int) -> Plan:
    family = Family("f", 0.05, (Registered("c", None, WEIGHTS, "value", ""),))
    stopping = {"until": "decided", "looks": looks} if len(looks) > 1 else {"pairs": PAIRS}
    return Plan("s", seeds=tuple(range(PAIRS)), families=(family,), stopping=stopping)


def claim(ledger: Ledger) -> Verdict:
    (row,) = referee(ledger, "claims", most=PAIRS)["changes"]
    return row["claim"]["verdict"], row["claim"]["at_pairs"]


def of_ledger(ended: Ended, folder: Path, planned: tuple[str, ...] = ()) -> Verdict:
    pairs = sorted({*ended["with"], *ended["without"]}, reverse=True)
    rows = [f"c,{pair},{ended['with'].get(pair, '')},{ended['without'].get(pair, '')}" for pair in pairs]
    (folder / "ledger.csv").write_text("\n".join(["change,pair,with,without", *rows]) + "\n")
    found = read_ledger(folder / "ledger.csv")
    return claim(Ledger(**{**vars(found), "planned": planned})) if found.changes[0].pairs else ("undecided", None)


def of_runs(ended: Ended, registered: Plan | None, planned: tuple[str, ...] = ()) -> Verdict:
    """As `run_ledger` makes it of a study or of logs."""
    if not {*ended["with"]} & {*ended["without"]}:
        return "undecided", None
    base_of = {seed: str(seed) for seed in range(PAIRS)}
    change = _change("with", ended["with"], ended["without"], base_of, {}, "without", registered)
    return claim(Ledger("s", "study", (change,), looks=registered.looks or (PAIRS,) if registered else None,
                        planned=planned))  # fmt: skip


def of_report(ended: Ended, registered: Plan) -> Verdict:
    effect = compare(Contrast("f", "c", None, WEIGHTS), ended)
    (row,) = _judged(registered.families[0], [effect], registered)
    return (row.verdict, None) if row.decided else ("undecided", None)


NAMES = tuple(map(str, range(PAIRS)))
SOURCES: dict[str, Callable[[Ended, Path], Verdict]] = {
    "a ledger whose pairs are named": lambda ended, folder: of_ledger(ended, folder, NAMES),
    "logs whose pairs are named": lambda ended, folder: of_runs(ended, None, NAMES),
    "a study that looks twice, decide": lambda ended, folder: of_runs(ended, plan(*LOOKS)),
    "a study that looks once, decide": lambda ended, folder: of_runs(ended, plan(PAIRS)),
    "a study that looks twice, report": lambda ended, folder: of_report(ended, plan(*LOOKS)),
    "a study that looks once, report": lambda ended, folder: of_report(ended, plan(PAIRS)),
}
BEGUN_IN_ORDER: dict[str, Callable[[Ended, Path], Verdict]] = {
    "a ledger": of_ledger,
    "logs": lambda ended, folder: of_runs(ended, None),
}
RUNS = [(side, pair) for pair in range(PAIRS) for side in WEIGHTS]
VALUES = st.lists(st.integers(-2, 10), min_size=PAIRS, max_size=PAIRS)
"""Gains, most of them: look by look some are claimed, some are not."""


def arrivals(gains: list[int], order: list[tuple[str, int]]) -> Iterator[Ended]:
    ended: dict[str, dict[int, float]] = {side: {} for side in WEIGHTS}
    for side, pair in order:
        ended[side][pair] = gains[pair] * (side == "with") + 200 + 0.25 * pair  # neither shares nor percent
        yield ended


def hold(
    source: Callable[[Ended, Path], Verdict], gains: list[int], order: list[tuple[str, int]], folder: Path
) -> None:
    verdicts = [source(ended, folder) for ended in arrivals(gains, order)]
    for before, after in itertools.pairwise(verdicts):
        assert before[0] == "undecided" or after == before
    in_order = [source(ended, folder) for ended in arrivals(gains, RUNS)]
    assert verdicts[-1] == in_order[-1]


@pytest.mark.parametrize("source", SOURCES)
@given(gains=VALUES, order=st.permutations(RUNS))
@settings(deadline=None, max_examples=8)
def test_no_claim_is_withdrawn_whatever_the_order_in_which_runs_end(source, gains, order, tmp_path_factory) -> None:
    hold(SOURCES[source], gains, order, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("source", BEGUN_IN_ORDER)
@given(gains=VALUES, second=st.permutations(range(PAIRS)))
@settings(deadline=None, max_examples=8)
def test_nor_without_names_where_pairs_begin_in_order(source, gains, second, tmp_path_factory) -> None:
    order = [*(("without", pair) for pair in range(PAIRS)), *(("with", pair) for pair in second)]
    hold(BEGUN_IN_ORDER[source], gains, order, tmp_path_factory.getbasetemp())


def test_a_late_pair_of_a_ledger_is_awaited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight pairs gain, the one that is missing loses three times as much as they gain."""
    file, rows = tmp_path / "ledger.csv", [f"c,{pair},{1 + 0.1 * pair},0" for pair in range(9) if pair != 3]

    def answer(late: str, *further: str) -> str:
        file.write_text("\n".join(["change,pair,with,without", *rows, *late.split()]) + "\n")
        main([str(file), "--for", "claims", *further])
        return capsys.readouterr().out

    assert "undecided, next look at 8" in (found := answer("c,3,,0"))
    assert re.search(r"c: .* 3 of 8 pairs: in order", found)
    assert "claim: undecided" in answer("c,3,-2,0")
    assert "claim: gain at 8" in answer("")  # nothing says that there is a pair 3
    assert "claim: undecided" in answer("", "--pairs", "0-8")


def test_base_policies_with_a_run_to_come_wait_as_pairs_do() -> None:
    """Two seeds on each of ten base policies; of the third, one run is missing."""
    runs = {seed: float(seed) for seed in range(20)}
    base_of = {seed: str(seed // 2) for seed in runs}
    late = {seed: value for seed, value in runs.items() if seed != 5}
    change = _change("with", late, dict.fromkeys(runs, 0.0), base_of, {}, "without", None)
    assert (len(change.pairs), change.incomplete) == (10, ["2"])
    assert change.claimed(()) == [0.5, 2.5]


def test_pairs_are_in_order_of_their_numbers_then_of_their_names() -> None:
    assert counted(["b", "10", "9", "a", "007"]) == ["007", "9", "10", "a", "b"]


@pytest.mark.parametrize("named", ["0-2000", "3,3", "1,,2", ""])
def test_names_of_pairs_that_are_none_are_refused(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "ledger.csv"), "--pairs", named])
    assert ended.value.code == 2
    assert "different pairs" in capsys.readouterr().err


def test_a_study_has_named_its_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--pairs", "0-11"]) == 2
    assert "registered its seeds" in capsys.readouterr().err
