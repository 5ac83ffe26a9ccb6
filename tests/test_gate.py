"""No file that a user or a stranger names is opened, and no text of it parsed, but by ablations/texts.py."""

import ast
import os
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ablations
import dapo_lit
import dapo_lit_tools
import math_answers
from ablations.errors import DamagedError, UserError
from ablations.files.metrics_file import read_metrics
from ablations.files.tables import read_arrow
from ablations.read.ledger import read_ledger
from ablations.read.runs import load
from ablations.texts import DEEPEST, json_tree, opened, read_bytes, read_text, yaml_tree

FILES = sorted(
    file
    for package in (ablations, dapo_lit, dapo_lit_tools, math_answers)
    for file in Path(str(package.__file__)).parent.rglob("*.py")
)
ROOT = Path(dapo_lit.__file__).parents[1]
PARSERS = {
    ("yaml", "load"),
    ("yaml", "safe_load"),
    ("json", "load"),
    ("OmegaConf", "load"),
    ("os", "open"),
    ("io", "open"),
}
WITHOUT = {
    "ablations/texts.py": "the gate",
    "ablations/files/atomic.py": "os.open of a folder, to force its names to disk",
    "ablations/screen.py": "os.open and open of the null device, for what nobody reads",
    "dapo_lit/cli/config_files.py": "OmegaConf.load of a text that the gate has read and bounded",
    "dapo_lit/cli/workers.py": "os.open of a log, to write it",
    "dapo_lit/data/hub.py": "snapshot_download of a data set, whose files the gate opens",
    "dapo_lit/forecast/architecture.py": "from_pretrained of a folder that the model worker has read",
    "dapo_lit/policy/load.py": "from_pretrained, as above; snapshot_download of a model, weights last",
    "dapo_lit/policy/sharding.py": "from_pretrained, as above",
    "dapo_lit/rewards/model_files.py": "from_pretrained within the model worker",
    "dapo_lit/rewards/supervisor_process.py": "read_text of /proc, about its own workers",
}
"""Files that may open others, and what they open."""


def openings(source: str) -> list[str]:
    """The places in a source that open a file for reading, or parse one.

    >>> openings("AutoConfig.from_pretrained(x)")
    ['1: AutoConfig.from_pretrained']
    >>> openings("a.read_text(); b.open('ab'); c.open(); yaml.safe_load(x); engine.open(sampling); read_text(x)")
    ['1: a.read_text', '1: c.open', '1: yaml.safe_load']
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        modes = [
            *node.args[: 1 if isinstance(called, ast.Attribute) else 2],
            *(k.value for k in node.keywords if k.arg == "mode"),
        ]
        writes = any(
            isinstance(m, ast.Constant) and isinstance(m.value, str) and m.value.strip("btx+") in ("w", "a")
            for m in modes
        )
        # An engine opens a stream by settings; a file is opened by nothing or by a text.
        by_text = not node.args or isinstance(node.args[0], ast.Constant)
        match called:
            case ast.Attribute(attr="read_text" | "read_bytes"):
                reads = True
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if (name, attr) in PARSERS:
                reads = True
            case ast.Attribute(attr="from_pretrained") | ast.Name(id="snapshot_download"):
                reads = True
            case ast.Attribute(attr="open"):
                reads = by_text and not writes
            case ast.Name(id="open"):
                reads = not writes
            case _:
                reads = False
        if reads:
            found.append(f"{node.lineno}: {ast.unparse(called)}")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_is_opened_by_the_gate_only(file):
    found = openings(file.read_text(encoding="utf-8"))
    assert bool(found) == (str(file.relative_to(ROOT)) in WITHOUT), found


@pytest.fixture
def limits():
    """Address space of what a machine with other users has left."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (500 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_devices_pipes_folders_and_large_files_are_refused_before_they_are_read(tmp_path, limits):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 34)
    for name, reason in {
        "pipe": "not a regular file",
        "link": "not a regular file",
        "": "not a regular file",
        "sparse": "bytes",
    }.items():
        with pytest.raises(DamagedError, match=reason):
            read_bytes(tmp_path / name)
    with pytest.raises(DamagedError, match="null byte"):
        read_bytes(Path("a\0b"))
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "absent")
    with pytest.raises(DamagedError, match="more than 10 bytes"):
        read_bytes(Path("/proc/self/status"), 10)
    (tmp_path / "latin").write_bytes(b"a\xe9")
    with pytest.raises(DamagedError, match="not UTF-8"):
        read_text(tmp_path / "latin")
    (tmp_path / "lines").write_bytes(b"\xef\xbb\xbfa\r\nb\rc")
    assert read_text(tmp_path / "lines", encoding="utf-8-sig") == "a\nb\nc"
    with opened(tmp_path / "sparse") as stream:
        assert stream.read(3) == b"\0\0\0"


LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
YAML = {
    "aliases": ("a0: &a0 [x, y]\n" + LAUGHS, "more than 100,000 values"),
    "merged": ("a0: &a0 {x: 1}\n" + LAUGHS.replace("[", "{<<: [").replace("]", "]}"), "more than 100,000 values"),
    "itself": ("a: &a {x: *a}", "it holds itself: \\*a"),
    "itself, merged": ("a: &a {<<: *a}", "it holds itself: \\*a"),
    "deep": ("[" * 300_000, "nested too deep"),  # libyaml's composer crashes
    "deep by aliases": ("a0: &a0 x\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 200)), "too deep"),
    "sixties": ("a: 1" + ":1" * 200_000, "beyond 64 bits"),
    "sixties, a part": ("a: 1" + ":1" * 200_000 + ".5", "a number of 400,003 characters"),
    "hashes": ("".join(f"{i * (2**61 - 1)}: 1\n" for i in range(1, 30_000)), "beyond 64 bits"),
    "tags": ("a: !!timestamp x", "NoneType"),
    "code": ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "keys": ("{[a]: b}", "unhashable"),
    "documents": ("a: 1\n---\nb: 2", "single document"),
}  # fmt: skip


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_stands_for_more_than_it_holds_is_refused_in_one_line(name, limits):
    text, reason = YAML[name]
    with pytest.raises(DamagedError, match=f"^place cannot be read \\(.*{reason}") as refused:
        yaml_tree(text, "place")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_yaml_has_its_values_with_what_aliases_stand_for():
    text = "a: &a {x: 1e-06, y: [1, 2]}\nb: {<<: *a, z: 2}\nc: *a\nd: 0x10\ne: 1.5"
    a = {"x": 1e-6, "y": [1, 2]}
    assert yaml_tree(text, "place") == {"a": a, "b": a | {"z": 2}, "c": a, "d": 16, "e": 1.5}
    deep = "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1)
    assert str(yaml_tree(deep, "place")) == str(json_tree(deep, "place")) == deep


JSON = {
    "brackets": ("[" * 300_000, "nested too deep"),
    "levels": ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested too deep"),
    "digits": ('{"a": ' + "9" * 400 + "}", "a number of 400 digits"),
    "lists": ("[" + "[]," * 1_000_000 + "1]", "it may hold 2,000,001 values; at most 1,000,000 are read"),
    "nothing": ("", "it is empty"),
    "text": ("a", "it is not JSON"),
}


@pytest.mark.parametrize("name", JSON)
def test_json_that_stands_for_more_than_it_holds_is_refused_in_one_line(name, limits):
    text, reason = JSON[name]
    with pytest.raises(DamagedError, match=f"^place cannot be read \\(.*{reason}"):
        json_tree(text, "place")


def test_every_whole_number_of_json_is_a_float_too():
    assert float(json_tree("9" * 300, "place")) == 1e300


def table(folder: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), file := folder / "table.parquet")
    return file


def test_a_table_that_stands_for_more_than_a_run_writes_is_refused_and_categories_are_texts(tmp_path):
    once = np.zeros(1000, "int32")
    file = table(tmp_path, a=pa.DictionaryArray.from_arrays(once, ["x" * 1_000_000]))
    assert file.stat().st_size < 100_000
    with pytest.raises(DamagedError, match=r"1,000,000,000 bytes .* 200,000,000 are read"):
        read_arrow(file)
    with pytest.raises(DamagedError, match=r"20,000,000 values; .* 15,000,000 "):
        read_arrow(table(tmp_path, a=np.zeros(20_000_000, "int64")))
    with pytest.raises(DamagedError, match=r" 1,000 values; .* 999 "):
        read_arrow(table(tmp_path, a=pa.array(once)), most=999)
    kept = read_arrow(table(tmp_path, a=pa.DictionaryArray.from_arrays(once, ["x"]), b=pa.array([None, "y"] * 500)))
    assert kept.schema.types == [pa.string(), pa.string()]
    assert kept.slice(0, 2).to_pydict() == {"a": ["x", "x"], "b": [None, "y"]}


def test_metrics_with_more_damaged_rows_than_a_run_leaves_are_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("x" * (3 << 16) + "\n" * 10)
    assert len(read_metrics(tmp_path).faults) == 13  # a row of 3 x 64 kB is three torn ones
    (tmp_path / "metrics.jsonl").write_text("\n" * 100_000)
    with pytest.raises(DamagedError, match="more than 1,000 damaged rows"):
        read_metrics(tmp_path)


def test_a_message_is_one_line_of_a_length_that_can_be_read():
    assert str(DamagedError("x" * 1_000_000)) == "x" * 10_000 + "..."
    assert str(DamagedError("short\x1b[2J")) == "short"


def test_a_ledger_of_more_changes_than_are_decided_in_seconds_is_refused(tmp_path):
    rows = "".join(f"a{i},0,0.5,0.25\n" for i in range(1001))
    (tmp_path / "ledger.csv").write_text("change,pair,with,without\n" + rows)
    with pytest.raises(UserError, match="more than 1,000 changes"):
        read_ledger(tmp_path / "ledger.csv")


def test_a_folder_that_may_not_be_listed_is_named(tmp_path, monkeypatch):
    def refused(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
        load(tmp_path)
