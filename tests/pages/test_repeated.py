"""Pages quote each other by link: docs/site/repeated.py finds a sentence that two have."""

import repeated

SAID = "A group without a right answer learns to be short because the length penalty is all that differs."


def found(**pages: str) -> list[tuple[str, str]]:
    return [(one, other) for one, other, _ in repeated.repeated(pages)]


def test_a_sentence_on_two_pages_or_twice_on_one_is_found_whatever_its_numbers_marks_and_line_breaks():
    marked = SAID.replace("short because", "short <!-- n: x -->3.1<!-- /n -->\n  because").replace(
        "the length penalty", "[the length penalty](x.md)"
    )
    assert found(a=f"First.\n\n{SAID}", b=marked) == [("a:3", "b:1")]
    assert found(a=f"{SAID} {SAID}") == [("a:1", "a:1")]


def test_quotes_code_tables_pictures_and_made_parts_are_no_repetition():
    once = SAID.rstrip(".")
    for other in (
        f"> {SAID}",
        f"```\n{SAID}\n```",
        f"| {once} |",
        f"![{once}](x.svg)",
        f"<!-- made: x -->\n\n{SAID}\n\n<!-- end of x -->",
        f"**[study](x): {once}** and more",
    ):
        assert not found(a=SAID, b=other), other
    assert found(a=SAID, b=f"before\n```\nx\n```\n{SAID}")


def test_a_run_ends_with_its_sentence():
    words = SAID.rstrip(".").split()
    assert not found(a=SAID, b=f"{' '.join(words[:9])}. {' '.join(words[9:])}.")


def test_no_two_pages_say_the_same_twelve_words():
    assert repeated.in_words() == []
