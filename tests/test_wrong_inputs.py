"""A mistake on any command line gives one line that says what is wrong and what to do, and exit code 2."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from command_line import run_cli

from dapo_lit.__main__ import COMMANDS

SUMS = "+experiment=four_sums"
FILE = ("+experiment=hf", "policy.path=models/none")
MONITORS = "lightning.pytorch.callbacks"
EARLY = f"{MONITORS}.EarlyStopping"
# what the line must hold, word by word: keys, files, values and what to write instead
WRONG = [
    ("train", ["-c", "dapo"], "--cfg 'dapo'"),
    ("docs", ["rewards.md#nothing"], "rewards.md#nothing heading"),
    # a key, a value, a group
    ("train", ["algorithm.clip.hgh=1"], "algorithm.clip.hgh algorithm.clip.high"),
    ("train", ["+speed=1"], "speed seed"),
    ("train", ["four_sums"], "four_sums key=value"),
    ("train", ["seed=[1"], "seed=[1"),
    ("train", ["study_name=../x"], "study_name '../x' runs_dir"),
    ("train", ["algorithm.family=../../up"], "algorithm.family"),
    ("train", ["task.label=a/b"], "task.label"),
    ("train", ["+experimnt=dapo"], "experimnt +experiment=NAME"),
    ("train", ["+experiment=dappo"], "+experiment=dapo"),
    ("train", [SUMS, "study_name=none", "resume=true"], "there is no run in"),
    ("train", [SUMS, "runs_dir=/proc/none"], "/proc/none"),
    ("train", ["-m", "+experiment=ablate_clip_higher", "seed=0,1", "task=four_sums", "policy=micro", "reward=number",
               "algorithm.overlong.cache_tokens=5", "study.underpowered=true"], "study.metric=task/steps_frac"),
    ("train", ["lr=1e-4"], "lr: algorithm.optimizer.lr"),
    ("train", ["actor_rollout_ref.rollout.n=8"], "algorithm.samples_per_prompt"),
    ("train", ["algorithm.clip_higher=true"], "algorithm.techniques.clip_higher"),
    ("evaluate", ["benchmark=AIME24"], "benchmark=aime_2024"),
    ("train", [*FILE, "task.columns={problem: Frage (Text)}"], '{problem: "Question (text)"}'),
    ("train", ["seed=-1"], "seed: 0"),
    ("train", [SUMS, "policy.architecture.num_attention_heads=5"], "policy.architecture"),
    ("train", [SUMS, "runs_dir=good.jsonl"], "runs_dir good.jsonl/four_sums/dapo"),
    ("train", ["-m", "seed=0,0,1"], "seed=0,0,1"),
    ("train", ["policy.lora={rank: 0}"], "policy.lora.rank policy.lora.alpha"),
    ("train", ["policy.architecture.num_hidden_layers=0"], "architecture.num_hidden_layers=0"),
    ("plan", ["hardware=rtx4090"], "hardware=rtx_4090"),
    ("plan", ["hardware.memory_gb=-1"], "hardware.memory_gb"),
    ("ablate", ["clip_higher", "--mdoel", "M"], "--mdoel --model"),
    ("train", [SUMS, "algorithm.clip.high=true"], "algorithm.clip.high: number true"),
    ("train", ["+regime=joint", "seed=1e3"], "error: seed: integer 1000"),
    ("train", [SUMS, "task=null"], "task=null four_sums"),
    ("train", ["+regime=joint", "+regime=parity"], "regime: twice"),
    ("train", ["+regime=joint", "algorithm.techniques=[clip_higher]"], "algorithm.techniques.NAME=VALUE"),
    ("train", [SUMS, "++fork.steps=[1]"], "fork: +study=fork fork.run"),
    ("train", ["-m", SUMS, "seed=0,x"], "job seed=x:"),
    # a study
    ("train", ["-m", "+experiment=ablate_clip_higher", "seed=range(6,0)"], "seed=range(6,0)"),
    ("train", ["+regime=discovery", SUMS], "+experiment=four_sums"),
    ("train", ["-m", "+experiment=[ablate_clip_higher,four_sums]"], "ablate_clip_higher"),
    (
        "train",
        ["+experiment=four_sums", "task.max_response_tokens=1300", "policy.architecture.max_position_embeddings=2048"],
        "algorithm=dapo_paper",
    ),
    (
        "train",
        ["-m", "+experiment=ablate_clip_higher", "~regime", "task=file", "task.template=plain", "task.path=words.jsonl",
         "policy.path=models/none", "reward=number", "seed=range(0,6)"],
        "accuracy held-out",
    ),
    # data, model, reward
    ("train", [*FILE, "task.path=none.jsonl"], "none.jsonl task.path"),
    ("train", [*FILE, "task.path=odd.jsonl"], "odd.jsonl 1 `problem`"),
    ("train", [*FILE, "task.path=good.jsonl"], "models/none"),
    ("train", [SUMS, "task=file", "task.template=plain", "task.path=words.jsonl", "task.eval_path=words.jsonl",
               "policy.path=models/none"], "words-0 'five' sympy dapo"),
    ("train", [SUMS, "task=file", "task.template=plain", "task.path=good.jsonl"], "policy.path task.name=file"),
    ("train", [*FILE, "task.path=headless.csv"], "headless.csv problem,answer"),
    ("train", [SUMS, "task.template=broken.yaml"], "broken.yaml YAML"),
    ("train", [*FILE, "task.path=semicolon.csv"], "semicolon.csv ';'"),
    ("doctor", ["--jsn"], "--jsn --json"),
    ("train", ["evaluation.at_tokens=80000"], "evaluation.at_tokens=[80000]"),
    ("evaluate", ["policy=hf", "policy.path=models/none"], "policy.path models/none"),
    ("train", [SUMS, "task.template=plian"], "plain"),
    ("train", [SUMS, "reward.function=nowhere.reward"], "reward nowhere.reward"),
    ("train", ["task=chain_sum", "task.options.max_terms=4"], "task.options"),
    ("train", [SUMS, "task=file", "task.path=null"], "task.path `problem` `answer`"),
    # callbacks and loggers
    ("train", [SUMS, "+callbacks.mine={_target_: nowhere.Mine}"], "callbacks.mine nowhere.Mine"),
    ("train", [SUMS, f"+callbacks.mine={{_target_: {EARLY}, monitor: x}}"], "EarlyStopping"),
    ("train", [SUMS, f"+callbacks.mine={{_target_: {MONITORS}.LearningRateMonitor}}"], "callbacks.mine optim/lr"),
    ("train", [SUMS, f"+callbacks.mine={{_target_: {MONITORS}.DeviceStatsMonitor}}"], "callbacks.mine memory/peak_gb"),
    # the other commands
    ("evaluate", ["runs/none", "benchmark=gsm8k_test"], "runs/none"),
    ("export", ["runs/none", "output=out"], "runs/none config.yaml"),
    ("export", ["runs/empty/dapo/seed_0", "output=out"], "runs/empty/dapo/seed_0/config.yaml"),
    ("plan", ["hardware=h9000"], "hardware"),
    ("replay", ["runs/none", "clip_higher=false"], "algorithm.techniques.clip_higher"),
    ("replay", ["runs/none", "step=1"], "runs/none"),
    ("status", [], "folders"),
    ("report", ["runs/none"], "runs/none"),
    ("report", ["runs", "--metric", "reward"], "--metric --from"),
    ("advise", ["runs/none"], "runs/none config.yaml"),
    ("advise", ["good.jsonl"], "good.jsonl --from"),
    ("train", ["-m", SUMS, "seed=0,1", "--cfg", "job"], "-m --cfg multirun"),
    ("decide", ["none.csv"], "none.csv"),
    ("decide", ["headless.csv"], "headless.csv 1 change"),
    ("decide", ["good.jsonl"], "good.jsonl 1 change"),
    ("decide", ["runs/none_such", "--from", "trl"], "runs/none_such"),
    ("decide", ["good.jsonl", "--alpha", "2"], "--alpha"),
    ("ablate", ["clip_higer", "model=micro", "data=good.jsonl"], "clip_higher"),
    ("convert", ["none.sh"], "none.sh"),
    ("docs", ["rewads"], "rewards"),
    ("schema", ["experiments"], "experiments experiment"),
    ("__main__", ["trian"], "trian train"),
]  # fmt: skip
if find_spec("hydra_plugins.hydra_submitit_launcher") is None:
    WRONG.append(("train", ["-m", "hydra/launcher=submitit_slurm", "seed=0,1"], "hydra-submitit-launcher"))
if find_spec("tensorboard") is None:
    WRONG.append(("train", [SUMS, "logger=tensorboard"], "pip install tensorboard"))


@pytest.fixture(scope="module")
def folder(cache, tmp_path_factory):
    """Files with mistakes, and an older run that none of the mistakes may touch."""
    place = tmp_path_factory.mktemp("wrong")
    (place / "odd.jsonl").write_text(json.dumps({"query": "1 + 1?", "solution": "2"}) + "\n")
    (place / "good.jsonl").write_text(json.dumps({"problem": "1 + 1?", "answer": "2"}) + "\n")
    (place / "words.jsonl").write_text(json.dumps({"problem": "2 + 3?", "answer": "five"}) + "\n")
    (place / "semicolon.csv").write_text("problem;answer\n1 + 1?;2\n")
    (place / "headless.csv").write_text("1+1?,2\n2+2?,4\n")
    (place / "broken.yaml").write_text("text: [\nbad: : {\n")
    empty = place / "runs" / "empty" / "dapo" / "seed_0"
    empty.mkdir(parents=True)
    (empty / "config.yaml").touch()
    older = place / "runs" / "four_sums" / "dapo" / "seed_0"
    older.mkdir(parents=True)
    (older / "run.json").write_text("{}")
    return place


@pytest.mark.parametrize(
    ("command", "arguments", "keys"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_mistake_is_one_line_that_names_its_keys_and_exit_code_2(folder, command, arguments, keys):
    done = run_cli(*arguments, cwd=folder, module=f"dapo_lit.{command}")
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert [key for key in keys.split() if key not in done.stderr] == [], done.stderr
    summary = "rows cannot be used" in done.stderr  # of a data file: how many rows, after the line for each
    assert done.stderr.count("\n") == 1 + summary, done.stderr
    assert done.stderr.startswith(("error: ", "refused: "))
    assert sorted(path.name for path in (folder / "runs" / "four_sums" / "dapo").glob("seed*")) == ["seed_0"]


OF_THE_SCHEMA = [
    ["lr=1e-4"], [SUMS, "budget.steps=-5"], ["-m", SUMS, "seed=0,0"], ["+regime=joint", "algorithm.clip.hgh=1"],
    ["-m", "+study=table1", "+regime=joint", "algorithm.optimizer.lr=fast"], ["+study=fork", "fork.run=nowhere"],
    ["-m", "+experiment=ablate_clip_higher", "seed=0,1", "task.num_heldout=0"], [SUMS, "trainer=fsdp"],
    [*FILE, "task.path=headless.csv"], [*FILE, "task.path=null.jsonl"],
]  # fmt: skip


def test_no_mistake_that_the_schema_the_machine_or_a_small_file_shows_loads_torch(tmp_path):
    """Torch and pandas take seconds, which nobody should wait for to see a typo."""
    (tmp_path / "headless.csv").write_text("1 + 1?,2\n2 + 2?,4\n")
    (tmp_path / "null.jsonl").write_text('{"problem": "1 + 1?", "answer": null}\n')
    code = f"""
import sys
import dapo_lit.train
for arguments in {OF_THE_SCHEMA!r}:
    sys.argv = ["train", *arguments]
    try:
        dapo_lit.train.main()
    except SystemExit as ended:
        print(ended.code, *sorted({{"torch", "transformers", "lightning", "pandas", "scipy"}} & set(sys.modules)))
"""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2"] * len(OF_THE_SCHEMA), done.stderr


def test_there_are_mistakes_in_every_command():
    assert {command for command, *_ in WRONG} == {*COMMANDS, "__main__"}
