"""What commands print with --json, and what a training writes, is what the schemas of the package say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL, run_cli
from jsonschema import Draft202012Validator
from pandas import read_csv
from synthetic_runs import write_run

import ablations
import dapo_lit
from ablations.designs import Arm
from dapo_lit import advise, plan, replay, report, status

SCHEMAS = {
    file.stem: file
    for package in (ablations, dapo_lit)
    for file in Path(package.__file__).parent.glob("schemas/*.json")
}
NAMES = sorted(SCHEMAS)


def schema(name: str) -> dict[str, Any]:
    return dict(json.loads(SCHEMAS[name].read_text(encoding="utf-8")))


def valid(name: str, text: str) -> dict[str, Any]:
    """The answer, which is JSON and nothing else, follows the schema, and has no key that the schema lacks."""
    found = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    Draft202012Validator(schema(name)).validate(found)
    if name != "metrics_row":
        assert not found.keys() - schema(name)["properties"].keys() - {"crc32", "engine"}
    return dict(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_one_and_describes_objects_with_required_keys(name):
    Draft202012Validator.check_schema(schema(name))

    def objects(tree: Any) -> Iterator[dict[str, Any]]:
        if isinstance(tree, dict):
            if isinstance(tree.get("properties"), dict):
                yield tree
            for inner in tree.values():
                yield from objects(inner)

    for each in objects(schema(name)):
        assert {*each["required"]} <= each["properties"].keys()


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """Two arms, of which the second has one seed less, and one of its runs failed."""
    home = tmp_path_factory.mktemp("answers")
    for seed in range(4):
        write_run(home, Arm(frozenset()), seed)
        if seed:
            write_run(home, Arm(frozenset({"clip_higher"})), seed, status="failed" if seed == 3 else "finished")
    return home / "table1"


def test_status_lists_every_cell_with_its_state(study, capsys):
    assert status.main([str(study), "--json"]) == 3
    found = valid("status", capsys.readouterr().out)
    states = {(row["arm"], row["seed"]): row["state"] for row in found["cells"]}
    assert states["naive_grpo+clip_higher", 0] == "missing"
    assert states["naive_grpo+clip_higher", 3] == "failed"
    assert found["states"] == {"done": 6, "missing": 1, "failed": 1}
    assert found["wall_s"] == pytest.approx(sum(row["wall_s"] or 0 for row in found["cells"]))


def test_report_prints_what_it_writes_and_what_is_missing(study, tmp_path, capsys):
    code = report.main([str(study), "--output", str(tmp_path), "--json"])
    found = valid("report", capsys.readouterr().out)
    assert code == 3
    assert {(row["arm"], row["seed"]) for row in found["missing"]} >= {("naive_grpo+clip_higher", 0)}
    assert [len(row["differences"]) for row in found["comparisons"]] == [2]
    written = json.loads((tmp_path / "report.json").read_text())
    Draft202012Validator(schema("report")).validate(written)
    assert {key: value for key, value in found.items() if key in written} == {
        key: value for key, value in written.items() if key != "tables"
    }


def test_what_is_refused_has_no_answer(tmp_path, capsys):
    for command in (status, report, advise):
        assert command.main([str(tmp_path / "none"), "--json"]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of seconds, in runs/ below this folder."""
    home = tmp_path_factory.mktemp("trained")
    done = run_cli(*SMALL, "budget.steps=3", "replay.record=[2]", "algorithm.optimizer.lr=1e-2", cwd=home)
    assert done.returncode == 0, done.stderr
    return home / "runs" / "four_sums" / "dapo" / "seed_0"


def test_a_training_writes_a_record_and_rows_that_follow_their_schemas(trained):
    record = valid("run", (trained / "run.json").read_text())
    assert record["status"] == "finished"
    rows = [valid("metrics_row", line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]


def test_advise_says_of_every_technique_what_it_says_in_words(trained, capsys):
    assert advise.main([str(trained), "--json"]) == 0
    found = valid("advise", capsys.readouterr().out)
    assert (found["first_step"], found["last_step"]) == (1, 3)
    advise.main([str(trained)])
    words = capsys.readouterr().out
    assert all(row["amount"] in words for row in found["techniques"])
    assert all(command in words for command in found["commands"])
    assert found["commands"]


def test_a_replay_is_what_its_summary_has(trained, capsys):
    assert replay.main([str(trained), "algorithm.techniques.clip_higher=false", "--json"]) == 0
    found = valid("replay", capsys.readouterr().out)
    summary = read_csv(Path(found["tables"]) / "summary.csv").set_index("arm")
    assert [row["arm"] for row in found["arms"]] == [*summary.index] == ["dapo", "dapo-clip_higher"]
    for row in found["arms"]:
        for key in summary.columns:
            assert row[key] == pytest.approx(summary.loc[row["arm"], key])
    with pytest.raises(SystemExit):
        replay.main([str(trained), "--html", "--json"])


def test_a_plan_has_the_numbers_of_its_tables(tmp_path, monkeypatch, capsys):
    """In this process, where the second answer needs no second simulation of what fits."""
    monkeypatch.chdir(tmp_path)

    def planned(*more: str) -> str:
        monkeypatch.setattr("sys.argv", ["plan", "+experiment=four_sums", "price_per_hour=2", *more])
        with pytest.raises(SystemExit, match=r"^0$"):
            plan.main()
        return capsys.readouterr().out

    found, words = valid("plan", planned("--json")), planned()
    assert f"{found['memory_gib']['peak_of_training']:.1f}" in words
    assert all(sentence in words for sentence in found["advice"])
    assert found["step_seconds"] == pytest.approx(sum(phase["seconds"] for phase in found["phases"]))
    assert found["cost"] == 2 * found["gpu_hours"]
    assert found["fits"] == ("does not fit" not in words)


def test_an_evaluation_answers_with_its_table(trained, tmp_path):
    given = (f"ckpt={trained}", "benchmark=chain_sum_heldout", "limit=3", "n=2", "benchmark.max_response_tokens=4")
    done = run_cli(*given, "--json", cwd=tmp_path, module="dapo_lit.evaluate")
    found = valid("evaluate", done.stdout)
    words = run_cli(*given, cwd=tmp_path, module="dapo_lit.evaluate").stdout  # from the same samples
    assert (found["questions"], found["samples_a_question"]) == (3, 2)
    assert {"avg@2", "cons@2", "length_mean", "reflection_frac"} <= {row["metric"] for row in found["metrics"]}
    for row in found["metrics"]:
        assert f"{row['estimate']:.{1 if row['metric'] == 'length_mean' else 3}f}" in words
    assert (tmp_path / found["samples"]).is_file()
