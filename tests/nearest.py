"""The tests that are nearest to some files, by imports: for `make test-fast`, and for the drawn faults of mutations.py.

    python tests/nearest.py                          # to what differs from the last commit, or else to that commit
    python tests/nearest.py dapo_lit/step/loss.py    # to given files

First the file named after the module, then those of its room, then all others that reach it by imports; each by the
number of imports in between, and at the same number those first that import least. A helper of tests/ is no step of its
own, a command that a test names counts as imported, and a name that a package hands on (`from dapo_lit.config import
parse`) as that of the module that defines it.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dapo_lit", "dapo_lit_tools", "ablations", "math_answers")
HELPERS = ("tests", "tests/ablations", "tests/lit", "tests/engines", "tests/policy", "tests/rewards")
"""Folders whose modules tests import by their bare name."""
MOST = 20
"""Files of tests: importing more would take longer than their tests have left of a minute."""
ELSEWHERE = ("parity", "vllm_runs", "gpu_contracts", "pages", "wheel")


@cache
def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return _once(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def _once(name: str) -> str:
    """The commands of the tools have two names (dapo_lit/__init__.py)."""
    return name.replace("dapo_lit_tools.commands.", "dapo_lit.")


@cache
def modules() -> dict[str, Path]:
    return {module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


@cache
def files_of_tests() -> list[Path]:
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return [file for file in found if file.relative_to(ROOT / "tests").parts[0] not in ELSEWHERE]


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def naming(file: Path) -> list[ast.AST]:
    """The nodes of a file that can name a module: imports and texts."""
    return [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Constant)]


@cache
def imported(file: Path) -> frozenset[str]:
    """Modules of the packages that a file imports or names, with those of the helpers that it imports."""
    return frozenset[str]().union(*map(_imported_alone, {file, *helpers(file)}))


@cache
def helpers(file: Path) -> frozenset[Path]:
    """The helpers of tests that a file imports, with the helpers of those."""
    named = {alias.name for node in naming(file) if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module for node in naming(file) if isinstance(node, ast.ImportFrom) and node.module}
    places = [ROOT / folder / (name.replace(".", "/") + ".py") for name in named for folder in HELPERS]
    found = {place for place in places if place.is_file() and place != file}
    return frozenset(found).union(*map(helpers, found))


@cache
def _imported_alone(file: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in naming(file):
        match node:
            case ast.ImportFrom(str(module), names):
                for alias in names:
                    found |= _defining(_once(module), alias.name)
            case ast.Import(names):
                found |= {_once(alias.name) for alias in names} & modules().keys()
            case ast.Constant(str(text)) if text in modules() and "." in text:
                found.add(text)
    return frozenset(found)


def _defining(module: str, name: str) -> set[str]:
    """The module that `from module import name` takes the name from."""
    if _once(f"{module}.{name}") in modules():
        return {_once(f"{module}.{name}")}
    if module not in modules():
        return set()
    if modules()[module].name == "__init__.py":
        for node in tree_of(modules()[module]).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _defining(node.module, alias.name)
    return {module}


@cache
def importers() -> dict[str, set[Path]]:
    """Module -> files of the packages and of tests that import it."""
    found = defaultdict(set)
    for file in (*modules().values(), *files_of_tests()):
        for module in imported(file):
            found[module].add(file)
    return found


def nearest(file: Path) -> list[Path]:
    """The files of tests that reach a file, nearest first."""
    if file.is_relative_to(ROOT / "tests"):
        return _of_tests(file)
    if file.suffix != ".py" or module_name(file) not in modules():
        return [test for reader in _readers(file) for test in nearest(reader)]
    steps = dict(_steps(module_name(file)))
    room = _room(file)
    own = {test for test in files_of_tests() if test.parent == room}

    def rank(test: Path) -> tuple[bool, bool, int, int]:
        return test.stem != f"test_{file.stem}", test not in own, steps.get(test, len(modules())), len(imported(test))

    return sorted(own | steps.keys(), key=rank)


def _steps(module: str) -> Iterator[tuple[Path, int]]:
    """(file of tests, imports between it and the module)."""
    seen: set[Path] = set()
    edge, steps, of_tests = {module}, 0, set(files_of_tests())
    while edge:
        files = {file for name in edge for file in importers().get(name, ())} - seen
        tests = files & of_tests
        yield from ((test, steps) for test in tests)
        edge = {module_name(file) for file in files - tests}
        seen |= files
        steps += 1


def _readers(file: Path) -> list[Path]:
    """The modules that name a file which is none; for a config, the one that finds the folder."""
    if file.is_relative_to(ROOT / "conf"):
        return [modules()["dapo_lit.config.shipped"]]
    return [module for module in modules().values() if file.name in module.read_text(encoding="utf-8")]


def _room(file: Path) -> Path:
    """The folder of tests that mirrors the file's room; a file at the top of the package has none."""
    package, *rooms = file.relative_to(ROOT).parts
    if package == "dapo_lit":
        return ROOT / "tests" / rooms[0]
    return ROOT / "tests" / {"math_answers": "answers"}.get(package, package)


def _of_tests(file: Path) -> list[Path]:
    """A file of tests is its own; a helper has those that import it."""
    return [test for test in files_of_tests() if file in (test, *helpers(test))]


def changed() -> Iterator[Path]:
    """What differs from the last commit, new files too; in a clean checkout, what the last commit changed."""

    def git(*arguments: str) -> list[str]:
        return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True, encoding="utf-8").splitlines()

    names = [*git("diff", "--name-only", "HEAD"), *git("ls-files", "--others", "--exclude-standard")]
    for name in names or git("diff", "--name-only", "HEAD~1"):
        if (ROOT / name).is_file():
            yield ROOT / name


def nearest_to(files: Iterable[Path]) -> list[str]:
    """For each file its nearest tests, then the second nearest of each, and so on."""
    turns = zip_longest(*(nearest(file) for file in files))
    found = dict.fromkeys(test for turn in turns for test in turn if test is not None)
    return [str(test.relative_to(ROOT)) for test in islice(found, MOST)]


if __name__ == "__main__":
    chosen = nearest_to([Path(name).resolve() for name in sys.argv[1:]] or changed())
    print(*chosen, sep="\n")
    if not chosen:
        print("no test imports what has changed; `make docs` tests pages", file=sys.stderr)
