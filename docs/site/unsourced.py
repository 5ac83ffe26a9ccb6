"""Numbers of the pages that nothing makes: `python docs/site/unsourced.py [PAGE ...]` lists them.

A number counts if it says how much was measured: an interval, a p, a share, a time, a size, a ratio, a count of cells.
It has a source where it is between `<!-- made: … -->` marks, between `<!-- n: KEY -->` and `<!-- /n -->` (made.py), in
a table that the site inserts, or in code: a command, a key's value, a formula. Every other one is in unsourced.yaml
with the reason why nothing makes it; tests/pages/test_made.py compares the two, so the list cannot grow unseen.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import yaml
from cells import ROOT

NUMBER = r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
UNITS = (
    "points|nats|ms|us|s|seconds?|minutes?|hours?|days?|[kMGT]B|[GT]FLOP/s|steps an hour|tokens/s|tokens a second|"
    "answers a second|times|cells|pairs|runs|updates|cores?"
)
MEASURED = re.compile(
    rf"(?P<interval>{NUMBER}(?: \w+)? \[{NUMBER}, (?:{NUMBER}|–)\]|\[{NUMBER}, (?:{NUMBER}|–)\](?!\())"
    rf"|(?P<p>\bp [=<≤] {NUMBER})"
    rf"|(?P<share>{NUMBER}(?: to {NUMBER})? (?:%|per cent))"
    rf"|(?P<ratio>\bx\d+\.\d+)"
    rf"|(?P<amount>(?<![\w.]){NUMBER}(?: to {NUMBER})? (?:more |fewer |less )?(?:{UNITS})(?![\w/]))"
)
MADE_ELSEWHERE = re.compile(
    r"<!-- made: (\w+) -->.*?<!-- end of \1 -->"
    r"|<!-- n: .*?<!-- /n -->"
    r"|\A---\n.*?^---\n"
    r"|^ *```.*?^ *```$"
    r"|`[^`\n]+`"
    r"|\$\$.*?\$\$|\$[^$\n]+\$"
    r"|<!--.*?-->"
    r"|(?<=\])\([^)\s]*\)",
    re.MULTILINE | re.DOTALL,
)


def pages() -> list[Path]:
    """The template of README, that of math_answers, and the pages of docs/."""
    readmes = [ROOT / "docs" / "site" / "readme.template", ROOT / "math_answers" / "README.md"]
    return [*readmes, *sorted((ROOT / "docs").rglob("*.md"))]


def numbers(text: str) -> list[str]:
    """The measured numbers of a page that nothing makes.

    >>> numbers("It takes 3 s, `lr=3 s`, +1.2 [0.3, 2.1], <!-- n: x -->5 %<!-- /n --> and 4 % more.")
    ['3 s', '+1.2 [0.3, 2.1]', '4 %']
    """
    return [found[0] for found in MEASURED.finditer(MADE_ELSEWHERE.sub(" ", text))]


LISTED = Path(__file__).with_suffix(".yaml")
REASONS = ("definition", "setting", "published", "example", "study page", "measured by hand")


def added_and_gone() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """By page: numbers that nothing makes and that unsourced.yaml has no reason for, and those listed that are gone."""
    listed = yaml.safe_load(LISTED.read_text(encoding="utf-8"))
    names = {str(page.relative_to(ROOT)): page for page in pages()}
    added: dict[str, list[str]] = {}
    gone: dict[str, list[str]] = {}
    for name in sorted({*names, *listed}):
        found = Counter(numbers(names[name].read_text(encoding="utf-8")) if name in names else ())
        known = Counter(text for texts in listed.get(name, {}).values() for text in texts)
        added[name], gone[name] = list((found - known).elements()), list((known - found).elements())
    return {name: of for name, of in added.items() if of}, {name: of for name, of in gone.items() if of}


def main() -> None:
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        found = numbers(page.read_text(encoding="utf-8"))
        print(f"{page.relative_to(ROOT)}: {len(found)}", *found, sep="\n    ")


if __name__ == "__main__":
    main()
