"""Faults that nobody chose: drawn from the syntax of a room's files by a seed, for `tests/mutations.py --draw`.

Kinds: an operator (+ for -, < for <=, and for or, min for max, a dropped not or minus), a bound (an integer one
larger), a dropped argument (f(a, b=c) without b). A room is a folder of a package, or the files at its top; rooms take
turns, in an order that the seed draws. Annotations, messages of errors, assertions, printing, texts of --help and
`strict=True` are left alone. A drawn fault may change nothing that anybody could see: what survives is read, and goes
into FAULTS of mutations.py with a test that finds it, or into SURVIVING with a reason.
"""

import ast
import os
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path

from nearest import ROOT, modules, nearest

LIGHT = {"techniques.py", "__main__.py", "__init__.py"}
"""Records, lists of commands and names that are handed on: no arithmetic."""
FILES_OF_TESTS = 12
"""The nearest ones, by imports (nearest.py). What survives these is tried on the equivalence matrix and by hand."""
SURVIVING = {
    "operator objective/advantages.py: spread <= _ROUNDING_STEPS * torch.finfo(values.dtype).eps * size -> "
    "spread < _ROUNDING_STEPS * torch.finfo(values.dtype).eps * size": "at equality, as where all are 0, both give 0",
    "operator ../ablations/compare/statistics.py: largest[:, None] >= observed * (1 - 1e-09) -> "
    "largest[:, None] > observed * (1 - 1e-09)": "the bound is a hair below an observed |t|, and no |t| equals it",
    "dropped argument ../ablations/report/html.py: (FOLDER / name).read_text(encoding='utf-8') -> "
    "(FOLDER / name).read_text()": "tests/test_encodings.py finds it, in every file at once",
}
"""Faults that no test should see, without their line -> why."""
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "amax": "amin", "amin": "amax", "any": "all", "all": "any", "maximum": "minimum"}
WORDS = {"strict", "help", "description", "metavar"}
"""Arguments that only say something, of commands and of `zip`."""
LEFT_ALONE = {"print", "ConfigError", "StudyError", "UserError", "ValueError", "RuntimeError", "field", "dataclass"}


def reason_to_survive(name: str) -> str | None:
    """Why a drawn fault may survive; None: nobody has read it."""
    return SURVIVING.get(re.sub(r":\d+:", ":", name, count=1))


def candidates(tree: ast.Module) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """(kind, expression, what takes its place) of every fault that a file can have."""
    for node in _code(tree):
        match node:
            case ast.BinOp(left, op, right) if type(op) in OTHER and not _is_text(left) and not _is_text(right):
                yield "operator", node, ast.BinOp(left, OTHER[type(op)](), right)  # type: ignore[arg-type]
            case ast.Compare(left, [op], rights) if type(op) in OTHER:
                yield "operator", node, ast.Compare(left, [OTHER[type(op)]()], rights)  # type: ignore[list-item]
            case ast.BoolOp(op, values):
                yield "operator", node, ast.BoolOp(OTHER[type(op)](), values)  # type: ignore[arg-type]
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield "operator", node, operand
            case ast.Call(ast.Name(name) | ast.Attribute(_, name), args, keywords):
                if name in SWAPPED:
                    function = node.func
                    other = (
                        ast.Name(SWAPPED[name])
                        if isinstance(function, ast.Name)
                        else ast.Attribute(function.value, SWAPPED[name])
                    )
                    yield "operator", node, ast.Call(other, args, keywords)
                for dropped in keywords:
                    if dropped.arg and dropped.arg not in WORDS:
                        rest = [keyword for keyword in keywords if keyword is not dropped]
                        yield "dropped argument", node, ast.Call(node.func, args, rest)
            case ast.Constant(value) if type(value) is int:
                yield "bound", node, ast.Constant(value + 1)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions that decide numbers: without annotations, errors, assertions and printing."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr)):
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in LEFT_ALONE:
            continue
        if isinstance(child, ast.AnnAssign):
            child = child.value if child.value is not None else ast.Pass()
        if isinstance(child, ast.arg):
            continue
        if isinstance(child, ast.FunctionDef):
            child.returns = None
            child.decorator_list = []
        yield child
        yield from _code(child)


def drawn(package: Path, count: int, seed: int) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    """(name, file from `package`, old, new, tests) of `count` faults; the text `old` is in its file once."""
    order = random.Random(seed)
    faults = [_shuffled(files, order) for files in rooms()]
    order.shuffle(faults)
    taking_turns = (fault for turn in zip_longest(*faults) for fault in turn if fault is not None)
    for file, kind, old, new in islice(taking_turns, count):
        before, after = _lines(file.read_text(), old, new)
        name = os.path.relpath(file, package)
        tests = tuple(str(test.relative_to(ROOT)) for test in nearest(file)[:FILES_OF_TESTS])
        yield f"{kind} {name}:{old.lineno}: {ast.unparse(old)} -> {ast.unparse(new)}", name, before, after, tests


def rooms() -> list[list[Path]]:
    """The files of each room."""
    found = defaultdict(list)
    for file in modules().values():
        if file.name not in LIGHT:
            found[file.relative_to(ROOT).parent.parts[:2]].append(file)
    return [*found.values()]


def _shuffled(files: list[Path], order: random.Random) -> Iterator[tuple[Path, str, ast.expr, ast.expr]]:
    """All faults of a room."""
    found = [(file, *each) for file in files for each in candidates(ast.parse(file.read_text()))]
    return iter(order.sample(found, len(found)))


def _lines(text: str, old: ast.expr, new: ast.expr) -> tuple[str, str]:
    """The lines of an expression, with so many before them that they are unique; and the same with the fault."""
    assert old.end_lineno is not None
    assert old.end_col_offset is not None
    lines = [line.encode() for line in text.splitlines(keepends=True)]  # offsets of `ast` count bytes
    whole = b"".join(lines[old.lineno - 1 : old.end_lineno])
    end = len(whole) - len(lines[old.end_lineno - 1]) + old.end_col_offset
    other = whole[: old.col_offset] + b"(" + ast.unparse(new).encode() + b")" + whole[end:]
    start = old.lineno - 1
    while start > 0 and text.count(b"".join([*lines[start : old.lineno - 1], whole]).decode()) > 1:
        start -= 1
    context = b"".join(lines[start : old.lineno - 1])
    return (context + whole).decode(), (context + other).decode()
