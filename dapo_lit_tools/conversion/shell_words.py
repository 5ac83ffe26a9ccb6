"""Words of a shell script: variables and their expansions, quotes, integer arithmetic and conditions.

An open part of a word, which only a run could fill in, is a number between two characters of Unicode's private area,
so that texts stay texts; `Words.shown` says what it stands for.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from fnmatch import translate
from functools import lru_cache
from itertools import pairwise, product
from typing import Literal

from tree_sitter import Node

from dapo_lit.config import ConfigError

Value = str | list[str] | dict[str, str]
Atom = tuple[Literal["literal", "quoted", "expanded", "break"], str]
"""A part of a word: only literal text has braces and patterns, only an unquoted expansion is split at blanks, and
`break` ends a field within quotes, as "${array[@]}" does."""
START, END, ONLY = "\ue000", "\ue001", "\ue002"
"""Around the number of an open part; before that of a condition under which a word is there."""
OPEN = re.compile(f"[{START}{ONLY}](\\d+){END}")
LONGEST_WORD = 50_000
MOST_COPIED = 1_000_000
"""Characters that the variables of a script stand for."""
MOST_PARTS = 60_000
"""Parts that are read of a script, again in each turn of a loop and each call; verl's longest has some thousand."""
MOST_BRACES = 1_000
LARGEST = 2**63
SET_BY_BASH = frozenset(
    [
        "BASH_SOURCE",
        "EUID",
        "GROUPS",
        "HOME",
        "HOSTNAME",
        "HOSTTYPE",
        "IFS",
        "LANG",
        "LINENO",
        "LOGNAME",
        "OLDPWD",
        "OSTYPE",
        "PATH",
        "PPID",
        "PWD",
        "RANDOM",
        "SECONDS",
        "SHELL",
        "SHLVL",
        "TERM",
        "TMPDIR",
        "UID",
        "USER",
    ]
)
"""Variables that have a value in any shell."""


class UndecidedError(Exception):
    """A number that only a run could tell."""


def is_open(text: str) -> bool:
    """Whether a text has a part that only a run could fill in."""
    return START in text or ONLY in text


def pattern_of(atoms: Sequence[Atom]) -> str:
    """A pattern of bash's: quoted characters of it stand for themselves."""
    return "".join(text if kind == "literal" else re.sub(r"([*?\[\]])", r"[\1]", text) for kind, text in atoms)


@lru_cache(512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.replace("[^", "[!")))


def matches(text: str, pattern: str) -> bool:
    """Whether a pattern of bash's fits a whole text."""
    return _compiled(pattern).fullmatch(text) is not None


def braces(text: str) -> list[str]:
    """The words that `a{b,c}` and `{1..3}` stand for; the text itself if they are more than a script has.

    >>> braces("x{a,b}{1..2}"), braces("{a: 1}"), braces("[{a}]")
    (['xa1', 'xa2', 'xb1', 'xb2'], ['{a: 1}'], ['[{a}]'])
    """
    ends, commas = _pairs(text)

    def options(start: int) -> list[str]:
        """What a pair of braces stands for; none if it is no list and no range."""
        end = ends[start]
        if commas[start]:
            cuts = [start, *commas[start], end]
            return [word for left, right in pairwise(cuts) for word in words(left + 1, right)]
        ranged = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,6}))?").fullmatch(text, start + 1, end)
        if not ranged:
            return []
        first, last, step = int(ranged[1]), int(ranged[2]), abs(int(ranged[3] or 1)) or 1
        span = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
        return [str(number) for number in span[:MOST_BRACES]]

    def words(first: int, last: int) -> list[str]:
        """The words of text[first:last], between whose braces all pairs are whole."""
        parts: list[list[str]] = []
        number, done, start = 1, first, first - 1
        while (start := text.find("{", start + 1, last)) >= 0:
            if start not in ends or not (each := options(start)):
                continue
            number *= len(each)
            if number > MOST_BRACES or number * (last - first) > MOST_COPIED:
                return [text[first:last]]
            parts += [[text[done:start]], each]
            start = ends[start]
            done = start + 1
        return ["".join(chosen) for chosen in product(*parts, [text[done:last]])]

    return words(0, len(text))


def _pairs(text: str) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Of each brace that is closed: where it ends, and its own commas."""
    ends: dict[int, int] = {}
    commas: dict[int, list[int]] = {}
    opened: list[int] = []
    for found in re.finditer("[{},]", text):
        if found[0] == "{":
            opened.append(found.start())
            commas[found.start()] = []
        elif opened and found[0] == "}":
            ends[opened.pop()] = found.start()
        elif opened:
            commas[opened[-1]].append(found.start())
    return ends, commas


class Words:
    """The variables of a script, and what its words stand for with them."""

    def __init__(self, place: str, arguments_open: bool) -> None:
        self.place, self.arguments_open = place, arguments_open
        self.variables: dict[str, Value] = {}
        self.arguments: list[str] = []
        self.opened: list[str] = []
        self._numbers: dict[str, int] = {}
        self.defaulted: dict[str, None] = {}
        self._noted: list[set[str]] = []
        self._unset_is_empty = False
        self.copied = self.parts = 0

    # Open parts

    def left_open(self, words: str, mark: str = START) -> str:
        """The mark of an open part; words: as the script has it."""
        number = self._numbers.setdefault(words, len(self.opened))
        if number == len(self.opened):
            self.opened.append(words)
        return f"{mark}{number}{END}"

    def shown(self, text: str) -> str:
        """A text with its open parts as the script has them."""
        return OPEN.sub(lambda found: self.opened[int(found[1])] if found[0][0] == START else "", text)

    @staticmethod
    def without_conditions(text: str) -> str:
        """A word without the conditions under which it is there."""
        return re.sub(f"{ONLY}\\d+{END}", "", text)

    def conditions(self, text: str) -> list[str]:
        """The conditions under which a word is there."""
        return [self.opened[int(number)] for number in re.findall(f"{ONLY}(\\d+){END}", text)]

    def joined(self, values: Sequence[Value | None], line: int) -> Value:
        """One value for those of several branches."""
        first = values[0]
        if all(value == first for value in values) and first is not None:
            return first
        if any(isinstance(value, list) for value in values):
            lists = [value if isinstance(value, list) else [] if value is None else [str(value)] for value in values]
            common = 0
            while all(len(one) > common and one[common] == lists[0][common] for one in lists):
                common += 1
            mark = self.left_open(f"only in a branch, line {line}", ONLY)
            # What a branch adds may be there or not.
            return [*lists[0][:common], *(mark + word for one in lists for word in one[common:])]
        shown = dict.fromkeys("nothing" if value in (None, "") else self.shown(str(value)) for value in values)
        return self.left_open(f"{' or '.join(shown)}, by the branch in line {line}")

    @contextmanager
    def noted(self) -> Iterator[set[str]]:
        """Collects the variables that have their default, and that are used inside."""
        used: set[str] = set()
        self._noted.append(used)
        before, self._unset_is_empty = self._unset_is_empty, True
        try:
            yield used
        finally:
            self._noted.pop()
            self._unset_is_empty = before

    def count(self, characters: int) -> None:
        """Raises ConfigError once the script stands for more than a script holds."""
        self.copied += characters
        if characters > LONGEST_WORD * 4 or self.copied > MOST_COPIED:
            raise ConfigError(
                f"{self.place}: a word has more than {LONGEST_WORD:,} characters, or its variables stand for more than "
                f"{MOST_COPIED:,}, which is no script"
            )

    def visit(self, node: Node) -> None:
        """Counts what lies directly in a node, each time before it is read. Raises ConfigError beyond MOST_PARTS."""
        self._spend(1 + node.child_count)

    def copy(self) -> dict[str, Value]:
        """The variables of today, for a subshell or a branch. Raises ConfigError as `visit` does."""
        self._spend(1 + len(self.variables) // 10)
        return deepcopy(self.variables)

    def _spend(self, parts: int) -> None:
        self.parts += parts
        if self.parts > MOST_PARTS:
            raise ConfigError(f"{self.place}: has more than {MOST_PARTS:,} parts with its loops, which is no script")

    # Words

    def fields_of(self, nodes: Sequence[Node]) -> list[str]:
        """The words that neighbouring words of the script become."""
        found: list[str] = []
        joined: list[Node] = []
        for node in [*nodes, None]:
            if node is not None and node.type == "comment":
                continue
            # `a-$b/c`: the grammar makes two words of it.
            if node is not None and joined and joined[-1].end_byte == node.start_byte:
                joined.append(node)
                continue
            if joined:
                found += self.fields(*joined)
            joined = [] if node is None else [node]
        return found

    def fields(self, node: Node, *rest: Node) -> list[str]:
        """The words that a word of the script becomes: several, one or none. rest: further parts of the same word."""
        if node.type == "comment":
            return []
        found: list[str] = []
        whole = self.atoms(node)
        for part in rest:
            text = (part.text or b"").decode(errors="replace")
            if whole and whole[-1] == ("literal", "$") and (name := re.match(r"\w+", text)):
                value = self.value(name[0])
                whole[-1:] = self._scalar(self.left_open(f"${name[0]}") if value is None else value, False)
                whole += self._plain(text[name.end() :])
            else:
                whole += self.atoms(part)
        for atoms in self._braced(whole):
            field: str | None = None
            for kind, text in atoms:
                if kind == "break":
                    found.append(field or "")
                    field = None
                elif kind == "expanded":
                    parts = text.split()
                    if parts and text[0].isspace() and field is not None:
                        found.append(field)
                        field = None
                    for place, piece in enumerate(parts):
                        if place:
                            found.append(field or "")
                            field = None
                        field = (field or "") + piece
                    if parts and text[-1].isspace():
                        found.append(field or "")
                        field = None
                else:
                    field = (field or "") + text
            if field is not None:
                found.append(field)
        if found and (node.text or b"")[:2] in (b"~", b"~/"):
            found[0] = self.left_open("$HOME") + found[0][1:]
        return found

    def text(self, node: Node) -> str:
        """A word as one text, as on the right of an assignment."""
        return "".join(" " if kind == "break" else text for kind, text in self.atoms(node))

    def _braced(self, atoms: list[Atom]) -> list[list[Atom]]:
        if not any(kind == "literal" and "{" in text for kind, text in atoms):
            return [atoms]
        held: list[Atom] = []
        text = ""
        for atom in atoms:
            if atom[0] == "literal":
                text += atom[1]
            else:
                text += chr(0xE100 + len(held)) if len(held) < 0x700 else ""
                held.append(atom)
        parts = re.compile("([\ue100-\ue7ff])")
        return [
            [
                held[ord(part) - 0xE100] if parts.fullmatch(part) else ("literal", part)
                for part in parts.split(word)
                if part
            ]
            for word in braces(text)
        ]

    def atoms(self, node: Node, in_quotes: bool = False) -> list[Atom]:
        """The parts of a word."""
        self.visit(node)
        text = (node.text or b"").decode(errors="replace")
        match node.type:
            case "string":
                return self._string(node)
            case "raw_string":
                return [("quoted", text if in_quotes else text[1:-1])]
            case "ansi_c_string":
                escapes = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "r": "\r"}
                return [("quoted", re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[0]), text[2:-1]))]
            case "concatenation" | "command_name":
                return [atom for child in node.children for atom in self.atoms(child, in_quotes)]
            case "simple_expansion":
                return self._expanded(node.children[-1], in_quotes)
            case "expansion":
                return self._expansion(node, in_quotes)
            case "arithmetic_expansion":
                try:
                    return [("quoted", str(self.number(node)))]
                except UndecidedError:
                    return [("quoted", self.left_open(text))]
            case "command_substitution" | "process_substitution":
                return [("quoted", self.left_open(" ".join(text.split())))]
            case "string_content" | "heredoc_content":
                return [("quoted", re.sub(r'\\(?:\n|([$`"\\]))', lambda m: m[1] or "", text))]
            case "regex":
                # A pattern, or what a default is of: the grammar has no tree of it.
                return self._plain(text)
        return [("quoted", text)] if in_quotes else self._plain(text)

    @staticmethod
    def _plain(text: str) -> list[Atom]:
        """A word outside of quotes: a backslash quotes the next character."""
        found: list[Atom] = []
        for part in re.split(r"(\\[\s\S])", text):
            if part == "\\\n":
                continue
            if re.fullmatch(r"\\[\s\S]", part):
                found.append(("quoted", part[1]))
            elif part:
                found.append(("literal", part))
        return found

    def _string(self, node: Node) -> list[Atom]:
        found: list[Atom] = [("quoted", "")]
        # The grammar leaves some blanks between expansions out.
        content, start = node.text or b"", node.start_byte
        place = start + 1
        inner = [child for child in node.children if child.is_named]
        empty_array = len(inner) == 1 and _is_array(inner[0])
        for child in inner:
            # ... or has them in the child.
            blanks = (child.text or b"")[: len(child.text or b"") - len((child.text or b"").lstrip())]
            if child.type != "string_content" and blanks:
                found += self._gap(content[place - start : child.start_byte - start] + blanks)
                found += self.atoms(child, True)
                place = child.end_byte
                continue
            found += self._gap(content[place - start : child.start_byte - start])
            found += self.atoms(child, True)
            place = child.end_byte
        found += self._gap(content[place - start : -1])
        if empty_array and all(kind == "quoted" and not text for kind, text in found):
            return []
        return found

    @staticmethod
    def _gap(content: bytes) -> list[Atom]:
        text = content.decode(errors="replace")
        return [("quoted", re.sub(r'\\(?:\n|([$`"\\]))', lambda m: m[1] or "", text))] if text else []

    # Expansions

    def value(self, name: str) -> Value | None:
        """What a name stands for; None: nothing is known of it."""
        if self._noted and name in self.defaulted:
            self._noted[-1].add(name)
        if name in self.variables:
            return self.variables[name]
        if name.isdigit() and name != "0":
            place = int(name) - 1
            if place < len(self.arguments):
                return self.arguments[place]
            return self.left_open(f"${name}") if self.arguments_open else None
        match name:
            case "#":
                return self.left_open("$#") if self.arguments_open else str(len(self.arguments))
            case "@" | "*":
                return [self.left_open("$@")] if self.arguments_open and not self.arguments else list(self.arguments)
            case "?":
                return "0"
        if name in SET_BY_BASH or not re.fullmatch(r"\w+", name):
            return self.left_open(f"${name}")
        return None

    def _expanded(self, node: Node, in_quotes: bool) -> list[Atom]:
        """`$name`, and `${name}` without anything else."""
        name = (node.text or b"").decode()
        if node.type == "subscript":
            return self._subscript(node, in_quotes)
        found = self.value(name)
        if found is None:
            found = "" if self._unset_is_empty else self.left_open(f"${name}")
        if name in ("@", "*"):
            return self._items(found if isinstance(found, list) else [str(found)], in_quotes, name)
        return self._scalar(found, in_quotes)

    def _scalar(self, found: Value, in_quotes: bool) -> list[Atom]:
        if isinstance(found, (list, dict)):
            items = [*(found.values() if isinstance(found, dict) else found)]
            found = items[0] if items else ""
        self.count(len(found))
        return [("quoted" if in_quotes else "expanded", found)]

    def _items(self, items: Sequence[str], in_quotes: bool, sign: str) -> list[Atom]:
        self.count(sum(map(len, items)))
        if sign == "*" and in_quotes:
            return [("quoted", " ".join(items))]
        found: list[Atom] = []
        for place, item in enumerate(items):
            found += [("break", "")] if place else []
            # Open words of an array stay whole.
            found.append(("quoted" if in_quotes else "expanded", item))
        return found

    def _subscript(self, node: Node, in_quotes: bool) -> list[Atom]:
        named = [child for child in node.children if child.is_named]
        name = (named[0].text or b"").decode()
        index = (named[-1].text or b"").decode() if len(named) > 1 else "0"
        value = self.value(name)
        if index in ("@", "*"):
            items = (
                []
                if value is None
                else value
                if isinstance(value, list)
                else ([*value.values()] if isinstance(value, dict) else [value])
            )
            return self._items(items, in_quotes, index)
        if value is None:
            return self._scalar("" if self._unset_is_empty else self.left_open(f"${{{name}[{index}]}}"), in_quotes)
        if isinstance(value, dict):
            return self._scalar(value.get(self.text(named[-1]), ""), in_quotes)
        try:
            place = self.number_of(named[-1]) if len(named) > 1 else 0
        except UndecidedError:
            return self._scalar(self.left_open(f"${{{name}[{index}]}}"), in_quotes)
        items = value if isinstance(value, list) else [value]
        return self._scalar(items[place] if -len(items) <= place < len(items) else "", in_quotes)

    def _expansion(self, node: Node, in_quotes: bool) -> list[Atom]:
        """`${...}` with all that may stand in it."""
        text = (node.text or b"").decode().lstrip()
        inner = node.children[1:-1]
        if not inner:
            return [("quoted", self.left_open(text))]
        before = (inner[0].text or b"").decode() if not inner[0].is_named else ""
        if before in ("#", "!") and len(inner) > 1:
            return [("quoted", self._special(before, inner[1], text))]
        target, rest = inner[0], inner[1:]
        if not rest:
            return self._expanded(target, in_quotes)
        sign, arguments = (rest[0].text or b"").decode(), rest[1:]
        name = (target.text or b"").decode()
        found = self._found(target)
        if sign.lstrip(":") in ("-", "=", "+", "?") and sign not in (":",):
            missing = found is None or (sign[0] == ":" and found in ("", [], {}))
            kind = sign[-1]
            if kind == "+":
                return [] if missing else self._inner(arguments, in_quotes)
            if kind == "?":
                return (
                    self._scalar(self.left_open(f"${name}"), in_quotes)
                    if missing
                    else self._expanded(target, in_quotes)
                )
            if not missing:
                return self._expanded(target, in_quotes)
            taken = self._inner(arguments, in_quotes)
            if re.fullmatch(r"\w+", name):
                self.defaulted[name] = None
                if kind == "=":
                    self.variables[name] = "".join(part for _, part in taken)
            return taken
        if _is_array(node) and isinstance(found, list):
            if sign == ":" and arguments:
                return self._items(self._sliced(found, arguments), in_quotes, "@")
            return self._items([self._changed(item, sign, arguments, text) for item in found], in_quotes, "@")
        whole = "" if found is None and self._unset_is_empty else found
        if whole is None:
            return [("quoted", self.left_open(text))]
        changed = self._changed("".join(part for _, part in self._scalar(whole, True)), sign, arguments, text)
        return [("quoted" if in_quotes else "expanded", changed)]

    def _found(self, target: Node) -> Value | None:
        if target.type != "subscript":
            return self.value((target.text or b"").decode())
        name = (target.children[0].text or b"").decode()
        value = self.value(name)
        if value is None or _is_array(target):
            return [*value.values()] if isinstance(value, dict) else value
        return "".join(text for _, text in self._subscript(target, True))

    def _inner(self, nodes: Sequence[Node], in_quotes: bool) -> list[Atom]:
        """The word of a default: in it quotes count, and outside of quotes it is split as an expansion is."""
        found = [atom for node in nodes for atom in self.atoms(node, in_quotes)]
        if not in_quotes and found and found[0][0] == "literal" and re.match(r"~(/|$)", found[0][1]):
            found[0] = ("literal", self.left_open("$HOME") + found[0][1][1:])
        return found if in_quotes else [("expanded" if kind == "literal" else kind, text) for kind, text in found]

    def _special(self, sign: str, target: Node, text: str) -> str:
        found = self._found(target)
        if sign == "#" and found is not None:
            if isinstance(found, str):
                return self.left_open(text) if is_open(found) else str(len(found))
            if any(ONLY in item for item in found):
                return self.left_open(text)
            return str(len(found) if _is_array(target) else len(found[0]) if isinstance(found, list) and found else 0)
        if sign == "!" and isinstance(found, str) and not is_open(found):
            meant = self.value(found)
            return meant if isinstance(meant, str) else self.left_open(text)
        if sign == "#" and target.type == "subscript":
            return "0"
        return self.left_open(text)

    def _sliced(self, items: list[str], arguments: Sequence[Node]) -> list[str]:
        numbers = [node for node in arguments if node.is_named]
        try:
            start = self.number_of(numbers[0])
            count = self.number_of(numbers[1]) if len(numbers) > 1 else len(items)
        except UndecidedError:
            return [self.left_open("a part of an array")]
        return items[start : start + count] if start >= 0 else items[start:]

    def _changed(self, text: str, sign: str, arguments: Sequence[Node], source: str) -> str:
        """A text after `%`, `#`, `/`, `^`, `,` and `:`."""
        if is_open(text):
            return self.left_open(source)
        if sign in ("^^", ",,", "^", ",") and not arguments:
            change = str.upper if sign[0] == "^" else str.lower
            return change(text) if len(sign) == 2 else change(text[:1]) + text[1:]
        if sign == ":":
            try:
                numbers = [self.number_of(node) for node in arguments if node.is_named]
            except UndecidedError:
                return self.left_open(source)
            start = numbers[0] if numbers else 0
            start = max(len(text) + start, 0) if start < 0 else start
            end = len(text) if len(numbers) < 2 else (start + numbers[1] if numbers[1] >= 0 else len(text) + numbers[1])
            return text[start:end]
        slashes = [place for place, node in enumerate(arguments) if (node.text or b"") == b"/" and not node.is_named]
        first = arguments[: slashes[0]] if slashes else arguments
        pattern = pattern_of([atom for node in first for atom in self.atoms(node)])
        if is_open(pattern) or len(text) > LONGEST_WORD // 10:
            return self.left_open(source)
        if sign in ("%", "%%", "#", "##"):
            cuts = range(len(text) + 1)
            if sign[0] == "%":
                places = [cut for cut in cuts if matches(text[cut:], pattern)]
                return text[: max(places) if sign == "%" else min(places)] if places else text
            places = [cut for cut in cuts if matches(text[:cut], pattern)]
            return text[min(places) if sign == "#" else max(places) :] if places else text
        if sign in ("/", "//"):
            after = arguments[slashes[0] + 1 :] if slashes else []
            into = "".join(part for node in after for _, part in self.atoms(node))
            body = translate(pattern)
            body = body[body.index(":") + 1 : body.rindex(")")] if body.startswith("(?s:") else body
            return re.sub(f"(?s:{body})", lambda _: into, text, count=1 if sign == "/" else 0)
        return self.left_open(source)

    # Assignments

    def declare(self, node: Node) -> None:
        """export, declare, local and readonly."""
        flags = [(child.text or b"").decode() for child in node.children if child.type == "word"]
        for child in node.children:
            if child.type == "variable_assignment":
                self.assign(child)
            elif child.type == "variable_name" and (name := (child.text or b"").decode()) not in self.variables:
                if any("A" in flag for flag in flags if flag.startswith("-")):
                    self.variables[name] = {}
                elif any("a" in flag for flag in flags if flag.startswith("-")):
                    self.variables[name] = []
                elif (node.children[0].text or b"") == b"local":
                    self.variables[name] = ""

    def assign(self, node: Node) -> None:
        """`name=value`, `name+=value` and the same of arrays."""
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None:
            return
        adds = any((child.text or b"") == b"+=" for child in node.children)
        if target.type == "subscript":
            self._assign_item(target, value, adds)
            return
        name = (target.text or b"").decode()
        before = self.variables.get(name)
        self.defaulted.pop(name, None)
        if value is not None and value.type == "array":
            items = self.fields_of([child for child in value.children if child.is_named])
            kept = before if isinstance(before, list) else [before] if isinstance(before, str) and before else []
            self.count(sum(map(len, items)))
            self.variables[name] = [*kept, *items] if adds else items
            return
        text = "" if value is None else self._home(self.text(value), value)
        if adds and isinstance(before, list):
            self.variables[name] = [(before[0] if before else "") + text, *before[1:]]
            return
        self.count(len(text))
        self.variables[name] = (before if adds and isinstance(before, str) else "") + text

    def _home(self, text: str, value: Node) -> str:
        tilde = value.type in ("word", "concatenation") and (text == "~" or text.startswith("~/"))
        return self.left_open("$HOME") + text[1:] if tilde else text

    def _assign_item(self, target: Node, value: Node | None, adds: bool) -> None:
        named = [child for child in target.children if child.is_named]
        name, text = (named[0].text or b"").decode(), "" if value is None else self.text(value)
        whole = self.variables.setdefault(name, [])
        if isinstance(whole, dict):
            key = self.text(named[-1])
            whole[key] = (whole.get(key, "") if adds else "") + text
        elif isinstance(whole, list):
            try:
                place = self.number_of(named[-1])
            except UndecidedError:
                return
            if 0 <= place <= MOST_BRACES:
                whole += [""] * (place + 1 - len(whole))
                whole[place] = (whole[place] if adds else "") + text

    # Numbers

    def number(self, node: Node) -> int:
        """What `$(( ))` or `(( ))` is. Raises UndecidedError."""
        found = 0
        for child in node.children:
            if child.is_named:
                found = self.number_of(child)
        return found

    def number_of(self, node: Node, depth: int = 0) -> int:
        """The value of an expression of integers, of 64 bits as in bash. Raises UndecidedError."""
        if depth > 100:
            raise UndecidedError
        found = self._computed(node, depth + 1)
        if abs(found) >= LARGEST:  # a shell's would wrap around
            raise UndecidedError
        return found

    def _computed(self, node: Node, depth: int) -> int:
        self.visit(node)
        text = (node.text or b"").decode(errors="replace")
        named = [child for child in node.children if child.is_named]
        match node.type:
            case "number":
                return _integer(text)
            case "variable_name" | "word" | "simple_expansion" | "expansion" | "string" | "subscript" | "raw_string":
                if re.fullmatch(r"[A-Za-z_]\w*", text):
                    value = self.value(text)
                    if value is None:
                        return 0
                    written = "".join(part for _, part in self._scalar(value, True))
                elif node.type == "subscript":
                    written = "".join(part for _, part in self._subscript(node, True))
                else:
                    written = self.text(node)
                return _integer(written)
            case "parenthesized_expression" | "arithmetic_expansion":
                return self.number_of(named[-1], depth) if named else 0
            case "variable_assignment":
                target, given = node.child_by_field_name("name"), node.child_by_field_name("value")
                assert target is not None
                found = self.number_of(given, depth) if given is not None else 0
                self.variables[(target.text or b"").decode()] = str(found)
                return found
            case "postfix_expression" | "unary_expression":
                sign = "".join(
                    (child.text or b"").decode()
                    for child in node.children
                    if not child.is_named or child.type == "test_operator"
                )
                found = self.number_of(named[-1] if node.type == "unary_expression" else named[0], depth)
                if sign in ("++", "--"):
                    changed = found + (1 if sign == "++" else -1)
                    self.variables[(named[0].text or b"").decode()] = str(changed)
                    return found if node.type == "postfix_expression" else changed
                return {"-": -found, "+": found, "!": int(not found), "~": ~found}[sign] if sign in "-+!~" else _no()
            case "ternary_expression" if len(named) == 3:
                return self.number_of(named[1] if self.number_of(named[0], depth) else named[2], depth)
            case "binary_expression" if len(named) >= 2:
                sign = next((child.text or b"").decode() for child in node.children if not child.is_named)
                return self._operated(sign, named, depth)
        raise UndecidedError

    def _operated(self, sign: str, named: Sequence[Node], depth: int) -> int:
        if sign[-1:] == "=" and sign not in ("==", "!=", "<=", ">="):
            after = self.number_of(named[-1], depth)
            found = after if sign == "=" else _binary(sign[:-1], self.number_of(named[0], depth), after)
            self.variables[(named[0].text or b"").decode()] = str(found)
            return found
        return _binary(sign, self.number_of(named[0], depth), self.number_of(named[-1], depth))

    # Conditions

    def condition(self, node: Node, doubled: bool) -> bool | None:
        """What `[ ... ]` or, `doubled`, `[[ ... ]]` tests; None: only a run could tell."""
        named = [child for child in node.children if child.is_named]
        match node.type:
            case "parenthesized_expression":
                return self.condition(named[-1], doubled)
            case "unary_expression":
                sign = (node.children[0].text or b"").decode()
                if sign == "!":
                    found = self.condition(named[-1], doubled)
                    return None if found is None else not found
                text = self.text(named[-1])
                if sign in ("-z", "-n") and not is_open(text):
                    return (text == "") is (sign == "-z")
                if sign == "-v" and not is_open(text):
                    return self.value(text) is not None
                return None
            case "binary_expression":
                return self._compared(node, named, doubled)
        text = self.text(node)
        return None if is_open(text) else text != ""

    def _compared(self, node: Node, named: Sequence[Node], doubled: bool) -> bool | None:
        sign = next((c.text or b"").decode() for c in node.children if not c.is_named or c.type == "test_operator")
        if sign in ("&&", "||", "-a", "-o"):
            first, second = self.condition(named[0], doubled), self.condition(named[-1], doubled)
            decisive = sign in ("||", "-o")
            if decisive in (first, second):
                return decisive
            return None if None in (first, second) else not decisive
        left = self.text(named[0])
        if sign.startswith("-"):
            try:
                numbers = _integer(left), _integer(self.text(named[-1]))
            except UndecidedError:
                return None
            compare = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}.get(sign)
            return None if compare is None else bool(_binary(compare, *numbers))
        atoms = self.atoms(named[-1])
        right = "".join(text for _, text in atoms)
        if is_open(left) or is_open(right):
            return None
        if sign in ("=", "==", "!="):
            same = matches(left, pattern_of(atoms)) if doubled else left == right
            return same if sign != "!=" else not same
        return {"<": left < right, ">": left > right}.get(sign)


def _is_array(node: Node) -> bool:
    """Whether an expansion is of all items of an array, or of all arguments."""
    text = (node.text or b"").decode().lstrip()
    return bool(re.match(r"\$?\{?[#!]?\w*\[@\]|\$\{?@", text))


def _no() -> int:
    raise UndecidedError


def _integer(text: str) -> int:
    text = text.strip()
    if not re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]{1,16}|\d{1,19})", text):
        raise UndecidedError
    octal = re.fullmatch(r"([-+]?)0(\d+)", text)
    try:
        return int(octal[1] + octal[2], 8) if octal else int(text, 0) if "x" in text.lower() else int(text)
    except ValueError:
        raise UndecidedError from None


def _binary(sign: str, left: int, right: int) -> int:
    if sign in ("/", "%"):
        if right == 0:
            raise UndecidedError
        # Towards zero, unlike Python's.
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if sign == "/" else left - right * quotient
    if sign in ("**", "<<", ">>"):
        if not 0 <= right < 64:
            raise UndecidedError
        return left**right if sign == "**" else left << right if sign == "<<" else left >> right
    operations = {
        "+": left + right, "-": left - right, "*": left * right, "==": left == right, "!=": left != right,
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,
        "&&": bool(left) and bool(right), "||": bool(left) or bool(right), "&": left & right, "|": left | right,
        "^": left ^ right, ",": right,
    }  # fmt: skip
    if sign not in operations:
        raise UndecidedError
    return int(operations[sign])
