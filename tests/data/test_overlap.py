"""docs/examples/without_overlap.py: containment by n-grams of words, by hand and by the definition."""

from hypothesis import given
from hypothesis import strategies as st
from without_overlap import find_overlaps

from dapo_lit.data.problem import Problem


def problems(*texts: str, name: str = "p") -> list[Problem]:
    return [Problem(f"{name}{i}", text, "0") for i, text in enumerate(texts)]


def test_case_punctuation_and_latex_commands_do_not_hide_a_copy():
    train = problems(r"Let \(x\) be \dfrac{1}{2}; find  the VALUE of \(x^2 + y\), given that $y$ is three")
    evaluation = problems(r"let $x$ be $\frac12$ find the value of $x^{2}+y$ given that \(y\) is three", name="e")
    assert find_overlaps(train, evaluation, n=4)[0] == {"p0"}


words = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@given(words, words, st.integers(1, 4), st.sampled_from([0.0, 0.3, 0.5, 0.9]))
def test_the_index_agrees_with_the_definition(train, evaluation, n, threshold):
    def ngrams(text: list[str]) -> set[tuple[str, ...]]:
        return {tuple(text[i : i + n]) for i in range(len(text) - n + 1)} or {tuple(text)}

    wanted = ngrams(evaluation)
    share = len(wanted & ngrams(train)) / len(wanted)
    found = find_overlaps(problems(" ".join(train)), problems(" ".join(evaluation), name="e"), n=n, threshold=threshold)
    assert found[0] == ({"p0"} if share > threshold else set())
