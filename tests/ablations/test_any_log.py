"""Logs as people have them: charts, tables of results, printed lines, names of their own; and scores in two units."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from ablations.commands import decide, report
from ablations.read.foreign import guessed, runs_of_logs
from ablations.read.run import StudyError

RUNS = {("dapo", 0): 0.45, ("dapo", 1): 0.46, ("dapo", 2): 0.47, ("grpo", 0): 0.40, ("grpo", 1): 0.41}


def chart(spread: float = 0.0) -> str:
    names = [f"{arm}-seed{seed} - val/acc{end}" for arm, seed in RUNS for end in ("", "__MIN", "__MAX")]
    lines = [",".join(f'"{name}"' for name in ["Step", *names])]
    for step in (10, 20):
        cells = [str(value + step / 1000 + change * spread) for value in RUNS.values() for change in (0, -1, 1)]
        lines.append(",".join([str(step), *cells]))
    return "\n".join(lines)


def verl_lines(value: float) -> str:
    line = (
        "\x1b[36m(TaskRunner pid=1)\x1b[0m step:{} - actor/grad_norm:0.5 - critic/score/mean:np.float64({}) - "
        "response_length/mean:9 - note:x"
    )
    return "starting\n" + "\n".join(line.format(step, value + step / 100) for step in (1, 2, 3))


def trl_lines(value: float) -> str:
    rows = [{"loss": 0.1, "reward": value, "completions/mean_length": 30.0, "epoch": 0.1 * n} for n in range(3)]
    return "\n".join([*map(str, rows), "done"])


FILES = {
    "chart.csv": chart(),
    "results.csv": "Method,seed,aime24\n" + "".join(f"{arm},{seed},{value}\n" for (arm, seed), value in RUNS.items()),
    "tabs.tsv": "arm\tseed\taime24\n" + "".join(f"{arm}\t{seed}\t{value}\n" for (arm, seed), value in RUNS.items()),
    "semicolons.csv": "algorithm;run;aime24\n"
    + "".join(f"{arm};{seed};{str(value).replace('.', ',')}\n" for (arm, seed), value in RUNS.items()),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_all_runs_gives_each_its_arm_and_seed_and_names_the_one_in_no_pair(tmp_path: Path, name: str):
    (tmp_path / name).write_text(FILES[name])
    runs, primary, notes, left_out = runs_of_logs("csv", [tmp_path / name], None)
    assert {(run.arm, run.seed) for run in runs} == {*RUNS}
    assert {(run.arm, run.seed): run.series(primary).iloc[-1] for run in runs} == pytest.approx(
        {cell: value + (0.02 if name == "chart.csv" else 0) for cell, value in RUNS.items()}
    )
    assert any("In no pair" in note and "dapo/seed_2" in note for note in notes)
    assert left_out == []


@pytest.mark.parametrize(("system", "lines"), [("verl", verl_lines), ("trl", trl_lines)])
def test_what_a_trainer_printed_is_read_by_the_names_of_its_files(tmp_path: Path, system, lines):
    for (arm, seed), value in RUNS.items():
        (tmp_path / f"{arm}_qwen7b_s{seed}_0912.log").write_text(lines(value))
    runs, primary, notes, _ = runs_of_logs(system, [tmp_path], None)
    assert {(run.arm, run.seed) for run in runs} == {(f"{arm}_qwen7b", seed) for arm, seed in RUNS}
    assert primary == "rollout/reward"
    assert all(len(run.metrics) == 3 for run in runs)
    assert any(note.startswith("By their names: ") for note in notes)


def test_a_report_on_logs_without_tokens_has_no_number_for_them(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("chart.csv").write_text(FILES["chart.csv"])
    report.main(["--from", "csv", "chart.csv", "--metric", "val/acc"])
    assert "nan" not in (said := capsys.readouterr().out)
    assert "0.05" in said


def test_a_line_of_a_chart_that_is_a_mean_over_runs_is_refused(tmp_path: Path):
    (tmp_path / "chart.csv").write_text(chart(spread=0.01))
    with pytest.raises(StudyError, match="mean over runs"):
        runs_of_logs("csv", [tmp_path / "chart.csv"], None)


@pytest.mark.parametrize("name", ["dapo", "step_100", "checkpoint-12", "qwen7b"])
def test_a_name_without_a_seed_is_not_guessed(name: str):
    assert guessed(name) is None


def decided(tmp_path: Path, capsys, text: str, name: str = "ledger.csv") -> tuple[int, str]:
    (tmp_path / name).write_text(text)
    code = decide.main([str(tmp_path / name), "--json"])
    shown = capsys.readouterr()
    return code, shown.err if code == 2 else shown.out


@pytest.mark.parametrize("sign", [",", "\t", ";"])
def test_a_ledger_may_be_separated_by_any_of_three_signs(tmp_path: Path, capsys, sign: str):
    rows = [["change", "pair", "with", "without"], *(["clip", str(n), f"0.4{n}", f"0.3{n}"] for n in range(6))]
    text = "\n".join(sign.join(cell.replace(".", ",") if sign == ";" else cell for cell in row) for row in rows)
    code, out = decided(tmp_path, capsys, text)
    assert code == 0
    assert json.loads(out)["changes"][0]["difference"] == pytest.approx(0.1)


def test_shares_and_percent_in_one_ledger_are_refused_and_scores_that_only_look_so_are_not(tmp_path: Path, capsys):
    code, said = decided(tmp_path, capsys, "change,pair,with,without\nc,0,41.2,0.401\nc,1,38.8,0.390\nc,2,0.41,0.39\n")
    assert code == 2
    assert "percent" in said
    code, _ = decided(tmp_path, capsys, "change,pair,with,without\nc,0,0.9,1.4\nc,1,1.2,0.8\n")
    assert code != 2


def test_a_table_of_results_is_decided_and_says_what_was_compared(tmp_path: Path, capsys):
    _, out = decided(tmp_path, capsys, FILES["results.csv"], "results.csv")
    answer = json.loads(out)
    assert [change["change"] for change in answer["changes"]] == ["grpo"]
    assert answer["notes"][0].startswith("Compared in aime24")


def test_a_table_of_run_arm_and_seed_says_what_names_do_not(tmp_path: Path, capsys):
    logs = tmp_path / "logs"
    for (arm, seed), value in RUNS.items():
        place = logs / f"{arm}-{'abcd'[seed]}" / "train.log" if seed < 2 else logs / "monday.log"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(verl_lines(value))
    with pytest.raises(StudyError, match="--runs FILE"):
        runs_of_logs("verl", [logs], None)
    called = ["dapo-a", "dapo-b/train.log", "monday", "grpo-a/train", "grpo-b"]
    table = tmp_path / "runs.csv"
    table.write_text("run,arm,seed\n" + "".join(f"{n},{a},{s}\n" for n, (a, s) in zip(called, RUNS, strict=True)))
    runs, _, notes, _ = runs_of_logs("verl", [logs], None, table)
    assert {(run.arm, run.seed) for run in runs} == {*RUNS}
    assert not any(note.startswith("By their names") for note in notes)
    assert decide.main([str(logs), "--from", "verl", "--runs", str(table), "--reference", "grpo"]) == 3
    assert "dapo" in capsys.readouterr().out
    assert decide.main([str(write_ledger(tmp_path)), "--runs", str(table)]) == 2
    assert "--runs goes with logs" in capsys.readouterr().err


def write_ledger(folder: Path) -> Path:
    (folder / "ledger.csv").write_text("change,pair,with,without\nc,0,0.9,0.8\n")
    return folder / "ledger.csv"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("run,arm\na,b\n", "columns run, arm and seed"),
        ("run,arm,seed\na,b,x\n", "line 2: needs a run and a seed"),
        ("run,arm,seed\na,b,0\na,c,1\n", "line 3: a is named twice"),
        ("run,arm,seed\nelsewhere,b,0\n", "no log is called elsewhere"),
    ],
)
def test_a_table_of_runs_that_does_not_fit_is_refused_in_a_line(tmp_path: Path, table: str, said: str):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "dapo_s0.log").write_text(verl_lines(0.4))
    (tmp_path / "runs.csv").write_text(table)
    with pytest.raises(StudyError, match=said):
        runs_of_logs("verl", [tmp_path / "logs"], None, tmp_path / "runs.csv")


def folder_of(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


OTHERS = {
    # results/tdmpc2/walker-run.csv: a file for each arm, seeds as a column
    "a file an arm": ({f"{arm}/walk.csv": "step,reward,seed\n0,1,3\n9,2,3\n0,1,4\n9,3,4\n" for arm in "ab"},
                      {"a": 2, "b": 2}),
    # one table for several agents; frames count steps
    "frames": ({"all.csv": ",agent,seed,frame,reward\n0,A,1,0,1\n1,A,1,9,2\n2,B,1,0,1\n3,B,1,9,2\n"}, {"A": 1, "B": 1}),
    "two columns of the arm": ({"r.csv": "data,model,seed,acc\nx,m,0,1\ny,m,0,2\nx,n,0,1\ny,n,0,2\n"},
                               {"m-x": 1, "m-y": 1, "n-x": 1, "n-y": 1}),
    "names of runs": ({"r.csv": "run_id,acc\nwarm_s0,1\nwarm_s1,2\ncold_s0,1\ncold_s1,3\n"}, {"warm": 2, "cold": 2}),
    "JSON lines of results": ({"r.jsonl": "".join(f'{{"variant": "{arm}", "seed": 1, "acc": 0.5}}\n' for arm in "ab")},
                              {"a": 1, "b": 1}),
    # runs by their dates or ids in a folder an arm; the source of the program stands above what it printed
    "no seeds": ({f"{arm}/{n}.txt": "print(f'step:{step}/9 val_loss:{x}')\nstep:1/9 val_loss:3.5 train_time:1ms\n"
                 for arm in "ab" for n in "01"}, {"a": 2, "b": 2}),
    "a JSON file a run": ({f"{arm}_seed{n}.json": f'{{"acc": {n}, "loss": [3, 2], "config": {{"lr": 1, "seed": {n}}}}}'
                           for arm in "ab" for n in "01"}, {"a": 2, "b": 2}),
    "JSON with arm and seed in it": ({f"{n}.json": f'{{"model": "{arm}", "seed": 1, "in": {{"acc": {n}}}, "acc": 1}}'
                                      for n, arm in enumerate("ab")}, {"a": 1, "b": 1}),
    # episodes of training and of a test are two curves of one run
    "JSON rows of a run": ({f"{arm}.json": "[" + ",".join(
        f'{{"agent_name": "{arm}", "config": {{"lr": 1}}, "seed": 7, "phase": "{phase}", "episode": {n}, "acc": {n}}}'
        for phase in ("train", "test") for n in range(3)) + "]" for arm in "ab"}, {"a": 1, "b": 1}),
    "tabs": ({f"{arm}_s{n}/progress.txt": "Epoch\tacc\tloss\n0\t1\t2\n1\t2\t1\n" for arm in "ab" for n in "01"},
             {"a": 2, "b": 2}),
    "a folder an arm, the seed in the file": ({f"{arm}/train_seed{n}.log": "step:1/9 val_loss:3.5 train_time:1ms\n"
                                               for arm in "ab" for n in "01"}, {"a": 2, "b": 2}),
    "printed without the word step": ({f"{arm}_seed1.log": "x 1/9\n0/9 val_loss: 3.5 val_bpb: 1.2\n8/9 val_loss: 3\n"
                                       for arm in "ab"}, {"a": 1, "b": 1}),
    "a sweep in fractions": ({"r.csv": "alpha,seed,acc\n" + "".join(
        f"{alpha},{seed},0.{seed}\n" for alpha in (0.0, 0.25) for seed in (1, 2))}, {"0.0": 2, "0.25": 2}),
    # the id of a run is as good as its environment, and gives more arms
    "curves of several runs": ({"r.csv": "step,run_id,agent,env,seed,acc\n" + "".join(
        f"{step},r={env}{seed},A,{env},{seed},1\n" for env in "xy" for seed in (1, 2) for step in (1, 2))},
        {"A-x": 2, "A-y": 2}),
    "a seed in brackets": ({"r.csv": "Model,acc\nBase (Seed 1),1\nBase (Seed 2),2\nOurs 25% (Seed 1),1\n"},
                           {"Base": 2, "Ours-25": 1}),
    "names, epochs and a summary": ({"r.jsonl": "".join(
        f'{{"run": "{arm}_seed0", "epoch": {n}, "acc": {n}}}\n' for arm in "ab" for n in range(3))
        + '{"run": "a_seed0", "seed": 0, "best": 2}\n'}, {"a": 1, "b": 1}),
    "settings before and a summary after": ({f"{arm}_s0.jsonl": '{"_meta": {"lr": 1}}\n' + "".join(
        f'{{"step": {n}, "acc": 2}}\n' for n in range(3)) + '{"_summary": {"acc": 2}}\n' for arm in "ab"},
        {"a": 1, "b": 1}),
    "a column for each seed": ({"r.csv": "model,size,seed_0,seed_1,mean\na,9,1,2,1.5\nb,9,1,,\n"}, {"a": 2, "b": 1}),
    "a first column that counts": ({f"{arm}_seed0.csv": "time,acc\n" + "".join(f"{n},{n}.5\n" for n in range(10))
                                    for arm in "ab"}, {"a": 1, "b": 1}),
    "one column twice, with the same cells": ({f"{arm}_seed0.csv": "step,acc,acc\n1,2,2\n2,3,3\n" for arm in "ab"},
                                              {"a": 1, "b": 1}),
}  # fmt: skip
METRICS = {"JSON rows of a run": "test/acc", "a column for each seed": "value"}


@pytest.mark.parametrize("layout", OTHERS)
def test_arms_and_seeds_are_found_in_the_layouts_of_others(tmp_path, layout):
    files, arms = OTHERS[layout]
    measured = next((key for key in ("val_loss", "acc", "reward") if any(key in text for text in files.values())), None)
    runs, _, notes, left_out = runs_of_logs("csv", [folder_of(tmp_path, files)], METRICS.get(layout, measured))
    assert Counter(run.arm for run in runs) == arms
    assert left_out == []
    assert len({(run.arm, run.seed) for run in runs}) == len(runs)
    if "a/0.txt" in files:  # numbers are no seeds: none is in two arms, so nothing is paired
        assert len({run.seed for run in runs}) == len(runs)
        assert re.search(r"\bseed\b.*\b4\b", notes[0])


def test_a_table_with_seeds_and_one_arm_asks_for_the_others(tmp_path):
    table = folder_of(tmp_path, {"one.csv": "seed,acc\n1,0.5\n2,0.6\n"}) / "one.csv"
    with pytest.raises(StudyError, match="no column of arms"):
        runs_of_logs("csv", [table], None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        # a measured number that repeats is no setting of a sweep, which every seed has
        ("r.csv", "acc,seed,loss\n0.5,1,1\n0.5,2,1\n0.25,1,2\n0.25,3,2\n", "has seeds and no column of arms"),
        ("a_seed0.csv", "step,acc,acc\n1,2,2\n2,3,4\n", "has the column acc twice"),
        ("a_seed0.csv", "time,acc\n" + "".join(f"{n * n},1\n" for n in range(12)), "has no column step"),
        ("r.csv", "arm,seed,on,acc\na,1,x,1\na,1,y,2\nb,1,z,3\n", "has step 1 twice"),
        ("r.csv", "arm,seed,acc\na,1,1\na,1,2\nb,1,3\nb,2,3\nc,1,4\n", "has step 1 twice"),
        ("a_seed0.json", '{"name": "x"}', "has no numbers"),
    ],
)
def test_what_may_be_read_in_two_ways_is_asked(tmp_path, name, text, said):
    with pytest.raises(StudyError, match=said):
        runs_of_logs("csv", [folder_of(tmp_path, {name: text})], "acc")


def test_a_last_step_that_is_logged_twice_counts_once_and_is_told(tmp_path):
    files = {f"a/run-{n}.csv": "timesteps,acc\n10,1\n20,2\n20,3\n" for n in "12"}
    files |= {f"b/run-{n}.csv": "timesteps,acc\n10,1\n10,4\n20,2\n" for n in "12"}
    files |= {f"c/run-{n}.csv": "timesteps,acc\n10,1\n20,2\n" for n in "12"}
    runs, _, notes, left_out = runs_of_logs("csv", [folder_of(tmp_path, files)], "acc")
    assert {run.arm: run.series("acc").tolist() for run in runs} == {"a": [1, 3], "c": [1, 2]}
    assert sum("in two rows" in note for note in notes) == 2
    assert [reason for reason in left_out if "has step 10 twice" in reason] == left_out != []


def test_of_several_runs_in_a_file_the_one_with_a_step_twice_is_left_out_by_its_name(tmp_path):
    lines = [f'{{"run_id": "{arm}_s1", "step": {n}, "acc": 1}}\n' for arm in "abc" for n in (1, 2)]
    folder_of(tmp_path, {"r.jsonl": "".join([*lines, lines[0]])})
    runs, _, _, left_out = runs_of_logs("csv", [tmp_path], "acc")
    assert [run.arm for run in runs] == ["b", "c"]
    assert len(left_out) == 1
    assert left_out[0].startswith("a/seed_1: ")
