"""docs/examples/without_overlap.py: containment by n-grams of words, by hand and on the real sets."""

from hypothesis import given
from hypothesis import strategies as st
from without_overlap import find_overlaps

from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import load_problems


def problems(*texts: str, name: str = "p") -> list[Problem]:
    return [Problem(f"{name}{i}", text, "0") for i, text in enumerate(texts)]


def test_case_punctuation_and_latex_commands_do_not_hide_a_copy():
    train = problems(r"Let \(x\) be \dfrac{1}{2}; find  the VALUE of \(x^2 + y\), given that $y$ is three")
    evaluation = problems(r"let $x$ be $\frac12$ find the value of $x^{2}+y$ given that \(y\) is three", name="e")
    assert find_overlaps(train, evaluation, n=4)[0] == {"p0"}


def test_a_problem_shorter_than_n_words_overlaps_only_its_copy():
    train = problems("What is 2 + 3?", "What is 2 + 3, and why?", "What is 3 + 2?")
    assert find_overlaps(train, problems("What is $2+3$?", name="e"))[0] == {"p0"}
    assert find_overlaps(problems("$+$", ""), problems("", "$+$", name="e"))[0] == set()


def test_text_without_blanks_between_words_is_compared_by_character():
    statement = "求所有满足条件的正整数的和是多少"
    assert find_overlaps(problems("已知" + statement), problems(statement, name="e"))[0] == {"p0"}
    assert find_overlaps(problems("求所有满足条件的素数"), problems(statement, name="e"))[0] == set()


def test_dapo_math_contains_most_of_amc23(data_file, dapo_math):
    excluded, covered = find_overlaps(dapo_math, load_problems(str(data_file("amc23.jsonl"))))
    assert (len(covered), len(excluded)) == (25, 34)


words = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@given(words, words, st.integers(1, 4), st.sampled_from([0.0, 0.3, 0.5, 0.9]))
def test_the_index_agrees_with_the_definition(train, evaluation, n, threshold):
    def ngrams(text: list[str]) -> set[tuple[str, ...]]:
        return {tuple(text[i : i + n]) for i in range(len(text) - n + 1)} or {tuple(text)}

    wanted = ngrams(evaluation)
    share = len(wanted & ngrams(train)) / len(wanted)
    found = find_overlaps(problems(" ".join(train)), problems(" ".join(evaluation), name="e"), n=n, threshold=threshold)
    assert found[0] == ({"p0"} if share > threshold else set())
