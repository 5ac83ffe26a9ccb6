"""Pages name what exists: messages as the code words them, modules and their contents, and each module once."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import tables
import yaml

from ablations.techniques import REGISTER
from dapo_lit.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
LONGEST_VALUE = 50
"""Characters of a value in a message, such as a path."""


SOURCE = [
    file for package in ("dapo_lit", "dapo_lit_tools", "ablations") for file in sorted((ROOT / package).rglob("*.py"))
]
NAME = re.compile(r"`([^`]+)`")


@cache
def worded() -> list[tuple[str, ...]]:
    """Every text of the package as its literal parts, with a value between each two."""
    found = []
    for file in SOURCE:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((node.value,))
            elif isinstance(node, ast.JoinedStr):
                found.append(tuple(_literals(node)))
    return [parts for parts in found if len("".join(parts)) >= 12]


def _literals(text: ast.JoinedStr) -> Iterator[str]:
    """Literal parts of an f-string, empty ones between and around its values."""
    here = ""
    for part in text.values:
        if isinstance(part, ast.Constant):
            here += str(part.value)
        else:
            yield here
            here = ""
    yield here


def says(parts: tuple[str, ...], quote: str) -> bool:
    """True if a quote is the beginning of a message, or of one of its literal parts: values may be any text.

    >>> says(("step ", ": ", " groups are left"), "step 3: 40 groups"), says(("step ", ": ", " groups"), "step 3: lost")
    (True, False)
    """
    return any(_from((parts[k].lstrip(), *parts[k + 1 :]), quote) for k in range(len(parts)) if k == 0 or parts[k])


def _from(parts: tuple[str, ...], quote: str) -> bool:
    first, *others = parts
    if quote in first:
        return True
    if not quote.startswith(first):
        return False
    place, matched = len(first), len(first)
    for part in [part for part in others if part]:
        at = quote.find(part, place)
        if at < 0:
            rest = quote[place:]
            begun = max((n for n in range(len(part)) if rest.endswith(part[:n])), default=0)
            return matched + begun >= min(20, len(quote) // 2) and _is_value(rest[: len(rest) - begun])
        if not _is_value(quote[place:at]):
            return False
        place, matched = at + len(part), matched + len(part)
    return matched >= min(20, len(quote) // 2) and _is_value(quote[place:])


def _is_value(text: str) -> bool:
    """True for a short text, and for one that the package words elsewhere: a value may be a message of its own."""
    return len(text) <= LONGEST_VALUE or any(
        text.startswith(parts[0]) and all(part in text for part in parts) for parts in worded() if parts[0]
    )


def is_worded(quote: str) -> bool:
    """True if some text of the package reads like a quote."""
    return any(says(parts, quote) for parts in worded())


def messages() -> list[str]:
    """What docs/troubleshooting.md quotes of messages, each part between dots: quotes with spaces, commands apart."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quotes = [quote for quote in re.findall(r"`([^`\n]+)`", text) if quote.count(" ") >= 2]
    quotes = [quote.removeprefix("error: ") for quote in quotes if not quote.startswith(("python ", "make "))]
    pieces = [piece.strip(" ,;:") for quote in quotes for piece in quote.split("...")]
    return [piece for piece in pieces if piece.count(" ") >= 2]


@pytest.mark.parametrize("quote", messages())
def test_every_message_that_troubleshooting_quotes_is_one_that_the_code_makes(quote):
    after_key = re.sub(r"^[\w.]+: ", "", quote)  # errors of a section have its name before them
    assert is_worded(quote) or is_worded(after_key), "no text of the package reads like this"


def is_defined(name: str) -> bool:
    """True for a module of the package, and for a name that one defines or imports; no module is imported here."""
    parts = name.split(".")
    if len(parts) == 2 and find_spec(name):  # a command of the tools too
        return True
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if file.is_file():
            return count == len(parts) or parts[count] in _names(file)
    return False


def _names(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def dotted() -> list[tuple[str, str]]:
    """(page, name) of each `dapo_lit.x` that a page names, placeholders in capitals apart."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
    named = {(page.name, name) for page in pages for name in re.findall(r"\bdapo_lit(?:\.\w+)+", page.read_text())}
    files = (".py", ".sbatch")
    return sorted(
        (page, name) for page, name in named if not name.endswith(files) and not re.search(r"\.[A-Z]+$", name)
    )


@pytest.mark.parametrize(("page", "name"), dotted())
def test_every_dotted_name_in_a_page_is_a_module_or_is_in_one(page, name):
    assert is_defined(name)


def test_the_api_page_has_each_module_of_the_objective_once():
    named = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)
    assert len(named) == len(set(named))
    objective = {f"dapo_lit.objective.{file.stem}" for file in (ROOT / "dapo_lit" / "objective").glob("[!_]*.py")}
    assert objective <= set(named)


def test_the_page_of_commands_has_each_command_once():
    rows = re.findall(
        r"^\| `python -m dapo_lit\.(\w+)", (ROOT / "docs" / "reference" / "commands.md").read_text(), re.M
    )
    assert sorted(rows) == sorted(COMMANDS)


@pytest.mark.parametrize("technique", REGISTER.values(), ids=lambda technique: technique.switch)
def test_the_page_of_a_technique_names_the_file_with_its_arithmetic(technique):
    """The file has the mark `# DAPO 3.x label` at the line."""
    text = (ROOT / "docs" / "techniques" / f"{technique.switch}.md").read_text(encoding="utf-8")
    texts = [
        (ROOT / "dapo_lit" / name).read_text(encoding="utf-8")
        for name in re.findall(r"`((?:objective|rollout)/\w+\.py)`", text)
    ]
    mark = f"# DAPO {technique.section.removeprefix('Section ')} {technique.label}"
    assert any(mark in code for code in texts), mark


def test_the_navigation_has_each_page_of_docs_once():
    tabs = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    entries = [entry for tab in tabs for pages in tab.values() for entry in pages]
    folders = {entry.removesuffix("/*") for entry in entries if entry.endswith("/*")}
    expanded = [page.relative_to(ROOT / "docs").as_posix() for page in DOCS if page.parent.name in folders]
    named = [*expanded, *(entry for entry in entries if not entry.endswith("/*"))]
    assert len(named) == len(set(named))
    here = {page.relative_to(ROOT / "docs").as_posix() for page in DOCS if "examples" not in page.parts}
    assert here <= set(named)
    assert all((ROOT / "docs" / name).is_file() or (ROOT / name).is_file() for name in named)
    assert [next(iter(tab)) for tab in tabs][:3] == ["Start here", "Tutorials", "Reference"]


def test_a_search_for_the_learning_rate_meets_its_key_in_the_title_of_a_section():
    """The search weighs words of titles a thousand times those of texts."""
    sections = re.split(r"^### ", tables.keys(), flags=re.MULTILINE)
    of_rate = next(section for section in sections if "| `algorithm.optimizer.lr` |" in section)
    assert "learning rate" in of_rate.splitlines()[0]


LINES = re.search(
    r"Where to find what people often look for:\n\n(.*?)\n\n",
    (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
    re.DOTALL,
)[1].splitlines()[2:]  # type: ignore[index]
"""The table by which a stranger to the code finds a line."""


@pytest.mark.parametrize("row", LINES, ids=lambda row: row.split("|")[1].strip())
def test_a_line_that_people_look_for_is_where_the_table_says(row: str) -> None:
    _, _, files, functions, _ = row.split("|")
    named_files = [ROOT / ("" if name.startswith("ablations/") else "dapo_lit") / name for name in NAME.findall(files)]
    texts = [file.read_text(encoding="utf-8") for file in named_files]
    assert texts
    package = "\n".join(file.read_text(encoding="utf-8") for file in SOURCE)
    named, _, classes = functions.partition("the classes are where they are read:")
    for name in re.findall(r"`(\w+)`", named):
        assert any(re.search(rf"^ *(def|class) {name}\b", text, re.MULTILINE) for text in texts), name
    for name in re.findall(r"`(\w+)`", classes):
        assert re.search(rf"^class {name}\b", package, re.MULTILINE), name


def test_the_ten_lines_of_the_loss_and_the_run_are_in_the_table() -> None:
    table = "\n".join(LINES)
    for words in (
        "Eq. 10", "Eq. 11", "noise of a sampled token", "random stream", "manifest", "learning rate", "sign-flip",
        "FSDP2", "requests to vLLM", "old log-prob",
    ):  # fmt: skip
        assert words in table, words
