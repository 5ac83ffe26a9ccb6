"""`decide`: five ledgers, its JSON, its two purposes, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from synthetic_runs import write_run

import ablations
from ablations.commands import decide
from ablations.compare.deciding import SHARES, SHIPPED, Prior, belief, paired, pooled
from ablations.compare.statistics import sign_flip_p
from ablations.designs import Arm

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(ablations.__file__).parent / "schemas" / "decide.json").read_text())
TRL = ["--from", "trl", str(ROOT / "tests" / "ablations" / "trl_logs"), "--metric", "rewards/accuracy/mean"]
GAINS = {"better": 0.08, "worse": -0.06, "nothing": 0.0}
NOISE = (0.011, -0.013, 0.004, 0.009, -0.006, -0.012, 0.007, 0.0, 0.003, -0.004, 0.006, -0.005)


def pairs(count: int = 12) -> list[dict]:
    """Three changes over seeds whose level differs by much more than the changes do."""
    return [
        {"change": name, "pair": seed, "with": round(0.3 + 0.04 * seed + gain + NOISE[seed], 4),
         "without": round(0.3 + 0.04 * seed, 4), "cost": 30.0}
        for name, gain in GAINS.items() for seed in range(count)
    ]  # fmt: skip


def as_csv(file: Path, rows: list[dict]) -> Path:
    names = list(dict.fromkeys(key for row in rows for key in row))
    lines = [",".join("" if row.get(name) is None else str(row[name]) for name in names) for row in rows]
    file.write_text("\n".join([",".join(names), *lines]) + "\n")
    return file


def as_json_lines(file: Path, rows: list[dict]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def verl_logs(folder: Path) -> Path:
    """Four runs, as verl's file logger writes them: two arms, of which one is ahead by 0.1 on both seeds."""
    for arm, gain in (("base", 0.0), ("wider", 0.1)):
        for seed in (0, 1):
            file = folder / arm / f"seed_{seed}" / "metrics.jsonl"
            file.parent.mkdir(parents=True)
            rows = [
                {"step": step, "data": {"critic/score/mean": 0.1 * step + gain + 0.02 * seed * step,
                                        "response_length/mean": 100.0}}
                for step in range(1, 7)
            ]  # fmt: skip
            as_json_lines(file, rows)
    return folder


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory) -> dict[str, list[str]]:
    """Name -> command line."""
    place = tmp_path_factory.mktemp("ledgers")
    apart = [
        {"change": "better", "with": row["with"], "without": row["without"]}
        for row in pairs() if row["change"] == "better"
    ]  # fmt: skip
    return {
        "csv": [str(as_csv(place / "pairs.csv", pairs()))],
        "json lines": [str(as_json_lines(place / "pairs.jsonl", pairs()))],
        "unpaired": [str(as_csv(place / "apart.csv", apart))],
        "trl": TRL,
        "verl": ["--from", "verl", str(verl_logs(place / "verl"))],
    }


def answer(arguments: list[str], capsys) -> dict:
    code = decide.main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(found)
    assert code == (3 if any(row["action"] == "more" for row in found["changes"]) else 0)
    return found


LEDGERS = ["csv", "json lines", "unpaired", "trl", "verl"]


def test_the_schema_is_one_and_has_every_key_that_is_printed(ledgers, capsys):
    Draft202012Validator.check_schema(SCHEMA)
    found = answer(ledgers["csv"], capsys)
    assert found["schema"] == SCHEMA["title"] == SCHEMA["properties"]["schema"]["const"]
    assert found.keys() == SCHEMA["properties"].keys() == {*SCHEMA["required"]}
    row = SCHEMA["properties"]["changes"]["items"]
    assert found["changes"][0].keys() == row["properties"].keys() == {*row["required"]}


@pytest.mark.parametrize("purpose", ["tuning", "claims"])
@pytest.mark.parametrize("name", LEDGERS)
def test_every_ledger_has_a_valid_answer_for_both_purposes(name, purpose, ledgers, capsys):
    found = answer([*ledgers[name], "--for", purpose], capsys)
    assert found["purpose"] == purpose
    assert decide.main([*ledgers[name], "--for", purpose]) in (0, 3)
    shown = capsys.readouterr().out
    assert all(f"{row['change']}: " in shown for row in found["changes"])


@pytest.mark.parametrize("name", LEDGERS)
def test_an_answer_loads_nothing_that_takes_seconds(name, ledgers):
    code = """
import sys
from ablations.commands import decide
decide.main(sys.argv[1:])
assert not {"torch", "transformers", "lightning", "scipy", "sympy", "matplotlib"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, *ledgers[name], "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_csv_and_json_lines_in_any_order_of_rows_have_one_answer(ledgers, tmp_path, capsys):
    expected = answer(ledgers["csv"], capsys)["changes"]
    assert answer(ledgers["json lines"], capsys)["changes"] == expected
    turned = sorted(pairs(), key=lambda row: (-row["pair"] % 5, row["change"]))
    found = answer([str(as_csv(tmp_path / "turned.csv", turned))], capsys)["changes"]
    for row in expected:
        (same,) = (other for other in found if other["change"] == row["change"])
        assert same["claim"] == row["claim"]
        assert same["difference"] == pytest.approx(row["difference"])
        assert same["action"] == row["action"]


def test_what_gains_is_kept_what_loses_is_discarded_and_both_may_be_claimed(ledgers, capsys):
    found = {row["change"]: row for row in answer(ledgers["csv"], capsys)["changes"]}
    assert (found["better"]["action"], found["better"]["claim"]["verdict"]) == ("keep", "gain")
    assert (found["worse"]["action"], found["worse"]["claim"]["verdict"]) == ("discard", "loss")
    assert found["nothing"]["claim"] == {"verdict": "undecided", "at_pairs": None, "next_look": 16}
    # Seeds differ far more than changes: apart, the same runs would tell nothing.
    assert found["better"]["unpaired_runs_factor"] > 100
    assert found["better"]["cost_so_far"] == 360


def test_lower_is_better_turns_the_choice_and_not_the_difference(ledgers, capsys):
    higher = answer(ledgers["csv"], capsys)["changes"]
    lower = answer([*ledgers["csv"], "--better", "lower"], capsys)["changes"]
    other = {"gain": "loss", "loss": "gain", "undecided": "undecided"}
    for one, two in zip(higher, lower, strict=True):
        assert two["difference"] == one["difference"]
        assert two["claim"]["verdict"] == other[one["claim"]["verdict"]]
        assert two["regret_now"] == one["regret_now"]
    assert [row["action"] for row in lower][:2] == ["discard", "keep"]


def test_for_claims_nothing_is_kept_that_the_test_does_not_decide(tmp_path, capsys):
    file = as_csv(tmp_path / "few.csv", pairs(5))
    tuning = {row["change"]: row["action"] for row in answer([str(file)], capsys)["changes"]}
    assert tuning["better"] == "keep"  # five pairs of one sign
    claims = answer([str(file), "--for", "claims"], capsys)["changes"]
    assert [(row["action"], row["more_pairs"], row["more_cost"]) for row in claims] == [("more", 3, 90.0)] * 3
    assert sign_flip_p([0.08 + noise for noise in NOISE[:5]]) == 2 / 2**5  # which five can reach at most
    at_end = answer([str(as_csv(tmp_path / "all.csv", pairs(12))), "--for", "claims", "--most", "12"], capsys)
    assert [row["action"] for row in at_end["changes"]] == ["keep", "discard", "discard"]


def test_a_dear_run_ends_what_a_cheap_one_goes_on_with(tmp_path, capsys):
    rows = [
        {"change": "x", "seed": seed, "with": value, "without": 0.4} for seed, value in enumerate([0.41, 0.395, 0.408])
    ]
    file = str(as_csv(tmp_path / "three.csv", rows))
    assert answer([file, "price=1"], capsys)["changes"][0]["action"] == "keep"
    cheap = answer([file, "--price", "0.00001"], capsys)["changes"][0]
    assert cheap["action"] == "more"
    assert cheap["more_cost"] == 2 * cheap["more_pairs"]
    assert cheap["regret_after"] < cheap["regret_now"]


def test_a_change_that_moved_no_run_is_discarded_and_gets_no_further_pairs(tmp_path, capsys):
    idle = [{**row, "change": "idle", "with": row["without"]} for row in pairs() if row["change"] == "better"]
    found = answer([str(as_csv(tmp_path / "l.csv", [*pairs(), *idle]))], capsys)
    (row,) = [each for each in found["changes"] if each["change"] == "idle"]
    assert (row["action"], row["more_pairs"], row["difference"]) == ("discard", 0, 0.0)


def test_a_claim_that_was_not_registered_is_said_to_be_none_for_tuning_too(tmp_path, capsys):
    file = as_csv(tmp_path / "l.csv", pairs())
    decide.main([str(file)])
    assert "not registered" in capsys.readouterr().out


def test_for_claims_that_is_said_before_there_is_one(tmp_path, capsys):
    file = as_csv(tmp_path / "l.csv", pairs(3))
    for purpose, said in (("claims", True), ("tuning", False)):
        decide.main([str(file), "--for", purpose])
        assert ("not registered" in capsys.readouterr().out) is said


def test_the_noise_of_a_first_change_is_that_of_committed_runs_where_values_are_shares(tmp_path, capsys):
    """In percent nobody knows the unit, and the noise is that of the two pairs."""
    for unit, prior in ((1, SHARES), (100, SHIPPED)):
        rows = [
            {"change": "x", "pair": n, "with": unit * (0.4 + d), "without": unit * 0.4}
            for n, d in enumerate((0.01, 0.02))
        ]
        (row,) = answer([str(as_csv(tmp_path / "l.csv", rows))], capsys)["changes"]
        expected = belief(paired([unit * 0.01, unit * 0.02]), prior)
        assert row["regret_now"] == pytest.approx(expected.regret())
        assert row["wrong_sign"] == pytest.approx(expected.wrong_sign)
    # The others' noise joins what was known: 2.3 degrees of freedom around 0.028^2, and two around 0.0004.
    joined = pooled([paired([0.1]), paired([0.0, 0.02, 0.04])], 0, SHARES)
    assert joined == Prior(1.0, pytest.approx(((2.3 * 0.028**2 + 0.0008) / 4.3) ** 0.5), 4.0)


def test_unpaired_runs_are_worth_less_and_claim_nothing(ledgers, capsys):
    apart = answer(ledgers["unpaired"], capsys)["changes"][0]
    (together,) = (row for row in answer(ledgers["csv"], capsys)["changes"] if row["change"] == "better")
    assert not apart["paired"]
    assert apart["pairs"] == together["pairs"] == 12
    assert apart["difference"] == pytest.approx(together["difference"])
    assert apart["wrong_sign"] > 100 * together["wrong_sign"]
    assert apart["claim"]["verdict"] == "undecided"
    decide.main(ledgers["unpaired"])
    assert "without pairs" in capsys.readouterr().out


def test_a_pair_that_is_not_complete_is_counted_and_waits(tmp_path, capsys):
    rows = [*pairs(3), {"change": "better", "pair": 3, "with": 0.5}]
    found = answer([str(as_json_lines(tmp_path / "l.jsonl", [{**r, "cost": 1} for r in rows]))], capsys)["changes"]
    assert (found[0]["pairs"], found[0]["incomplete_pairs"]) == (3, 1)


def test_a_study_is_a_ledger_of_its_arms_and_its_registered_looks_are_kept(tmp_path, capsys):
    clip = Arm(frozenset({"clip_higher"}))
    for seed in range(8):
        for arm in (Arm(frozenset()), clip):
            write_run(tmp_path, arm, seed)
    found = answer([str(tmp_path / "table1")], capsys)
    (row,) = found["changes"]
    assert (found["kind"], found["reference"], row["change"]) == ("study", "naive_grpo", clip.name)
    assert (row["pairs"], row["action"], found["registered"]) == (8, "keep", False)
    assert row["difference"] == pytest.approx(0.1, abs=0.03)  # EFFECTS["clip_higher"]
    turned = answer([str(tmp_path / "table1"), "--reference", clip.name], capsys)["changes"][0]
    assert (turned["change"], turned["difference"]) == ("naive_grpo", -row["difference"])


def test_packed_cells_with_registered_comparisons_say_so(capsys):
    found = answer([str(ROOT / "experiments" / "clip_dose_discovery" / "runs")], capsys)
    assert found["reference"] == "dapo-clip_higher"
    assert all(row["paired"] and row["pairs"] >= 2 for row in found["changes"])


GOOD = "change,pair,with,without\n"
REFUSED = {
    "a word for a number": (GOOD + "a,0,0.4,0.3\na,1,high,0.3\n", "line 3 with 'high'"),
    "not finite": (GOOD + "a,0,nan,0.3\n", "line 2 with 'nan'"),
    "no such column": ("change,pair,with\na,0,1\n", "line 1 without"),
    "a pair twice": (GOOD + "a,0,0.4,0.3\nb,0,0.4,0.3\na,0,0.5,0.3\n", "line 4 pair '0' 'a' line 2"),
    "neither value": (GOOD + "a,0,,\n", "line 2 with without"),
    "no change": (GOOD + ",0,1,2\n", "line 2 change"),
    "a short row": (GOOD + "a,0,1\n", "line 2 3 4"),
    "some without a pair": (GOOD + "a,0,1,2\na,,1,2\n", "line 3 pair"),
    "some without a cost": ("change,pair,with,without,cost\na,0,1,2,3\na,1,1,2,\n", "line 3 cost"),
    "a negative cost": ("change,pair,with,without,cost\na,0,1,2,-3\n", "line 2 cost"),
    "no row": (GOOD, "rows"),
    "one side only": ("change,with,without\na,0.4,\n", "'a' without"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_ledger_is_one_line_that_names_file_line_and_column(text, tmp_path, capsys):
    content, words = REFUSED[text]
    file = tmp_path / "ledger.csv"
    file.write_text(content)
    assert decide.main([str(file)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert [word for word in ["ledger.csv", *words.split()] if word not in shown.err] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"change": "a", "pair": 0, "with": "0.4", "without": 0.3}', "line 1 with '0.4' number"),
        ('{"change": "a", "pair": 0, "with": true, "without": 0.3}', "line 1 with True number"),
        ("[1]", "line 1 mapping"),
        ('{"change": "a"', "line 1 JSON"),
        ('{"change": "a", "pair": 0.5, "with": 1, "without": 0}', "line 1 pair"),
    ],
)
def test_a_bad_line_of_json_is_named(line, words, tmp_path, capsys):
    file = tmp_path / "ledger.jsonl"
    file.write_text(line + "\n")
    assert decide.main([str(file)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert [word for word in ["ledger.jsonl", *words.split()] if word not in error] == []


def test_a_look_takes_the_first_pairs_by_their_names_whatever_the_order_of_rows(tmp_path, capsys):
    """Pairs 0 to 7 gain, 8 and 9 lose: the look at eight pairs decides, and of the last eight it would not."""
    rows = [{"change": "x", "pair": n, "with": 0.5 + (-0.2 if n > 7 else 0.001 * n), "without": 0.4} for n in range(10)]
    for turned in (rows, rows[::-1]):
        (row,) = answer([str(as_csv(tmp_path / "l.csv", turned)), "--for", "claims"], capsys)["changes"]
        assert row["claim"] == {"verdict": "gain", "at_pairs": 8, "next_look": None}


@pytest.mark.parametrize(("most", "further"), [(5, 0), (6, 1), (9, 4)])
def test_no_change_gets_more_pairs_than_it_may(tmp_path, capsys, most, further):
    rows = [{"change": "x", "pair": n, "with": 0.4 + NOISE[n], "without": 0.4} for n in range(5)]
    given = [str(as_csv(tmp_path / "l.csv", rows)), "--price", "0", "--most", str(most)]
    assert answer(given, capsys)["changes"][0]["more_pairs"] == further
