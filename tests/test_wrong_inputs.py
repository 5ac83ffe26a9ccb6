"""A mistake on any command line gives one line that says what is wrong and what to do, and exit code 2."""

import json
from importlib.util import find_spec

import pytest
from command_line import run_cli

from dapo_lit.__main__ import COMMANDS

SUMS = "+experiment=four_sums"
FILE = ("+experiment=hf", "policy.path=models/none")
GYM = ("task=reasoning_gym", "reward=reasoning_gym")
EARLY = "lightning.pytorch.callbacks.EarlyStopping"
WRONG = [
    # a key, a value, a group
    ("train", ["algorithm.clip.hgh=1"], "algorithm.clip.hgh: unknown key; did you mean algorithm.clip.high?"),
    ("train", ["+speed=1"], "speed: unknown key; did you mean seed?"),
    ("train", ["four_sums"], "four_sums: not key=value"),
    ("train", ["seed=[1"], "seed=[1: not readable"),
    ("train", ["seed=one"], "seed: Input should be a valid integer"),
    ("train", ["budget=5"], "budget: "),
    ("train", ["study_name=../x"], "study_name: '../x' is no folder below runs_dir"),
    ("train", ["+experimnt=dapo"], "experimnt: unknown key; did you mean +experiment=NAME?"),
    ("train", ["+experiment=dappo"], "did you mean +experiment=dapo?"),
    ("train", ["policy=hf"], "policy.path is needed: A hub id, a Hugging Face folder"),
    ("train", [SUMS, "study_name=none", "resume=true"], "there is no run in"),
    ("train", [SUMS, "runs_dir=/proc/none"], "/proc/none"),
    ("train", ["-m", "+experiment=ablate_clip_higher", "seed=0,1", "task=four_sums", "policy=micro", "reward=number",
               "algorithm.overlong.cache_tokens=5", "study.underpowered=true"], "study.metric=task/steps_frac"),
    ("train", [SUMS, "--multi_run"], "--multi_run: no such flag"),
    ("train", ["lr=1e-4"], "lr: unknown key; here it is algorithm.optimizer.lr"),
    ("train", ["+num_generations=8"], "num_generations: unknown key; here it is algorithm.samples_per_prompt"),
    ("train", ["actor_rollout_ref.rollout.n=8"], "here it is algorithm.samples_per_prompt"),
    ("train", ["trainer.test_freq=5"], "trainer.test_freq: unknown key; here it is evaluation.every"),
    ("train", ["model=my/model"], "model: unknown key; here it is policy.path"),
    ("train", ["algorithm.clip_higher=true"], "did you mean algorithm.techniques.clip_higher?"),
    ("train", ["samples_per_promt=8"], "did you mean algorithm.samples_per_prompt?"),
    ("evaluate", ["batch_size=8"], "batch_size: unknown key; "),
    ("evaluate", ["benchmark=AIME24"], "did you mean benchmark=aime_2024?"),
    ("evaluate", ["benchmark=[aime_2024,aime_2025]"], "one benchmark at a time"),
    ("train", [*FILE, "task.columns={problem: Frage (Text)}"], '{problem: "Question (text)"}'),
    ("train", ["seed=-1"], "seed: Input should be greater than or equal to 0"),
    ("train", ["seed=99999999999999999999999"], "seed: Input should be less than"),
    ("train", ["resume=nowhere.ckpt"], "resume: Input should be True, False or 'auto' (got 'nowhere.ckpt')"),
    ("train", [SUMS, "algorithm.optimizer.lr=1e300"], "algorithm.optimizer.lr: Input should be less than"),
    ("train", [SUMS, "algorithm.optimizer.betas=[1.0,0.999]"], "algorithm.optimizer.betas.0: Input should be"),
    ("train", [SUMS, "algorithm.clip.high=28"], "algorithm.clip.high: Input should be less than"),
    ("train", [SUMS, "policy.architecture.hidden_size=-3"], "policy.architecture: no model has these sizes"),
    ("train", [SUMS, "policy.architecture.num_attention_heads=5"], "policy.architecture: no model has these sizes"),
    ("train", ["policy.architecture.num_attention_heads=5"], "policy.architecture: no model has these sizes"),
    ("train", [SUMS, "runs_dir=good.jsonl"], "runs_dir: the folder good.jsonl/four_sums/dapo cannot be made"),
    ("train", ["-m", "seed=range(6,0)"], "seed=range(6,0): has no value"),
    ("train", ["-m", "seed=0,0,1"], "seed=0,0,1: 0 is named twice"),
    # a study
    ("train", ["-m", "+experiment=ablate_clip_higher", "seed=range(6,0)"], "seed=range(6,0): has no value"),
    ("train", ["-m", "+study=clip_dose", "+regime=discovery", "seed=0,0,0"], "0 is named twice"),
    ("train", ["+regime=discovery", SUMS], "+experiment=four_sums brings a task of its own"),
    ("train", ["-m", "+experiment=[ablate_clip_higher,four_sums]"], "ablate_clip_higher is a study, which takes"),
    ("train", ["-m", "+experiment=ablate_clip_higher,four_sums"], "ablate_clip_higher is a study, which takes"),
    ("train", ["+experiment=glob(ablate_*)", "-m", "seed=1"], "ablate_clip_higher is a study, which takes"),
    (
        "train",
        ["+experiment=four_sums", "task.max_response_tokens=1300", "policy.architecture.max_position_embeddings=2048"],
        "algorithm=dapo_paper takes the paper's share",
    ),
    (
        "train",
        ["-m", "+experiment=ablate_clip_higher", "~regime", "task=file", "task.template=plain", "task.path=words.jsonl",
         "policy=micro", "reward=number", "seed=range(0,6)"],
        "is accuracy on held-out problems, and there are none",
    ),
    # data, model, reward
    ("train", [*FILE, "task.path=none.jsonl"], "none.jsonl: no such file; set task.path"),
    ("train", [*FILE, "task.path=trl.jsonl"], "trl.jsonl, line 1: has no `problem`"),
    ("train", [*FILE, "task.path=trl.jsonl", "task.columns={problem: prompt, answer: solutoin}"], "has no `solutoin`"),
    ("train", [*FILE, "task.path=trl.jsonl", "task.columns={problm: prompt}"], "task.columns.problm"),
    ("train", [*FILE, "task.path=good.jsonl"], "models/none"),
    ("train", [SUMS, "task=file", "task.template=plain", "task.path=words.jsonl", "task.eval_path=words.jsonl"],
     "cannot use these answers: words-0: 'five' is not a number; use rule sympy or dapo\n"),
    ("train", [*FILE, "task.path=semicolon.csv"], "semicolon.csv: its columns are separated by ';'"),
    ("train", [SUMS, "task.template=nohash.yaml"], "declares answer_format hash but does not contain '#'"),
    ("evaluate", ["policy=hf", "policy.path=models/none"], "A run is evaluated by its folder"),
    ("train", [SUMS, "task.template=plian"], "did you mean plain?"),
    ("train", [SUMS, "reward.function=nowhere.reward"], "the module 'nowhere'"),
    ("train", [SUMS, "evaluation.benchmarks=[aime_2042]"], "aime_2042"),
    ("train", ["task=chain_sum", "task.options.max_terms=4"], "task.options"),
    ("train", [*GYM[:1], "task.dataset=countdown"], "Set reward.extraction=answer_line"),
    ("train", [*GYM], "task.dataset is needed for task.name=reasoning_gym"),
    # callbacks and loggers
    ("train", [SUMS, "+callbacks.mine={_target_: nowhere.Mine}"], "callbacks.mine: nowhere.Mine: "),
    ("train", [SUMS, "+callbacks.mine={_target_: pathlib.Path}"], "pathlib.Path is not a lightning.Callback"),
    ("train", [SUMS, "+callbacks.mine={every: 3}"], "callbacks.mine: needs _target_"),
    ("train", [SUMS, f"+callbacks.mine={{_target_: {EARLY}, monitor: x}}"], "EarlyStopping has nothing to act on"),
    # the other commands
    ("evaluate", ["benchmark=aime_2042"], "aime_2042"),
    ("evaluate", ["runs/none", "benchmark=gsm8k_test"], "runs/none"),
    ("evaluate", ["runs/none", "benchmark=gsm8k_test", "n=0"], "n: Input should be greater than 0 (got 0)"),
    ("evaluate", ["compare=[runs/none]", "benchmark=gsm8k_test"], "compare takes two models and excludes ckpt"),
    ("export", ["runs/none"], "output is needed: The folder to write"),
    ("export", ["runs/none", "output=out"], "runs/none: no config.yaml"),
    ("export", ["runs/empty/dapo/seed_0", "output=out"], "runs/empty/dapo/seed_0/config.yaml"),
    ("plan", ["hardware=h9000"], "there is no such hardware"),
    ("plan", ["experiment=dapo"], "write +experiment=dapo, with a plus"),
    ("replay", ["runs/none", "step=one"], "step=one: a step is a number"),
    ("replay", ["runs/none", "clip_higher=false"], "did you mean algorithm.techniques.clip_higher?"),
    ("replay", ["runs/none", "trust=yes"], "trust=yes: write trust=true"),
    ("replay", ["runs/none", "step=1"], "runs/none"),
    ("status", [], "folders"),
    ("status", ["runs/none"], "runs/none"),
    ("report", ["runs/none"], "runs/none"),
    ("report", ["runs", "formats=gif"], "gif is not one of"),
    ("check_rewards", ["none.jsonl"], "none.jsonl"),
    ("check_rewards", ["bad.jsonl"], "bad.jsonl, line 2: not valid JSON"),
    ("check_rewards", ["bad.jsonl", "rule=exact"], "rule=exact: a rule is one of dapo, numeric, sympy"),
    ("train", [SUMS, "algorithm.samples_per_prompt=3", "algorithm.dynamic_sampling.pass_rate_margin=0.4"],
     "keeps no group of"),
    ("train", [SUMS, "algorithm.dynamic_sampling.pass_rate_margin=0.1",
               "algorithm.dynamic_sampling.filter_on=shaped_reward"], "pass_rate_margin counts right answers"),
    ("train", [SUMS, "algorithm.dynamic_sampling.on_exhausted=replay", "algorithm.dynamic_sampling.max_staleness=0"],
     "takes groups of earlier steps"),
    ("report", ["runs", "--metric", "reward"], "--metric goes with --from"),
    ("report", ["runs", "--from", "trl"], "no logs here"),
    ("advise", ["runs/none"], "runs/none: no config.yaml"),
    ("advise", ["runs/none", "steps=x"], "x"),
    ("ablate", ["clip_higer", "model=micro", "data=good.jsonl"], "did you mean clip_higher?"),
    ("ablate", ["clip_higher", "model=micro"], "data"),
    ("ablate", ["clip_higher", "model=micro", "data=none.jsonl"], "none.jsonl"),
    ("__main__", ["trian"], "trian: no such command; did you mean train?"),
]  # fmt: skip
if find_spec("hydra_plugins.hydra_submitit_launcher") is None:
    WRONG.append(("train", ["-m", "hydra/launcher=submitit_slurm", "seed=0,1"], "pip install -e '.[sweep]'"))
if find_spec("tensorboard") is None:
    WRONG.append(("train", [SUMS, "logger=tensorboard"], "pip install 'dapo_lit[tensorboard]'"))
if find_spec("reasoning_gym") is None:
    WRONG.append(("train", [*GYM, "task.dataset=countdown"], "pip install -e '.[tasks]'"))
else:
    WRONG.append(("train", [*GYM, "task.dataset=cuontdown"], "task.dataset=cuontdown"))
    WRONG.append(("train", [*GYM, "task.dataset=gcd", "task.options={min_number: 3}"], "argument 'min_number'"))


@pytest.fixture(scope="module")
def folder(cache, tmp_path_factory):
    """Files with mistakes, and an older run that none of the mistakes may touch."""
    place = tmp_path_factory.mktemp("wrong")
    (place / "trl.jsonl").write_text(json.dumps({"prompt": "1 + 1?", "solution": "2"}) + "\n")
    (place / "good.jsonl").write_text(json.dumps({"problem": "1 + 1?", "answer": "2"}) + "\n")
    (place / "warm.jsonl").write_text(json.dumps({"prompt": "1 + 1?", "response": "2"}) + "\n")
    (place / "words.jsonl").write_text(json.dumps({"problem": "2 + 3?", "answer": "five"}) + "\n")
    (place / "semicolon.csv").write_text("problem;answer\n1 + 1?;2\n")
    (place / "nohash.yaml").write_text("answer_format: hash\ntext: '{problem}'\n")
    (place / "bad.jsonl").write_text('{"pred": "1", "gold": "1"}\n{\n')
    empty = place / "runs" / "empty" / "dapo" / "seed_0"
    empty.mkdir(parents=True)
    (empty / "config.yaml").touch()
    older = place / "runs" / "four_sums" / "dapo" / "seed_0"
    older.mkdir(parents=True)
    (older / "run.json").write_text("{}")
    return place


@pytest.mark.parametrize(
    ("command", "arguments", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_mistake_is_one_line_and_exit_code_2(folder, command, arguments, message):
    done = run_cli(*arguments, cwd=folder, module=f"dapo_lit.{command}")
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert message in done.stderr
    summary = "rows cannot be used" in done.stderr  # of a data file: how many rows, after the line for each
    assert done.stderr.count("\n") == 1 + summary, done.stderr
    assert done.stderr.startswith(("error: ", "refused: "))
    assert sorted(path.name for path in (folder / "runs" / "four_sums" / "dapo").glob("seed*")) == ["seed_0"]


def test_there_are_mistakes_in_every_command():
    assert {command for command, *_ in WRONG} == {*COMMANDS, "__main__"}
