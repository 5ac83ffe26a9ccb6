"""Files of a few hundred bytes to a megabyte that stand for more than a machine holds: each reader ends within 2 s of
processor time and 500 MB, by one line.

`make sweeps` draws 10,000; DAPO_LIT_BOMBS and DAPO_LIT_SEED say how many and which. A bomb that is found is drawn again
by its number, and what its reader did is printed:

    PYTHONPATH=tests:tests/ablations:tests/policy python tests/test_bombs.py 1234
"""

import ctypes
import json
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from odd_values import answer
from synthetic_runs import write_run
from tiny_policy import TINY

from ablations.commands import advise, decide, report, status
from ablations.designs import Arm
from ablations.errors import UserError
from ablations.files.layout import CELLS, CONFIG, METRICS, RECORD
from ablations.files.manifest import MANIFEST, sum_of, write_manifest
from ablations.read.packed_cells import METRICS as TABLE
from ablations.read.packed_cells import SAMPLES, pack, read_packed
from ablations.read.registration import FILE
from ablations.read.runs import load
from ablations.report import report as report_with_figures
from ablations.techniques import DAPO
from dapo_lit import model_worker
from dapo_lit.chat_template import RENDER_S
from dapo_lit.evaluation.resumable import prompt_day
from dapo_lit.evaluation.sample_store import read_samples
from dapo_lit.policy.base import character_tokenizer, random_model
from dapo_lit.policy.load import READ_S, save_policy
from dapo_lit.rewards.work import Reading, Rendering
from dapo_lit_tools.commands import convert

MOST_S, MOST_MB = 2.0, 500
LOADED = report_with_figures
"""What a command imports when it is needed: once here, or each process of the bombs would spend seconds on it."""
COUNT = int(os.environ.get("DAPO_LIT_BOMBS", 10_000 if "DAPO_LIT_MATRIX" in os.environ else 60))
SEED = int(os.environ.get("DAPO_LIT_SEED", "0"))

# Pieces. ----------------------------------------------------------------------------------------------------------


def size(draw: Random, most: int = 200_000) -> int:
    """A number of repetitions, small and large ones alike."""
    return int(most ** draw.random())


def word(draw: Random) -> str:
    """A text that may be long, odd or a number."""
    return draw.choice(
        [
            lambda: draw.choice("abxyz") * size(draw, 50_000),
            lambda: (
                draw.choice(["9", "0x" + "f" * 50, "1e", "-", "1:", "0b1", "1_", ".", "é", "\\", "'", '"', "$", "\t"])
                * size(draw, 20_000)
            ),
            lambda: str(draw.choice([-5, 0, 1, 10**30, -(10**400), 1e308, 2**63, 2**53 + 1])),
            lambda: draw.choice(["nan", "inf", "null", "true", "~", "", " ", "x", "\u2028", "\x1b[2J", "\0", "\ud800"]),
        ]
    )()


def nested(draw: Random, pairs: tuple[tuple[str, str], ...], inner: str) -> str:
    """`inner` between many brackets, of which some may be missing."""
    start, end = draw.choice(pairs)
    times = size(draw, 60_000)
    return start * times + inner + end * draw.choice([times, times, 0, times // 2])


def json_text(draw: Random, keys: tuple[str, ...]) -> str:
    """An object with some of these keys, whose values are odd."""

    def value() -> str:
        return draw.choice(
            [
                lambda: json.dumps(word(draw)),
                lambda: draw.choice(["9" * size(draw, 6000), "-1e999", "NaN", "1e-400", "true", "null", "2.5", "12"]),
                lambda: nested(draw, (("[", "]"), ('{"a":', "}"), ("[0,", "]")), "1"),
                lambda: (
                    "[" + ",".join(["1", "{}", "[]", '"a"'][draw.randrange(4)] for _ in range(size(draw, 30_000))) + "]"
                ),
                lambda: "{" + ",".join(f'"k{i}":{i}' for i in range(size(draw, 30_000))) + "}",
                lambda: "{" + ",".join('"k":1' for i in range(size(draw, 30_000))) + "}",
            ]
        )()

    given = draw.sample(keys, draw.randint(0, len(keys)))
    return "{" + ",".join(f"{json.dumps(key)}: {value()}" for key in given) + "}"


def yaml_text(draw: Random, keys: tuple[str, ...]) -> str:
    """A mapping with some of these keys, and aliases, merged keys, tags and collections that are odd."""
    fan, levels = draw.randint(1, 40), draw.randint(1, 60)
    form = draw.choice(["[{}]", "{{{}}}", "{{<<: [{}]}}"])
    lines = ["a0: &a0 {x: 1, y: [2, 3]}"]
    for level in range(1, levels):
        uses = [f"*a{level - 1}"] * fan
        inner = ", ".join(f"k{i}: {use}" for i, use in enumerate(uses)) if form == "{{{}}}" else ", ".join(uses)
        lines.append(f"a{level}: &a{level} {form.format(inner)}")

    def value() -> str:
        return draw.choice(
            [
                lambda: json.dumps(word(draw)),
                lambda: word(draw),
                lambda: f"*a{draw.randrange(levels)}",
                lambda: "&b [*b, *b]",
                lambda: (
                    draw.choice(
                        ["!!int ", "!!timestamp ", "!!float ", "!!bool ", "!!binary ", "!!set ", "!!omap ", "!x "]
                    )
                    + draw.choice(["x", "[a]", "{a: b}", "''"])
                ),
                lambda: "1" + ":1" * size(draw),
                lambda: nested(draw, (("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("&c [", "]")), "1"),
                lambda: "[" + "1, " * size(draw, 30_000) + "]",
                lambda: "{" + ", ".join(f"{i * (2**61 - 1)}: 1" for i in range(size(draw, 5000))) + "}",
                lambda: "|\n  " + "x\n  " * size(draw, 20_000),
            ]
        )()

    given = [f"{key}: {value()}" for key in draw.sample(keys, draw.randint(0, len(keys)))]
    return "\n".join((lines if draw.random() < 0.6 else []) + given) + "\n"


def rewritten(content: bytes, draw: Random) -> bytes:
    """Bytes that are cut, doubled, of another encoding, or as they are."""
    match draw.randrange(12):
        case 0:
            return content[: draw.randrange(len(content) + 1)]
        case 1:
            return (content * 3)[:1_500_000]
        case 2:
            return content.decode("utf-8", "replace").encode("utf-16")
        case 3:
            return b"\xef\xbb\xbf" + content
        case 4:
            return content.replace(b"\n", b"\r")
    return content


def placed(file: Path, text: str, draw: Random) -> None:
    """Writes a file, or puts a device, a pipe, a folder or a sparse file in its place."""
    file.unlink(missing_ok=True)
    match draw.randrange(40):
        case 0:
            file.symlink_to("/dev/zero")
        case 1:
            os.mkfifo(file)
        case 2:
            with file.open("wb") as opened:
                opened.truncate(1 << 33)
        case 3:
            file.mkdir()
        case _:
            file.write_bytes(rewritten(text.encode("utf-8", "surrogatepass"), draw))


# Readers. ---------------------------------------------------------------------------------------------------------

VERL = (
    "algorithm", "algorithm.adv_estimator", "data", "data.train_batch_size", "data.max_response_length", "trainer",
    "actor_rollout_ref", "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.optim.lr", "reward_model", "x.y",
)  # fmt: skip
TRL = (
    "num_generations", "learning_rate", "beta", "epsilon_high", "max_completion_length", "reward_weights",
    "per_device_train_batch_size", "gradient_accumulation_steps", "model_name_or_path", "num_iterations", "max_steps",
)  # fmt: skip
Read = Callable[[], object]
Make = Callable[[Path, Random], Read]
"""Puts a bomb into a folder, and says how it is read."""


def shell(draw: Random) -> str:
    names = "ABCDEFG"

    def line() -> str:
        a, b = draw.choice(names), draw.choice(names)
        return draw.choice(
            [
                lambda: f"{a}={f'${b}' * draw.randint(1, 8)}",
                lambda: f"{a}=$(({a}*{b}))",
                lambda: f"{a}=$(( ${a} * ${b} + {'9' * draw.randint(1, 60)} ))",
                lambda: f"{a}={word(draw)}",
                lambda: (
                    f"{a}="
                    + nested(
                        draw,
                        (("${" + b + ":-", "}"), ("$((", "))"), ("$(", ")"), ("'", ""), ('"', ""), ("(", ")")),
                        "1",
                    )
                ),
                lambda: "$((x)) " * size(draw, 30_000),
                lambda: " ".join(f"--k{i} {i}" for i in range(size(draw, 20_000))),
                lambda: "--num_generations " + word(draw),
                lambda: " ".join(f"{'a.' * draw.randint(1, 30)}b{i}={i}" for i in range(size(draw, 3000))),
                lambda: f"{draw.choice(VERL)}={word(draw)}",
                lambda: f"{draw.choice(VERL)}=${a}",
                lambda: (
                    f"{draw.choice(VERL)}=" + nested(draw, (("[", "]"), ("{a: ", "}"), ("(", ")"), ("-", "")), "1,")
                ),
                lambda: "a.b." * size(draw, 40_000) + "c=1",
                lambda: "\\\n" * size(draw, 50_000),
                lambda: "# " + word(draw),
            ]
        )()

    def again() -> str:
        """A statement that is read many times, or asked about."""
        one, times = line().replace("\n", " "), size(draw, 30_000)
        times = min(times, 20_000_000 // (len(one) + 1) + 1)  # a file that this test can hold
        return draw.choice(
            [
                f"for i in {{1..{times}}}; do {one}; done",
                f"f() {{ {one}; }}\n" + "f $A\n" * times,
                f"while [ $A != x ]; do {one}; A=$((A+1)); done",
                "for i in a b c; do case $i in " + "x|y) ;; " * times + "esac; done",
                f"if [[ $U == {'?*' * min(times, 3000)} ]]; then {one}; fi",
                f"{one} | cat\n" * min(times, 3000),
                "(" * min(times, 200) + one + ")" * min(times, 200),
                f"eval '{one}'; bash -c \"{one}\"",
                "".join(f"V{i}={i}\n" for i in range(times)) + "a | b\n" * min(times, 5000),
            ]
        )

    lines = [line() if draw.random() < 0.8 else again() for _ in range(draw.randint(1, 25))]
    if draw.random() < 0.4:  # growing on and on
        lines += [draw.choice(lines)] * draw.randint(1, 60)
    lines.append(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=$A data.x=${B}"
    )
    return "\n".join(lines)


def python(draw: Random) -> str:
    def value() -> str:
        return draw.choice(
            [
                lambda: draw.choice("abcd"),
                lambda: "[a, a, b]",
                lambda: "{'x': a, 'y': b, **a}",
                lambda: "dict(u=a, v=a)",
                lambda: nested(draw, (("[", "]"), ("f(", ")"), ("-", ""), ("(", ")"), ("a.", ""), ("1+", "")), "1"),
                lambda: "[" * 80 + "1, " * size(draw, 20_000) + "f()" + "]" * 80,
                lambda: draw.choice(
                    ["9**9**9", "'a' * 10**10", "1e999", "0x" + "f" * size(draw, 100_000), "1j", "..."]
                ),
                lambda: repr(word(draw).encode("utf-8", "replace").decode()),
                lambda: "f(" + ", ".join(f"k{i}={i}" for i in range(size(draw, 8000))) + ")",
                lambda: "9" * size(draw, 6000),
            ]
        )()

    lines = [f"{draw.choice('abcd')} = {value()}" for _ in range(draw.randint(0, 40))]
    lines += [draw.choice(lines or ["a = [1, 2]"])] * draw.randint(0, 60)
    call = draw.choice(["GRPOConfig", "GRPOTrainer", "LoraConfig", "get_soft_overlong_punishment"])
    given = [f"{draw.choice(TRL)}={value()}" for _ in range(draw.randint(0, 5))]
    return "\n".join([*lines, f"{call}({', '.join([*given, '**a'][: draw.randint(0, 6)])})", f"GRPOConfig({value()})"])


def converted(name: str, make: Callable[[Random], str]) -> Make:
    def put(folder: Path, draw: Random) -> Read:
        placed(file := folder / name, make(draw), draw)
        # Every tenth with the command that it becomes, which takes two tenths of a second to compose.
        whole = draw.random() < 0.1
        return lambda: answer(convert.main, file) if whole else convert.conversion([str(file)])

    return put


def ledger(folder: Path, draw: Random) -> Read:
    lines = ["change,pair,with,without,cost"[: draw.choice([99, 99, 99, 22])]]
    if draw.random() < 0.2:
        lines = [",".join(f"c{i}" for i in range(size(draw)))]
    lines += [f"a{i % draw.choice([1, 3, 500])},{i},0.5,{draw.random()},1" for i in range(size(draw, 3000))]
    lines += [",".join(word(draw) for _ in range(5)) for _ in range(draw.randint(0, 3))]
    placed(file := folder / "ledger.csv", "\n".join(lines), draw)
    return lambda: answer(decide.main, file)


def ledger_lines(folder: Path, draw: Random) -> Read:
    keys = ("change", "pair", "with", "without", "cost", "seed")
    sound = [
        json.dumps({"change": f"a{i % 7}", "pair": i, "with": 0.5, "without": 0.1 * i}) for i in range(size(draw, 500))
    ]
    lines = [*sound, *(json_text(draw, keys) for _ in range(draw.randint(0, 4)))]
    draw.shuffle(lines)
    placed(file := folder / "ledger.jsonl", "\n".join(lines), draw)
    return lambda: answer(decide.main, file)


def foreign_log(folder: Path, draw: Random) -> Read:
    row = ("step", "rewards/accuracy/mean", "reward", "loss", "data", "epoch")
    rows = [json.dumps({"step": i, "reward": 0.1 * i, "loss": 1.0}) for i in range(1, size(draw, 300))]
    rows += [json_text(draw, row) for _ in range(draw.randint(0, 3))]
    name, text = draw.choice(
        [
            ("trainer_state.json", '{"log_history": [' + ",".join(rows) + "]}"),
            ("trainer_state.json", json_text(draw, ("log_history", "global_step"))),
            ("metrics.jsonl", "\n".join(rows)),
            ("log.csv", ",".join(f"c{i}" for i in range(size(draw))) + "\nstep,1"),
            ("log.csv", "step,reward\n" + "\n".join(f"{i},{word(draw)}" for i in range(size(draw, 50)))),
            ("run.wandb", ":W&B" + word(draw) * 3),
        ]
    )
    (home := folder / "arm" / "seed_0").mkdir(parents=True)
    placed(home / name, text, draw)
    system = draw.choice(["trl", "verl", "openrlhf"])
    command, more = draw.choice([(decide, []), (advise, []), (report, ["--out", folder / "out"])])
    return lambda: answer(
        command.main, *([folder] if command is not advise else [home / name]), "--from", system, *more
    )


RUN = {
    RECORD: ("arm", "seed", "status", "techniques", "config_hash", "started_at", "versions", "faults", "not_finite"),
    MANIFEST: ("step", "row", "config_hash", "files", "crc32"),
    "study.json": ("at", "plan", "digest"),
    "heartbeat": ("host", "pid", "owner"),
}


def run_folder(folder: Path, draw: Random) -> Read:
    shutil.copytree(SOUND / "run", study := folder / "table1")
    home = next(study.glob("*/seed_0"))
    name = draw.choice([*RUN, CONFIG, METRICS, "overrides.txt"])
    place = (study if name == "study.json" else home) / name
    if name == CONFIG:
        text = yaml_text(draw, ("algorithm", "budget", "evaluation", "policy", "regime", "task"))
    elif name == METRICS:
        text = "\n".join(json_text(draw, ("step", "crc32", "a", "b")) for _ in range(draw.randint(1, 9)))
        text += "\n" * size(draw) + word(draw)
    else:
        text = json_text(draw, RUN.get(name, ("a",)))
        text = f"[{text}]" if name == "study.json" and draw.random() < 0.7 else text
    placed(place, text, draw)
    if name != MANIFEST:
        (home / MANIFEST).unlink(missing_ok=True)
    command = draw.choice([status, status, advise, decide])
    return lambda: answer(command.main, home if command is advise else study)


def repeated(value: object, rows: int) -> pa.Array:
    """A column of one value, which takes little room in memory and less in a file."""
    if isinstance(value, str):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, "int32")), [value])
    return pa.array(np.full(rows, value))


def packed_study(folder: Path, draw: Random) -> Read:
    shutil.copytree(SOUND / "packed", packed := folder / "packed")
    name = draw.choice([CELLS, TABLE, SAMPLES, FILE, MANIFEST])
    if name in (FILE, MANIFEST):
        placed(packed / name, json_text(draw, RUN["study.json" if name == FILE else MANIFEST]), draw)
    else:
        columns = pd.read_parquet(packed / name)
        texts = [key for key in columns if columns[key].dtype.kind not in "iufb"]
        if draw.random() < 0.5 and name == CELLS:
            key, text = draw.choice(texts), json_text(draw, (*RUN[RECORD], "algorithm", "budget", "task"))
            bomb = pa.table({c: pa.array([text] * len(columns) if c == key else list(columns[c])) for c in columns})
        else:  # many rows, and maybe one long text in each
            rows, key, long = size(draw, 4_000_000), draw.choice([None, *texts]), "x" * size(draw, 1_000_000)
            given = {c: long if c == key else columns[c].iloc[0] for c in columns}
            bomb = pa.table({c: repeated(value, rows) for c, value in given.items()})
        pq.write_table(bomb, packed / name, compression="zstd")
        del bomb
    if name != MANIFEST:
        write_manifest(
            packed, {"files": {n: sum_of(packed / n) for n in (CELLS, TABLE, SAMPLES) if (packed / n).is_file()}}
        )
    return draw.choice([lambda: read_packed(packed), lambda: answer(status.main, packed)])


def evaluation_store(folder: Path, draw: Random) -> Read:
    if draw.random() < 0.5:
        keys = ("prompt_date", "questions", "inputs", "model", "benchmark")
        (folder / "a").mkdir()
        placed(folder / "a" / "evaluation.json", json_text(draw, keys), draw)
        return lambda: prompt_day(folder, None)
    rows, long = size(draw, 2_000_000), draw.choice([0, 0, size(draw, 500_000)])
    sample = {"problem_id": "p", "question_digest": "q", "response": "x" * long, "extracted": "1", "scored_by": "s"}
    sample |= {"sample_index": 0, "num_tokens": 1, "correct": True, "timed_out": False, "truncated": False}
    sample |= {"logprob": 0.5, "failed": False}
    table = pa.table({name: repeated(value, rows) for name, value in sample.items()})
    pq.write_table(table, folder / "samples.parquet", compression="zstd")
    return lambda: read_samples(folder)


def model_folder(folder: Path, draw: Random) -> Read:
    shutil.copytree(SOUND / "model", home := folder / "model")
    name = draw.choice(["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
    tree = json.loads((home / name).read_text())
    keys = draw.sample([*tree], min(3, len(tree)))
    odd = json_text(draw, tuple(keys))
    if draw.random() < 0.7:  # the rest of the file is sound
        odd = ",".join([json.dumps({k: v for k, v in tree.items() if k not in keys})[:-1], odd[1:]])
    placed(home / name, odd.replace(",}", "}"), draw)

    def read() -> None:
        outcome = model_worker.ask(Reading(str(home)), READ_S)
        if outcome.service_s > READ_S + 1:
            raise TimeoutError(f"held for {outcome.service_s:.1f} s")

    return read


def chat(folder: Path, draw: Random) -> Read:
    pieces = [
        "x",
        "messages",
        "range(10**7)",
        "'a' * 10**9",
        "x * 9",
        "x ** x",
        "x + x",
        "x|list",
        "x|join(x)",
        "x|tojson",
    ]
    pieces += [
        "x|center(10**9)",
        "'%999999999d' % 1",
        "x.replace('a', x)",
        "x|batch(1)|list",
        "strftime_now('%Y' * 9999)",
    ]
    lines = [f"{{% set x = {draw.choice(pieces)} %}}" for _ in range(draw.randint(1, 12))]
    loops = draw.randint(0, 5)
    text = (
        "{% set x = 'aa' %}"
        + "{% for i in range(99999) %}" * loops
        + "".join(lines)
        + "{{ x }}"
        + "{% endfor %}" * loops
    )
    text = draw.choice([text, text, nested(draw, (("{% if 1 %}", "{% endif %}"), ("{{ (", ") }}")), "1"), word(draw)])
    turn = ({"role": "user", "content": "a"},)
    work = Rendering(text, (turn,), {}, "2026-01-01", "strftime_now", True)
    return lambda: model_worker.ask(work, RENDER_S)


READERS: dict[str, Make] = {
    "convert a script": converted("run.sh", shell),
    "convert a config of verl": converted("verl.yaml", lambda draw: yaml_text(draw, VERL)),
    "convert a config of trl": converted("trl.yaml", lambda draw: yaml_text(draw, TRL)),
    "convert python": converted("train.py", python),
    "decide a table": ledger,
    "decide json lines": ledger_lines,
    "a log of another trainer": foreign_log,
    "a run folder": run_folder,
    "a packed study": packed_study,
    "an evaluation": evaluation_store,
    "a model's folder": model_folder,
    "a chat template": chat,
}
SOUND = Path()


def sound_study(folder: Path) -> Path:
    """A run, two packed cells and a model that bombs are put into."""
    arms = (Arm(DAPO), Arm(DAPO - {"clip_higher"}))
    for arm in arms:
        write_run(folder, arm, 0, steps=6, every=3)
    (folder / "table1").rename(folder / "run")
    pack(load(folder / "run").runs, folder / "packed", ())
    tokenizer = character_tokenizer("0123456789+=")
    save_policy(folder / "model", random_model(TINY, tokenizer, seed=0), tokenizer, {})
    return folder


# One after the other, in processes that may be killed. ------------------------------------------------------------


def judged(number: int) -> str | None:
    """What is wrong with how the bomb of a number ended; None: nothing."""
    draw = Random(f"{SEED} {number}")
    name = draw.choice([*READERS])
    folder = Path(tempfile.mkdtemp(prefix="bomb_"))
    try:
        return _wrong(name, folder, draw)
    except MemoryError:
        return f"{name}: more than {MOST_MB} MB"
    except BaseException as fault:
        return f"{name}: {type(fault).__name__}: {str(fault)[:200]}, {traceback.extract_tb(fault.__traceback__)[-1]}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def held_mb(kind: str) -> float:
    """Memory of this process: now (VmRSS), or its peak (VmHWM)."""
    return int(Path("/proc/self/status").read_text().split(f"{kind}:")[1].split()[0]) / 1024


def _wrong(name: str, folder: Path, draw: Random) -> str | None:
    read = READERS[name](folder, draw)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before, started = held_mb("VmRSS"), time.process_time()
    try:
        result = read()
    except UserError as refused:
        result = (2, "", str(refused))
    spent, more = time.process_time() - started, held_mb("VmHWM") - before
    if spent > MOST_S or more > MOST_MB:
        return f"{name}: {spent:.1f} s, {more:.0f} MB"
    if isinstance(result, tuple) and isinstance(result[0], int):
        code, _, err = result
        if code not in (0, 2, 3):
            return f"{name}: exit code {code}"
        if code == 2 and err and len(err.strip().splitlines()) != 1 and "refused" not in err and "error" not in err:
            return f"{name}: {len(err.splitlines())} lines"
        if "Traceback" in err or len(max(err.splitlines(), default="")) > 20_000:
            return f"{name}: {err[:200]}"
    return None


def served(numbers: list[int], out: int) -> None:
    """Judges bombs one after the other, and writes each number before and what was wrong after."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # Address space, of which libraries reserve more than they use; what is used is measured of each.
    resource.setrlimit(resource.RLIMIT_AS, (held + (4 * MOST_MB << 20), held + (4 * MOST_MB << 20)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        os.write(out, pickle.dumps((number, None)) + b"\n\0")
        # Of processor time, and the signal's own action: a thread may hold the interpreter's lock.
        signal.setitimer(signal.ITIMER_PROF, 4 * MOST_S)
        wrong = judged(number)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(out, pickle.dumps((number, wrong or "")) + b"\n\0")


def detonated(numbers: list[int]) -> dict[int, str]:
    """What was wrong with each of these bombs, where anything was."""
    found: dict[int, str] = {}
    while numbers:
        reading, writing = os.pipe()
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            code = 1
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
                served(numbers, writing)
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            events = [pickle.loads(part) for part in stream.read().split(b"\n\0") if part]
        status_of = os.waitpid(pid, 0)[1]
        ended = {number for number, wrong in events if wrong is not None}
        found |= {number: wrong for number, wrong in events if wrong}
        begun = [number for number, wrong in events if wrong is None and number not in ended]
        for number in begun:
            draw = Random(f"{SEED} {number}")
            found[number] = f"{draw.choice([*READERS])}: killed by signal {os.WTERMSIG(status_of)}"
        numbers = [number for number in numbers if number not in ended and number not in begun] if begun else []
    return found


def test_every_bomb_ends_within_two_seconds_and_500_mb_by_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SOUND", sound_study(tmp_path))
    wrong = detonated(list(range(COUNT)))
    assert wrong == {}


if __name__ == "__main__":
    SOUND = sound_study(Path(tempfile.mkdtemp()))
    for bomb in map(int, sys.argv[1:]):
        print(bomb, judged(bomb), flush=True)
