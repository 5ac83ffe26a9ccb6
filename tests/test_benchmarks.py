"""The shipped benchmarks, their problems and protocols; and the progress of an evaluation."""

import pytest
from commands import evaluation

from dapo_lit.build.problem_sets import benchmark_problems
from dapo_lit.config import config_folder
from dapo_lit.config.commands import load_benchmark
from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import DataError
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier

BENCHMARKS = ("aime_2024", "aime_2025", "amc23", "math500", "gsm8k_test")


@pytest.mark.parametrize("file", sorted((config_folder() / "benchmark").glob("*.yaml")), ids=lambda f: f.stem)
def test_every_benchmark_composes_and_is_named_as_its_file(file):
    assert evaluation(f"benchmark={file.stem}").benchmark == load_benchmark(file.stem)
    assert load_benchmark(file.stem).name == file.stem


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_real_benchmarks_are_read_from_the_data_folder_and_their_rule_takes_every_answer(
    name, data_file, data_rows, monkeypatch
):
    monkeypatch.setenv("DAPO_LIT_DATA", str(data_file(f"{name}.jsonl").parent))
    benchmark = load_benchmark(name)
    problems = benchmark_problems(benchmark)
    assert len({p.id for p in problems}) == data_rows[f"{name}.jsonl"]
    with Verifier(rule=benchmark.rule, extraction=benchmark.extraction) as verifier:
        assert [p.id for p in problems if verifier.check_answer(p.answer)] == []
        if name in ("aime_2024", "aime_2025", "gsm8k_test"):  # numbers, so in process
            right = verifier.score([(reference(p), f"so it is\nAnswer: ${p.answer}$") for p in problems])
            assert all(score.correct for score in right)


@pytest.mark.parametrize(
    ("files", "answer"),
    [
        (("train", "dev", "test"), "test"), (("train", "dev"), "dev"), (("train",), "train"),
        (("algebra", "geometry"), "algebra"),
    ],
)  # fmt: skip
def test_a_benchmark_that_is_a_folder_is_read_from_its_test_split_and_from_its_training_split_if_it_has_no_other(
    tmp_path, files, answer
):
    for split in files:
        (tmp_path / f"{split}.jsonl").write_text(f'{{"problem": "1 + 1", "answer": "{split}"}}\n')
    benchmark = load_benchmark("gsm8k_test").model_copy(update={"path": str(tmp_path), "hub_id": None})
    assert benchmark_problems(benchmark)[0].answer == answer
    assert len(benchmark_problems(benchmark)) == (2 if "geometry" in files else 1)


@pytest.mark.parametrize(("name", "split"), [(name, "train" if "aime" in name else "test") for name in BENCHMARKS])
def test_the_hub_id_of_a_shipped_benchmark_names_the_split_that_its_data_set_has(name, split):
    assert str(load_benchmark(name).hub_id).endswith(f":{split}")


def reference(problem: Problem) -> RewardProblem:
    return RewardProblem(problem.id, "", problem.answer)


def test_the_data_folder_comes_before_a_file_of_that_name_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.jsonl").write_text('{"problem": "1 + 2", "answer": "3"}\n')
    monkeypatch.chdir(tmp_path / "here")
    benchmark = load_benchmark("aime_2024").model_copy(update={"path": "mine.jsonl", "hub_id": None})
    monkeypatch.setenv("DAPO_LIT_DATA", str(tmp_path))
    assert [p.answer for p in benchmark_problems(benchmark)] == ["2"]
    monkeypatch.delenv("DAPO_LIT_DATA")
    assert [p.answer for p in benchmark_problems(benchmark)] == ["3"]
    (tmp_path / "here" / "mine.jsonl").unlink()
    with pytest.raises(DataError, match=r"benchmark.path=mine.jsonl.*DAPO_LIT_DATA"):
        benchmark_problems(benchmark)
