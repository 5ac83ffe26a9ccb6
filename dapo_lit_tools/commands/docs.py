"""The pages of the documentation, which come with the package: `dapo-lit docs` lists them, `dapo-lit docs rewards`
prints one, as a message names it (`docs/tutorials/cluster.md`) or by part of its name, and `dapo-lit docs
metrics.md#a-metric-of-your-own` one section.

Links to experiments/ and to the code lead into the repository, which the package does not hold.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import dapo_lit
from ablations.arguments import CommandParser
from ablations.errors import UserError, suggestion
from ablations.screen import on_screen
from ablations.texts import read_text


def pages_folder() -> Path:
    """`pages/` inside an installed package, `docs/` at the top of a checkout."""
    package = Path(dapo_lit.__file__).parent
    installed = package / "pages"
    return installed if installed.is_dir() else package.parent / "docs"


def pages() -> dict[str, Path]:
    """The pages by name, such as `rewards` and `tutorials/cluster`."""
    folder = pages_folder()
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.md"))}


def found(words: str) -> str | None:
    """The name of the page that is meant: its path, with or without `docs/`, `.md` and a heading; or the end of it."""
    known = pages()
    name = words.partition("#")[0].removeprefix("docs/").removesuffix(".md")
    ends = [one for one in known if one.endswith(f"/{name}")]
    return name if name in known else ends[0] if len(ends) == 1 else None


def as_text(page: Path) -> str:
    """A page as it is read: without the marks of what is made (docs/site/made.py), with commands for what the site
    draws."""
    text = read_text(page).replace(
        "<!-- table: keys -->", "`dapo-lit schema` writes every key with its type and values."
    )
    text = re.sub(r"^::: (\S+)$", r"- `python -m pydoc \1`", text, flags=re.MULTILINE)
    return re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)


def section(text: str, anchor: str) -> str:
    """The part of a page below a heading, whose name in links is given.

    >>> section("# Page\\n## How to, *now*\\ntext\\n### More\\n## Next", "how-to-now")
    '## How to, *now*\\ntext\\n### More'

    Raises UserError: the page has no such heading.
    """
    lines, fenced = text.split("\n"), False
    headings: list[tuple[int, int, str]] = []  # line, depth, name in links
    for at, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and (heading := re.match(r"(#+) (.*)", line)):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[2]).lower()
            headings.append((at, len(heading[1]), re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")))
    start = next((place for place, (_, _, name) in enumerate(headings) if name == anchor), None)
    if start is None:
        raise UserError(f"#{anchor}: no such heading; {suggestion(anchor, [name for _, _, name in headings])}")
    first, depth, _ = headings[start]
    end = next((at for at, other, _ in headings[start + 1 :] if other <= depth), len(lines))
    return "\n".join(lines[first:end])


@on_screen()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = CommandParser(prog="python -m dapo_lit.docs", description=__doc__)
    parser.add_argument("page", nargs="?", help="a page's name, as `dapo-lit docs` lists it or as a message names it")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    known = pages()
    if options.page is None:
        width = max(map(len, known))
        for name, page in known.items():
            title = read_text(page).partition("\n")[0].lstrip("# ")
            print(f"  {name:<{width}}  {title}")
        print(f"pages   {pages_folder()}")
        for page in sorted(pages_folder().glob("play/*.html")):
            print(f"play    {page}")
        return 0
    chosen = found(options.page)
    if chosen is None:
        names = [name.rpartition("/")[2] for name in known]
        print(f"error: {options.page}: no such page; {suggestion(options.page, names)}", file=sys.stderr)
        return 2
    text, anchor = as_text(known[chosen]), options.page.partition("#")[2]
    try:
        print((section(text, anchor) if anchor else text).rstrip())
    except UserError as error:
        print(f"error: {options.page.partition('#')[0]}{error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
