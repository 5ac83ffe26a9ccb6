r"""Find the final answer in a response.

There are six ways, and a prompt template must ask for the one that is read (`forms.py` has the forms):

| extraction | reads | asked for by |
|---|---|---|
| `answer_line` | the last `Answer: ...` within the last 300 characters | DAPO's template and scorer (`math_dapo`) |
| `boxed` | the content of the last balanced `\boxed{...}` | MATH-style templates |
| `hash` | the rest of the line after the last `#` | GSM8K (`#### 72`), chain_sum (`#20`) |
| `tags` | the content of the last `<answer>...</answer>`, or of a box in it | the prompts of R1 and its reproductions |
| `number` | the last number of the text | nothing (four_sums; lm-evaluation-harness's `flexible-extract`) |
| `auto` | whatever marks an answer: see `free_text.py` | scoring texts of unknown origin |
"""

from typing import Literal, assert_never

from math_answers.marks import in_dollars, unmarked
from math_answers.templates import (
    MAX_ANSWER_CHARS,
    extract_answer_line,
    extract_boxed,
    extract_hash,
    extract_number,
    extract_tags,
)

Extraction = Literal["answer_line", "boxed", "hash", "tags", "number", "auto"]


def extract(text: str, extraction: Extraction) -> str | None:
    r"""The final answer of `text` without marks of Markdown around it, or None if there is none (or one of over 2,000
    characters).

    >>> extract("3+4=7\nAnswer: $7$", "answer_line")
    '$7$'
    >>> extract(r"so \boxed{\frac{1}{2}}.", "boxed")
    '\\frac{1}{2}'
    >>> extract("7+4=11;11+9=20;#20", "hash")
    '20'
    """
    match extraction:
        case "answer_line":
            answer = extract_answer_line(text)
        case "boxed":
            answer = extract_boxed(text)
        case "hash":
            answer = extract_hash(text)
        case "tags":
            answer = extract_tags(text)
        case "number":
            answer = extract_number(text)
        case "auto":
            from math_answers.free_text import find_answer

            answer = find_answer(text)
        case _:
            assert_never(extraction)
    if not answer or len(answer) > MAX_ANSWER_CHARS:
        return None
    return in_dollars(unmarked(answer)) or None


def reference_answer(reference: str, extraction: Extraction) -> str:
    """The answer in a reference: all of it, or under `auto` what marks an answer in a worked solution.

    >>> reference_answer("3 + 4 = 7 apples. #### 7", "auto"), reference_answer("7", "hash")
    ('7', '7')
    """
    if extraction != "auto":
        return reference
    from math_answers.free_text import find_reference

    return find_reference(reference)
