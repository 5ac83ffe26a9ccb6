"""A rule loads what it needs of math_answers; `make test-answers` runs these tests where the package is alone."""

import subprocess
import sys

LIGHT = {"extraction", "marks", "normalise", "number_words", "quantity", "rules", "templates"}
"""What numbers and templates need; the grammar of answers is the rest."""


def loaded(rule: str, extraction: str) -> set[str]:
    """Modules of the package after one verdict in a fresh process."""
    code = f"""
import sys
from math_answers.extraction import extract, reference_answer
from math_answers.rules import check_reference, decide
reference = reference_answer("72", "{extraction}")
assert check_reference(reference, "{rule}") is None
assert decide(extract("So it is\\n#### 72", "{extraction}"), reference, "{rule}")
print(*(name.partition(".")[2] for name in sys.modules if name.startswith("math_answers.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*done.stdout.split()}


def test_a_verdict_on_numbers_loads_no_grammar() -> None:
    assert loaded("numeric", "hash") <= LIGHT
    assert loaded("dapo", "number") <= LIGHT


def test_a_rule_and_an_extraction_that_need_the_rest_load_it() -> None:
    assert {"compare", "parse"} <= loaded("sympy", "hash")
    assert "free_text" in loaded("numeric", "auto")
