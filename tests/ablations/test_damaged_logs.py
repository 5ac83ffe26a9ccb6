"""Logs of other trainers that are damaged, cut, hostile or odd: each is read, or left out in one line by name."""

import csv
import json
import math
from io import StringIO
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from odd_values import DRAWS, altered, answer, check_answer, damaged

from ablations.commands import advise, report
from ablations.read.foreign import import_runs
from ablations.read.run import StudyError
from ablations.read.runs import load

ROWS = [
    {"step": s, "reward": 0.1 * s, "rewards/accuracy/mean": 0.05 * s, "completions/mean_length": 10 + s, "loss": 0.1}
    for s in range(1, 7)
]
CELLS = [{"step": s, "accuracy": 0.1 * s, "arm": arm, "seed": seed} for arm in "ab" for seed in (0, 1) for s in (1, 2)]


def trl(rows: list) -> str:
    return json.dumps({"log_history": rows})


def every(value: object, key: str = "reward") -> str:
    return trl([row | {key: value} for row in ROWS])


def verl(rows: list = ROWS) -> str:
    data = [{"critic/score/mean": row["reward"], "response_length/mean": 10} for row in rows]
    return "".join(json.dumps({"step": n, "data": each}) + "\n" for n, each in enumerate(data, 1))


def table(rows: list[dict], header: list[str] | None = None) -> str:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(header or list(rows[0]))
    writer.writerows([row.values() for row in rows])
    return text.getvalue()


def wandb(bad: bytes | None = None) -> bytes:
    """An offline run as W&B writes it; bad: a record that is none."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    named = proto.Record()
    named.run.display_name = "a_seed_0"
    records = [named.SerializeToString()]
    for row in ROWS:
        record = proto.Record()
        values = {"train/global_step": row["step"], "train/reward": row["reward"], "train/completions/mean_length": 9}
        for key, value in values.items():
            item = record.history.item.add()
            item.key, item.value_json = key, json.dumps(value)
        records.append(record.SerializeToString())
    content = b":W&B\0\0\0"
    for record in [*records, *([bad] if bad else [])]:
        content += crc32(b"\x01" + record).to_bytes(4, "little") + len(record).to_bytes(2, "little") + b"\x01" + record
    return content


def written(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = folder / "logs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return folder / "logs"


STATE, LINES = "a/seed_0/trainer_state.json", "a/seed_0/metrics.jsonl"
REFUSED = {
    "empty": (STATE, "", "it is empty"),
    "not UTF-8": (STATE, b"\xff\xfe", "it is not UTF-8"),
    "nested too deep": (STATE, "[" * 100_000, "it is nested too deep"),
    "cut": (STATE, trl(ROWS)[:200], "not JSON"),
    "a list": (STATE, "[1, 2]", "it is a list of 2; it must be a mapping"),
    "no log_history": (STATE, "{}", "log_history is missing"),
    "log_history null": (STATE, '{"log_history": null}', "log_history is None; it must be a list"),
    "log_history of lists": (STATE, '{"log_history": [[1, 2]]}', "log_history.0 is a list of 2; it must be a mapping"),
    "a run that ended before its first log": (STATE, trl([]), "nothing was logged"),
    "steps of text": (STATE, every("one", "step"), "entry 1 of log_history: step is 'one'"),
    "NaN as step": (STATE, every(math.nan, "step"), "step is nan"),
    "an infinite step": (STATE, trl([*ROWS, ROWS[0] | {"step": math.inf}]), "entry 7 of log_history: step is inf"),
    "half a step": (STATE, every(1.5, "step"), "step is 1.5"),
    "steps below 0": (STATE, every(-1, "step"), "step is -1"),
    "a step of 31 digits": (STATE, every(10**30, "step"), "step is 10.30"),
    "a metric that is text": (STATE, trl([*ROWS[:2], ROWS[2] | {"reward": "high"}]), "entry 3 .* reward is 'high'"),
    "20,000 metrics": (STATE, trl([ROWS[0] | {f"k{n}": 1.0 for n in range(20_000)}]), "20,0.. metrics"),
    "a step twice": (STATE, trl([*ROWS, ROWS[-1]]), "step 6 twice"),
    "a seed of 40 digits": (f"a/seed_{'9' * 40}/trainer_state.json", trl(ROWS), "its seed"),
    "an arm that is a path": ("x.csv", table([row | {"arm": f"../{row['arm']}"} for row in CELLS]), "names one folder"),
    "no object a line": (LINES, "1\n", "line 1: it is 1; it must be a mapping"),
    "data null": (LINES, '{"step": 1, "data": null}\n', "line 1: data is None"),
    "a line without a step": (LINES, '{"data": {"response_length/mean": 1}}\n', "line 1: step is missing"),
    "a torn line": (LINES, verl()[:-20], "line 6"),
    "a column twice": ("x.csv", table([row | {"x": 1} for row in CELLS], [*CELLS[0], "accuracy"]), "accuracy twice"),
    "a row too long": ("x.csv", table(CELLS) + "1,2,3,4,5\n", "line 10: has 5 values for 4 columns"),
    "an empty seed": ("x.csv", table([CELLS[0] | {"seed": ""}, *CELLS[1:]]), "row 1: seed is missing"),
    "an empty arm": ("x.csv", table([CELLS[0] | {"arm": ""}, *CELLS[1:]]), "row 1: arm is missing"),
    "a seed of text": ("x.csv", table([row | {"seed": "x"} for row in CELLS]), "seed is 'x'"),
    "only a header": ("x.csv", "step,accuracy,arm,seed\n", "nothing was logged"),
    "accuracies of 500 %": ("x.csv", table([row | {"accuracy": 5.0} for row in CELLS]), "a share between 0 and 1"),
    "no file of W&B": ("a_seed_0.wandb", b"", "not a file of W&B"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_log_that_cannot_be_read_is_named_with_its_field_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    place, content, reason = REFUSED[name]
    if place.endswith(".wandb"):
        pytest.importorskip("wandb")
    system = {"trainer_state.json": "trl", "metrics.jsonl": "verl", "x.csv": "csv"}.get(Path(place).name, "trl")
    good: str | bytes = {"trl": trl(ROWS), "verl": verl(), "csv": table(CELLS)}[system]
    logs, metric = written(tmp_path, {place: content}), "accuracy" if system == "csv" else None
    with pytest.raises(StudyError, match=f"{Path(place).name}.*{reason}") as alone:
        import_runs(system, [logs], tmp_path / "out", metric)
    assert "\n" not in str(alone.value)
    if place.endswith(".wandb"):
        return
    file = Path("b/seed_1") / (Path(place).name if system != "csv" else "y.csv")
    written(tmp_path, {str(file): good})
    _, _, left_out = import_runs(system, [logs], tmp_path / "out", metric)
    assert left_out == [str(alone.value)]
    assert len(load(tmp_path / "out"))
    found = answer(
        report.main, "--from", system, logs, "--output", tmp_path / "page", *(["--metric", metric] if metric else [])
    )
    assert found[0] == 3
    assert f"Left out: {left_out[0][:60]}" in found[1]


def test_a_file_of_wandb_that_was_altered_is_left_out_and_a_torn_one_is_read(tmp_path: Path) -> None:
    whole = wandb()
    flipped = whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    for content, reason in ((flipped, "does not match its checksum"), (wandb(b"\xff" * 5), "record 8: is none of W&B")):
        logs = written(tmp_path, {"a_seed_0.wandb": content})
        with pytest.raises(StudyError, match=reason):
            import_runs("trl", [logs], tmp_path / "out", None)
    import_runs("trl", [written(tmp_path, {"a_seed_0.wandb": whole[:-15]})], tmp_path / "out", None)
    (run,) = load(tmp_path / "out")
    assert run.series("rollout/reward").to_list() == pytest.approx([row["reward"] for row in ROWS[:-1]])


def test_what_is_odd_and_means_one_thing_is_read(tmp_path: Path) -> None:
    """An index column, seeds as 0.0 (one empty cell makes them), W&B's `_step` next to `step`, a byte order mark."""
    rows = [{"": n, "_step": n, **row, "seed": float(row["seed"])} for n, row in enumerate(CELLS)]
    import_runs("csv", [written(tmp_path, {"x.csv": "\ufeff" + table(rows)})], tmp_path / "out", "accuracy")
    runs = load(tmp_path / "out")
    assert (runs.arms, runs.seeds) == (("a", "b"), (0, 1))
    assert all(run.series("accuracy").to_list() == pytest.approx([0.1, 0.2]) for run in runs)


def test_of_checkpoints_with_names_the_one_of_the_latest_step_counts(tmp_path: Path) -> None:
    def state(steps: int) -> str:
        return json.dumps({"global_step": steps, "log_history": ROWS[:steps]})

    names = {"checkpoint-3": state(3), "checkpoint-best": state(2), "checkpoint-final": state(5)}
    import_runs(
        "trl",
        [written(tmp_path, {f"a/seed_0/{n}/trainer_state.json": s for n, s in names.items()})],
        tmp_path / "out",
        None,
    )
    (run,) = load(tmp_path / "out")
    assert len(run.metrics) == 5


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e308])
def test_a_reward_that_is_not_finite_spoils_its_run_and_no_other(tmp_path: Path, value: float) -> None:
    good = {f"{arm}/seed_{seed}/trainer_state.json": trl(ROWS) for arm in "ab" for seed in range(3)}
    logs = written(tmp_path, good | {STATE: trl([ROWS[0] | {"reward": value}, *ROWS[1:]])})
    _, notes, left_out = import_runs("trl", [logs], tmp_path / "out", None)
    assert not left_out
    assert any("NaN or infinite" in note and "a/seed_0" in note for note in notes)
    assert [run.name for run in load(tmp_path / "out") if run.has_nonfinite("rollout/reward")] == ["a/seed_0"]
    assert answer(report.main, "--from", "trl", logs, "--output", tmp_path / "page")[0] == 0
    with pytest.raises(StudyError, match="of every run"):
        import_runs("trl", [written(tmp_path / "all", {STATE: every(value)})], tmp_path / "out", None)


def drawn(kind: str, draw: Random) -> tuple[str, str, bytes, str]:
    """The system, a file's name, its content with a fault, and the fault in words."""
    if kind == "bytes":
        system, name, content = draw.choice(
            [
                ("trl", STATE, trl(ROWS).encode()),
                ("verl", LINES, verl().encode()),
                ("csv", "x.csv", table(CELLS).encode()),
            ]
        )
        return system, name, damaged(content, draw), "bytes"
    if kind == "wandb":
        return "trl", "a_seed_0.wandb", damaged(wandb(), draw), "bytes"
    if kind == "trl":
        tree, words = altered(json.loads(trl(ROWS)), draw)
        return "trl", STATE, json.dumps(tree).encode(), words
    if kind == "verl":
        lines = verl().splitlines()
        at = draw.randrange(len(lines))
        tree, words = altered(json.loads(lines[at]), draw)
        lines[at] = json.dumps(tree)
        return "verl", LINES, "\n".join(lines).encode(), words
    tree, words = altered([dict(row) for row in CELLS], draw)
    rows = [row for row in tree if isinstance(row, dict)] if isinstance(tree, list) else []
    return "csv", "x.csv", table(rows or CELLS).encode("utf-8", "surrogatepass"), words


@pytest.mark.parametrize("kind", ["bytes", "wandb", "trl", "verl", "csv"])
def test_drawn_faults_of_logs_end_in_a_report_or_in_one_line(tmp_path: Path, kind: str) -> None:
    draw = Random(kind)
    for number in range(DRAWS):
        system, name, content, words = drawn(kind, draw)
        folder = tmp_path / str(number)
        logs = written(folder, {name: content})
        what = f"{kind}, draw {number}: {words}"
        try:
            import_runs(system, [logs], folder / "out", "accuracy" if system == "csv" else None)
        except StudyError as reason:
            check_answer((2, "", str(reason)), what)
        else:
            load(folder / "out")
            if number % 5 == 0:
                more = ["--metric", "accuracy"] if system == "csv" else []
                check_answer(answer(report.main, "--from", system, logs, "--output", folder / "page", *more), what)
        check_answer(answer(advise.main, "--from", system, logs / name), what)
