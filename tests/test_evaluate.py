"""The command as a user runs it: from a run's checkpoint, a folder, two models; bad input."""

import json
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
import yaml
from commands import evaluation

from ablations.errors import UserError
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import parse
from dapo_lit.config.commands import EvaluateConfig, unread
from dapo_lit.evaluate import evaluate
from dapo_lit.evaluation import resumable
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.train import train


def on_sums(out: Path, *overrides: str) -> EvaluateConfig:
    """The sums that a policy of four_sums can be asked."""
    options = "{min_terms: 3, max_terms: 4, smallest: 1, largest: 9}"
    return evaluation(
        "benchmark=chain_sum_heldout", "benchmark.name=sums", "benchmark.num_problems=12",
        "benchmark.extraction=number", f"benchmark.options={options}", "benchmark.samples=6", "benchmark.top_p=0.9",
        "benchmark.max_response_tokens=80", f"output={out}", *overrides,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps that evaluated a benchmark in addition to its own problems."""
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "sums.yaml").write_text(yaml.safe_dump(on_sums(folder).benchmark.model_dump(mode="json")))
    overrides = [
        "+experiment=four_sums", "algorithm.num_prompts=8", "budget.steps=3", "evaluation.every=2",
        "trainer.checkpoint_every=1", f"evaluation.benchmarks=[{folder}/sums.yaml]", "logger.rollouts_every=1",
        "logger.progress=none", f"runs_dir={folder}/runs",
    ]  # fmt: skip
    train(parse(resolved(composed_tree(overrides))), [])
    return folder / "runs" / "four_sums" / "dapo" / "seed_0"


def metrics(run: Path) -> dict[int, dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows}


# --- in training and after it ----------------------------------------------------------------------------------------


def test_training_evaluates_a_benchmark_before_every_n_steps_and_at_the_end(run):
    rows = metrics(run)
    assert [step for step, row in rows.items() if "eval/sums/avg@6" in row] == [0, 2, 3]
    assert all("eval/four_sums/avg@16" in rows[step] for step in (0, 2, 3))
    table = pd.read_parquet(run / "eval" / "sums" / "step_000003.parquet")
    assert len(table) == 12 * 6
    assert table["correct"].mean() == pytest.approx(rows[3]["eval/sums/avg@6"])


def test_a_checkpoint_gives_the_very_samples_that_training_saw_and_its_curves_end_there(run, tmp_path, capsys):
    evaluate(on_sums(tmp_path, f"ckpt={run}"), [])
    in_training = pd.read_parquet(run / "eval" / "sums" / "step_000003.parquet")
    (file,) = tmp_path.rglob("samples.parquet")
    here = pd.read_parquet(file)
    columns = ["problem_id", "sample_index", "response", "correct", "num_tokens"]
    order = ["problem_id", "sample_index"]
    pd.testing.assert_frame_equal(
        here[columns].sort_values(order, ignore_index=True), in_training[columns].sort_values(order, ignore_index=True)
    )
    printed, accuracy = capsys.readouterr().out, here["correct"].mean()
    assert f"{accuracy:.3f}" in printed
    assert "responses are limited to" in printed  # 80 tokens do not fit the context of 64
    assert f"{here.groupby('problem_id')['correct'].max().mean():.3f}" in printed  # pass@6


def test_an_interrupted_evaluation_goes_on_from_its_last_sample(run, tmp_path, capsys, monkeypatch):
    def five(found, missing):
        yield from islice(found, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(resumable, "SAVE_EVERY_S", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(resumable, "followed", five)
        with pytest.raises(KeyboardInterrupt):
            evaluate(on_sums(tmp_path, f"ckpt={run}"), [])
    (file,) = tmp_path.rglob("samples.parquet")
    saved = pd.read_parquet(file)
    evaluate(on_sums(tmp_path, f"ckpt={run}"), [])
    assert f"5 of {12 * 6} samples are in" in capsys.readouterr().out
    table = pd.read_parquet(file)
    assert len(table) == 12 * 6
    assert len(table.merge(saved, on=["problem_id", "sample_index", "response", "correct"])) == 5


@pytest.mark.parametrize("older", ["another version", "a version that did not say"])
def test_responses_that_other_code_scored_are_scored_again_and_none_is_drawn_again(
    run, tmp_path, capsys, monkeypatch, older
):
    def evaluated(limit: int) -> tuple[pd.DataFrame, str]:
        evaluate(on_sums(tmp_path, f"ckpt={run}", f"limit={limit}", "n=2", "show=0", "preflight=false"), [])
        (file,) = tmp_path.rglob("samples.parquet")
        return pd.read_parquet(file), capsys.readouterr().out

    before, _ = evaluated(12)
    (file,) = tmp_path.rglob("samples.parquet")
    wrong = before.assign(correct=~before["correct"], extracted="7", timed_out=True, scored_by="0123456789abcdef")
    (wrong if older == "another version" else wrong.drop(columns="scored_by")).to_parquet(file)
    monkeypatch.setattr(resumable, "evaluated_samples", None)  # nothing is drawn
    some, printed = evaluated(4)
    first = before["problem_id"].isin(json.loads((file.parent / "evaluation.json").read_text())["questions"])
    assert "8 responses in" in printed
    assert "8 verdicts changed" in printed
    pd.testing.assert_frame_equal(some[first], before[first])
    assert (some["correct"] != before["correct"])[~first].all()  # not asked for: scored when they are
    everything, printed = evaluated(12)
    assert "16 responses in" in printed
    pd.testing.assert_frame_equal(everything, before)
    assert "scored again" not in evaluated(12)[1]


def test_a_verdict_that_is_late_when_it_is_given_again_does_not_replace_the_one_there(run, tmp_path, monkeypatch):
    def evaluated() -> pd.DataFrame:
        evaluate(on_sums(tmp_path, f"ckpt={run}", "limit=4", "n=2", "show=0", "preflight=false"), [])
        return pd.read_parquet(next(tmp_path.rglob("samples.parquet")))

    other = evaluated().assign(scored_by="numeric number 2 0123456789abcdef")
    other.to_parquet(next(tmp_path.rglob("samples.parquet")))
    monkeypatch.setattr(Verifier, "score", lambda self, pairs: [Score(False, -1.0, timed_out=True) for _ in pairs])
    pd.testing.assert_frame_equal(evaluated(), other)
    # Of another rule it is no verdict at all.
    (file,) = tmp_path.rglob("samples.parquet")
    other.assign(scored_by="sympy number 2 0123456789abcdef").to_parquet(file)
    with pytest.raises(UserError, match="8 responses has a verdict"):
        evaluated()
    assert pd.read_parquet(file)["timed_out"].all()


def test_late_verdicts_are_given_again_under_a_longer_deadline_and_another_rule_judges_the_same_samples(
    run, tmp_path, monkeypatch
):
    def evaluated(*overrides: str) -> pd.DataFrame:
        evaluate(on_sums(tmp_path, f"ckpt={run}", "limit=4", "n=2", "show=0", "preflight=false", *overrides), [])
        (file,) = tmp_path.rglob("samples.parquet")
        return pd.read_parquet(file)

    before = evaluated()
    (file,) = tmp_path.rglob("samples.parquet")
    late = before.assign(timed_out=True, correct=False)
    late.to_parquet(file)
    monkeypatch.setattr(resumable, "evaluated_samples", None)  # nothing is drawn
    pd.testing.assert_frame_equal(evaluated(), before)
    late.to_parquet(file)
    assert not evaluated("deadline_s=20")["timed_out"].any()
    assert evaluated("benchmark.extraction=boxed")["extracted"].isna().all()  # no sum has a box
    pd.testing.assert_frame_equal(evaluated(), before)


def test_a_folder_whose_digest_has_the_rule_as_earlier_versions_named_it_is_continued(run, tmp_path, monkeypatch):
    arguments = (f"ckpt={run}", "limit=4", "n=2", "show=0", "preflight=false")
    evaluate(on_sums(tmp_path, *arguments), [])
    (file,) = tmp_path.rglob("samples.parquet")
    earlier = file.parent.rename(f"{str(file.parent)[:-8]}01234567")
    monkeypatch.setattr(resumable, "evaluated_samples", None)  # nothing is drawn
    evaluate(on_sums(tmp_path, *arguments), [])
    assert [folder for folder in earlier.parent.iterdir() if folder.is_dir()] == [earlier]


def test_more_problems_add_to_the_same_folder_where_the_longest_prompt_decides_the_response_limit(run, tmp_path):
    """80 tokens do not fit the context of 64, and the second prompt leaves fewer than the first."""
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps({"problem": p, "answer": "6"}) + "\n" for p in ("2+4=", "1+1+1+1+1+1=")))
    own = (
        "benchmark.source=file", f"benchmark.path={file}", "benchmark.options={}", "benchmark.num_problems=null",
        "n=1", "show=0", f"ckpt={run}", "preflight=false",
    )  # fmt: skip
    folders = []
    for limit in (1, 2):
        evaluate(on_sums(tmp_path / "evals", *own, f"limit={limit}"), [])
        (samples,) = (tmp_path / "evals").rglob("samples.parquet")
        folders.append((samples.parent, len(pd.read_parquet(samples))))
    assert folders == [(folders[0][0], 1), (folders[0][0], 2)]


# --- what a user gets wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["policy=tiny"], "ckpt="),
        (["ckpt=runs/none"], "ckpt=runs/none"),
        (["benchmark.template=boxed"], "benchmark.extraction=boxed"),
        (["benchmark.template=prose.yaml"], "benchmark.template=prose.yaml"),
        (["benchmark.max_response_tokens=9", "benchmark.options.max_terms=40"], "prompt"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_sampled(run, tmp_path, monkeypatch, overrides, named):
    monkeypatch.chdir(tmp_path)
    Path("prose.yaml").write_text("answer_format: none\ntext: 'Solve: {problem}'\n")
    where = [] if overrides[0] in ("policy=tiny", "ckpt=runs/none") else [f"ckpt={run}"]
    with pytest.raises(UserError, match=named):
        evaluate(on_sums(tmp_path, *where, *overrides), [])


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("rollout.temperature=0.5", "benchmark.temperature"), ("rollout.noise_stream=1", "seed"),
        ("rollout.steps_ahead=1", "of training"), ("policy.dtype=bfloat16", "its own policy"),
        ("policy.lora.rank=2", "its own policy"),
    ],
)  # fmt: skip
def test_a_key_that_an_evaluation_does_not_read_is_refused_by_name(run, tmp_path, override, reason):
    with pytest.raises(UserError, match=rf"{override.partition('=')[0]}: .*{reason}"):
        evaluate(on_sums(tmp_path, f"ckpt={run}"), [f"ckpt={run}", "policy=tiny", override])


@pytest.mark.parametrize(("ckpt", "read"), [(None, True), ("a folder", False)])
def test_a_policy_of_hugging_face_has_its_path_and_its_dtype(ckpt, read):
    assert (unread("policy.path", ckpt, is_run=False) is None) is read
    assert unread("policy.dtype", ckpt, is_run=False) is None
    assert unread("policy.lora", ckpt, is_run=False)
    assert unread("rollout.max_batch_size", ckpt, is_run=False) is None


def test_a_corrected_answer_is_sampled_again_and_no_other_problem(run, tmp_path, monkeypatch):
    """With another prompt or answer under an id, the old samples say nothing; those of the other problems stay."""
    asked: list[str] = []
    original = resumable.evaluated_samples

    def counted(prompts, n, engine, verifier, decode, sampling, done):
        for sample in original(prompts, n, engine, verifier, decode, sampling, done):
            asked.append(sample.problem_id)
            yield sample

    monkeypatch.setattr(resumable, "evaluated_samples", counted)
    file = tmp_path / "own.jsonl"
    rows = [{"id": f"q{a}", "problem": f"{a}+2=", "answer": str(a + 2)} for a in (1, 2, 3)]
    own = (
        "benchmark.source=file", f"benchmark.path={file}", "benchmark.options={}", "benchmark.num_problems=null",
        "n=2", "show=0", f"ckpt={run}", "preflight=false",
    )  # fmt: skip

    def evaluated(*changes: dict) -> pd.DataFrame:
        changed = [next((c for c in changes if c["id"] == row["id"]), row) for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in changed))
        asked.clear()
        evaluate(on_sums(tmp_path / "evals", *own), [])
        (table,) = (tmp_path / "evals").rglob("samples.parquet")
        questions = json.loads((table.parent / "evaluation.json").read_text())["questions"]
        samples = pd.read_parquet(table)
        return samples[samples["problem_id"].map(questions) == samples["question_digest"]]

    assert len(evaluated()) == 6
    assert sorted(set(asked)) == ["q1", "q2", "q3"]
    assert len(evaluated({**rows[1], "answer": "44"})) == 6
    assert asked == ["q2", "q2"]
    assert len(evaluated({**rows[1], "answer": "44"}, {**rows[2], "problem": "2+3="})) == 6
    assert asked == ["q3", "q3"]
    assert len(evaluated()) == 6
    assert asked == []  # as it was first: those samples are still there
