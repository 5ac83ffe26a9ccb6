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
# what the line must hold, word by word: keys, files, values and what to write instead
WRONG = [
    # a key, a value, a group
    ("train", ["algorithm.clip.hgh=1"], "algorithm.clip.hgh algorithm.clip.high"),
    ("train", ["+speed=1"], "speed seed"),
    ("train", [SUMS, "logger.wandb.mode=offline"], "logger.wandb.mode logger=wandb"),
    ("train", ["four_sums"], "four_sums key=value"),
    ("train", ["seed=[1"], "seed=[1"),
    ("train", ["seed=one"], "seed"),
    ("train", ["budget=5"], "budget: "),
    ("train", ["study_name=../x"], "study_name '../x' runs_dir"),
    ("train", ["+experimnt=dapo"], "experimnt +experiment=NAME"),
    ("train", ["+experiment=dappo"], "+experiment=dapo"),
    ("train", ["policy=hf"], "policy.path"),
    ("train", [SUMS, "study_name=none", "resume=true"], "there is no run in"),
    ("train", [SUMS, "runs_dir=/proc/none"], "/proc/none"),
    ("train", ["-m", "+experiment=ablate_clip_higher", "seed=0,1", "task=four_sums", "policy=micro", "reward=number",
               "algorithm.overlong.cache_tokens=5", "study.underpowered=true"], "study.metric=task/steps_frac"),
    ("train", [SUMS, "--multi_run"], "--multi_run"),
    ("train", ["lr=1e-4"], "lr: algorithm.optimizer.lr"),
    ("train", ["+num_generations=8"], "num_generations algorithm.samples_per_prompt"),
    ("train", ["actor_rollout_ref.rollout.n=8"], "algorithm.samples_per_prompt"),
    ("train", ["trainer.test_freq=5"], "trainer.test_freq evaluation.every"),
    ("train", ["model=my/model"], "model: policy.path"),
    ("train", ["algorithm.clip_higher=true"], "algorithm.techniques.clip_higher"),
    ("train", ["samples_per_promt=8"], "algorithm.samples_per_prompt"),
    ("evaluate", ["batch_size=8"], "batch_size"),
    ("evaluate", ["benchmark=AIME24"], "benchmark=aime_2024"),
    ("evaluate", ["benchmark=[aime_2024,aime_2025]"], "one benchmark at a time"),
    ("train", [*FILE, "task.columns={problem: Frage (Text)}"], '{problem: "Question (text)"}'),
    ("train", ["seed=-1"], "seed: 0"),
    ("train", ["seed=99999999999999999999999"], "seed:"),
    ("train", ["resume=nowhere.ckpt"], "resume: 'auto' 'nowhere.ckpt'"),
    ("train", [SUMS, "algorithm.optimizer.lr=1e300"], "algorithm.optimizer.lr"),
    ("train", [SUMS, "algorithm.optimizer.betas=[1.0,0.999]"], "algorithm.optimizer.betas.0"),
    ("train", [SUMS, "algorithm.clip.high=28"], "algorithm.clip.high"),
    ("train", [SUMS, "policy.architecture.hidden_size=-3"], "policy.architecture"),
    ("train", [SUMS, "policy.architecture.num_attention_heads=5"], "policy.architecture"),
    ("train", ["policy.architecture.num_attention_heads=5"], "policy.architecture"),
    ("train", [SUMS, "runs_dir=good.jsonl"], "runs_dir good.jsonl/four_sums/dapo"),
    ("train", ["-m", "seed=range(6,0)"], "seed=range(6,0)"),
    ("train", ["-m", "seed=0,0,1"], "seed=0,0,1"),
    # a study
    ("train", ["-m", "+experiment=ablate_clip_higher", "seed=range(6,0)"], "seed=range(6,0)"),
    ("train", ["-m", "+study=clip_dose", "+regime=discovery", "seed=0,0,0"], "0 is named twice"),
    ("train", ["+regime=discovery", SUMS], "+experiment=four_sums"),
    ("train", ["-m", "+experiment=[ablate_clip_higher,four_sums]"], "ablate_clip_higher"),
    ("train", ["-m", "+experiment=ablate_clip_higher,four_sums"], "ablate_clip_higher"),
    ("train", ["+experiment=glob(ablate_*)", "-m", "seed=1"], "ablate_clip_higher"),
    (
        "train",
        ["+experiment=four_sums", "task.max_response_tokens=1300", "policy.architecture.max_position_embeddings=2048"],
        "algorithm=dapo_paper",
    ),
    (
        "train",
        ["-m", "+experiment=ablate_clip_higher", "~regime", "task=file", "task.template=plain", "task.path=words.jsonl",
         "policy=micro", "reward=number", "seed=range(0,6)"],
        "accuracy held-out",
    ),
    # data, model, reward
    ("train", [*FILE, "task.path=none.jsonl"], "none.jsonl task.path"),
    ("train", [*FILE, "task.path=trl.jsonl"], "trl.jsonl 1 `problem`"),
    ("train", [*FILE, "task.path=trl.jsonl", "task.columns={problem: prompt, answer: solutoin}"], "`solutoin`"),
    ("train", [*FILE, "task.path=trl.jsonl", "task.columns={problm: prompt}"], "task.columns.problm"),
    ("train", [*FILE, "task.path=good.jsonl"], "models/none"),
    ("train", [SUMS, "task=file", "task.template=plain", "task.path=words.jsonl", "task.eval_path=words.jsonl"],
     "words-0 'five' sympy dapo"),
    ("train", [*FILE, "task.path=semicolon.csv"], "semicolon.csv ';'"),
    ("train", [SUMS, "task.template=nohash.yaml"], "answer_format hash '#'"),
    ("evaluate", ["policy=hf", "policy.path=models/none"], "A run is evaluated by its folder"),
    ("train", [SUMS, "task.template=plian"], "plain"),
    ("train", [SUMS, "reward.function=nowhere.reward"], "'nowhere'"),
    ("train", [SUMS, "evaluation.benchmarks=[aime_2042]"], "aime_2042"),
    ("train", ["task=chain_sum", "task.options.max_terms=4"], "task.options"),
    ("train", [*GYM[:1], "task.dataset=countdown"], "reward.extraction=answer_line"),
    ("train", [*GYM], "task.dataset task.name=reasoning_gym"),
    # callbacks and loggers
    ("train", [SUMS, "+callbacks.mine={_target_: nowhere.Mine}"], "callbacks.mine nowhere.Mine"),
    ("train", [SUMS, "+callbacks.mine={_target_: pathlib.Path}"], "pathlib.Path lightning.Callback"),
    ("train", [SUMS, "+callbacks.mine={every: 3}"], "callbacks.mine _target_"),
    ("train", [SUMS, f"+callbacks.mine={{_target_: {EARLY}, monitor: x}}"], "EarlyStopping"),
    # the other commands
    ("evaluate", ["benchmark=aime_2042"], "aime_2042"),
    ("evaluate", ["runs/none", "benchmark=gsm8k_test"], "runs/none"),
    ("evaluate", ["runs/none", "benchmark=gsm8k_test", "n=0"], "n: 0"),
    ("evaluate", ["compare=[runs/none]", "benchmark=gsm8k_test"], "compare ckpt"),
    ("export", ["runs/none"], "output"),
    ("export", ["runs/none", "output=out"], "runs/none config.yaml"),
    ("export", ["runs/empty/dapo/seed_0", "output=out"], "runs/empty/dapo/seed_0/config.yaml"),
    ("plan", ["hardware=h9000"], "hardware"),
    ("plan", ["experiment=dapo"], "+experiment=dapo"),
    ("replay", ["runs/none", "step=one"], "step 'one'"),
    ("replay", ["runs/none", "clip_higher=false"], "algorithm.techniques.clip_higher"),
    ("replay", ["runs/none", "trust=yes"], "trust 'yes'"),
    ("replay", ["runs/none", "step=1"], "runs/none"),
    ("status", [], "folders"),
    ("status", ["runs/none"], "runs/none"),
    ("report", ["runs/none"], "runs/none"),
    ("check_rewards", ["none.jsonl"], "none.jsonl"),
    ("check_rewards", ["bad.jsonl"], "bad.jsonl 2"),
    ("check_rewards", ["bad.jsonl", "rule=exact"], "rule=exact dapo numeric sympy"),
    ("train", [SUMS, "algorithm.samples_per_prompt=3", "algorithm.dynamic_sampling.pass_rate_margin=0.4"],
     "keeps no group of"),
    ("train", [SUMS, "algorithm.dynamic_sampling.pass_rate_margin=0.1",
               "algorithm.dynamic_sampling.filter_on=shaped_reward"], "pass_rate_margin"),
    ("train", [SUMS, "algorithm.dynamic_sampling.on_exhausted=replay", "algorithm.dynamic_sampling.max_staleness=0"],
     "takes groups of earlier steps"),
    ("report", ["runs", "--metric", "reward"], "--metric --from"),
    ("report", ["runs", "--from", "trl"], "no logs here"),
    ("advise", ["runs/none"], "runs/none config.yaml"),
    ("advise", ["runs/none", "steps=x"], "x"),
    ("ablate", ["clip_higer", "model=micro", "data=good.jsonl"], "clip_higher"),
    ("ablate", ["clip_higher", "model=micro"], "data"),
    ("ablate", ["clip_higher", "model=micro", "data=none.jsonl"], "none.jsonl"),
    ("__main__", ["trian"], "trian train"),
]  # fmt: skip
if find_spec("hydra_plugins.hydra_submitit_launcher") is None:
    WRONG.append(("train", ["-m", "hydra/launcher=submitit_slurm", "seed=0,1"], "'.[sweep]'"))
if find_spec("tensorboard") is None:
    WRONG.append(("train", [SUMS, "logger=tensorboard"], "'dapo_lit[tensorboard]'"))
if find_spec("reasoning_gym") is None:
    WRONG.append(("train", [*GYM, "task.dataset=countdown"], "'.[tasks]'"))
else:
    WRONG.append(("train", [*GYM, "task.dataset=cuontdown"], "task.dataset=cuontdown"))
    WRONG.append(("train", [*GYM, "task.dataset=gcd", "task.options={min_number: 3}"], "'min_number'"))


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


def test_there_are_mistakes_in_every_command():
    assert {command for command, *_ in WRONG} == {*COMMANDS, "__main__"}
