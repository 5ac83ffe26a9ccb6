"""Lists runs of twelve words that pages have twice: `python docs/site/repeated.py [PAGE ...]`, part of `make docs`.

A fact has one page, and others link to it. A run is within a sentence. Not compared: quotes (`> `, and in the log of
studies a title), tables, made parts, which come from one source (made.py), code blocks, comments, what a picture
shows, where a link leads, and numbers. Left out are pages that a script writes.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
LENGTH = 12
"""Words of a run."""
PAGES = ("*.md", "*/README.md", "docs/**/*.md", "experiments/**/*.md")
WRITTEN = "experiments/tuning/*/page.md"
"""Pages of docs/examples/tune.py."""
NOT_PROSE = re.compile(
    r"^<!-- made: (\w+) -->$.*?^<!-- end of \1 -->$"
    r"|^( *)```.*?^\2```"
    r"|^ *[>|][^\n]*$"
    r"|^\*\*\[.*?\*\*"
    r"|<!--.*?-->"
    r"|!\[[^\]]*\]\([^)]*\)"
    r"|(?<=\])\([^)\s]*\)",
    re.DOTALL | re.MULTILINE,
)
END = re.compile(r"[.!?:](?=\s)|\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.)\s)")
"""Of a sentence, a heading or a point of a list. A colon ends one too: "Result: ..." is said of many studies."""
WORD = re.compile(r"\w[\w.,:/=+%'’-]*\w|\w")


def pages() -> dict[str, str]:
    """The text of every page that somebody writes, by its path in the repository."""
    found = {page for pattern in PAGES for page in ROOT.glob(pattern)} - set(ROOT.glob(WRITTEN))
    return {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in sorted(found)}


def sentences(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each sentence of a page: its line, and its words in small letters without numbers."""
    prose = NOT_PROSE.sub(lambda found: re.sub(r"[^\n]+", " ", found[0]), text)
    start = 0
    for end in [*(found.end() for found in END.finditer(prose)), len(prose)]:
        found = [one for one in WORD.finditer(prose, start, end) if re.search("[a-z]", one[0], re.I)]
        if found:
            yield prose.count("\n", 0, found[0].start()) + 1, [one[0].lower() for one in found]
        start = end


def repeated(texts: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each run that is there twice, as long as it is: its first place, its second, and its words.

    >>> line = "one two three four five six seven eight nine ten eleven twelve"
    >>> list(repeated({"a.md": f"{line} of", "b.md": f"First. {line} times"}))
    [('a.md:1', 'b.md:1', 'one two three four five six seven eight nine ten eleven twelve')]
    >>> list(repeated({"a.md": line, "b.md": f"> {line}"}))
    []
    """
    first: dict[tuple[str, ...], tuple[str, list[str], int]] = {}
    for page, text in texts.items():
        for line, found in sentences(text):
            place, here = 0, f"{page}:{line}"
            while place + LENGTH <= len(found):
                other, there, start = first.setdefault(tuple(found[place : place + LENGTH]), (here, found, place))
                if there is found and start == place:
                    place += 1
                    continue
                length = LENGTH
                while found[place : place + length + 1] == there[start : start + length + 1] and place + length < len(
                    found
                ):
                    length += 1
                yield other, here, " ".join(found[place : place + length])
                place += length


def in_words() -> list[str]:
    """A line for each run that pages have twice."""
    return [f"{one} and {other} both say: {run}" for one, other, run in repeated(pages())]


def main() -> int:
    lines = [line for line in in_words() if not sys.argv[1:] or any(page in line for page in sys.argv[1:])]
    print("\n".join(lines) or "no twelve words are on two pages")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
