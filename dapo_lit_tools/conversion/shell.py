"""What a shell script would pass to its commands: a walk through the tree of bash's grammar. Nothing is run.

Followed are assignments, arrays, functions, loops, `if` and `case`, expansions and integer arithmetic. What only a run
could tell (the output of a command, whether a file exists, a variable that nobody set) is an open part of a word.
Of a branch that depends on such a part both sides are walked: what they set differently is open too, and what one of
them adds to an array is a word with a condition. A variable that has a default counts as not given, as in
`NODES=${NODES:-1}`; so do the script's own arguments.
"""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from dapo_lit.config import ConfigError
from dapo_lit_tools.conversion.shell_words import (
    UndecidedError,
    Value,
    Words,
    is_open,
    matches,
    pattern_of,
)

MOST_STATEMENTS = 20_000
"""Of a script with its loops; verl's longest has some hundred."""
MOST_PARSING_S = 0.3
"""Processor time for the grammar, which takes milliseconds: what does not close costs it seconds."""
DEEPEST = 60
"""Statements within each other, calls of functions included."""
WRAPPERS = ("command", "env", "exec", "nohup", "stdbuf", "sudo", "time", "timeout")
"""Commands that start another one, which is among their words."""
BASH = Parser(Language(tree_sitter_bash.language()))


@dataclass(frozen=True)
class Command:
    """A simple command with the words that it gets."""

    words: tuple[str, ...]
    line: int
    branch: str = ""
    """The condition under which it runs, where the script does not decide it."""


class _LeavingError(Exception):
    """exit, return, break or continue."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


@dataclass
class Script:
    """The commands of a script, and what it left open."""

    commands: list[Command] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    """Lines that are no bash."""
    may_end: int | None = None
    """The number of commands before the first `exit` in a branch that the script does not decide."""
    by_default: dict[str, int] = field(default_factory=dict)
    """Conditions that a default decided, such as `"$DEVICE" = npu`, with their lines."""


def walk(text: str, place: str) -> tuple[Script, Words]:
    """The commands of a script; and its words, which say what an open part stands for.

    Raises ConfigError: it does not end, or stands for more than a script holds.
    """
    for arguments in ("", None):
        # Without arguments many scripts say how they are called, and end.
        walker = _Walker(place, arguments is None)
        walker.start(text)
        if arguments is None or any(len(command.words) > 2 for command in walker.script.commands):
            break
    return walker.script, walker.words


class _Walker:
    def __init__(self, place: str, arguments_open: bool) -> None:
        self.script, self.place = Script(), place
        self.words = Words(place, arguments_open)
        self.functions: dict[str, Node] = {}
        self.source = b""
        self.branch: list[str] = []
        self.statements = self.depth = 0
        self.parsing_s = 0.0
        self.may_leave = False
        """A branch that may be taken ends the loop that is walked, so that it is not walked again."""
        self.statements_of: dict[str, Callable[[Node], None]] = {
            "if_statement": self._if,
            "case_statement": self._case,
            "for_statement": self._for,
            "c_style_for_statement": self._while,
            "while_statement": self._while,
            "function_definition": self._define,
            "variable_assignment": self.words.assign,
            "declaration_command": self.words.declare,
            "unset_command": self._unset,
            "command": self._command,
            "list": lambda node: void(self._status(node)),
            "pipeline": self._pipeline,
            "subshell": self._subshell,
            "redirected_statement": self._redirected,
            "test_command": lambda node: void(self._status(node)),
            "ERROR": self._error,
        }

    def start(self, text: str) -> None:
        self.source = text.encode()
        root = self._parsed()
        try:
            self._block(root)
        except _LeavingError:
            pass
        except RecursionError:
            raise ConfigError(f"{self.place}: is nested too deep") from None

    def _parsed(self) -> Node:
        source, started = self.source, time.thread_time()
        try:
            # tree-sitter asks whether to go on only while it reads through a function.
            tree = BASH.parse(
                lambda offset, _: source[offset : offset + 65_536],
                progress_callback=lambda *_: self.parsing_s + time.thread_time() - started > MOST_PARSING_S,
            )
        except ValueError:
            raise ConfigError(f"{self.place}: has brackets or quotes that do not close, which is no script") from None
        finally:
            BASH.reset()
            self.parsing_s += time.thread_time() - started
        # A node of that tree finds its text by reading from the start; one of bytes has it, and the old tree is reused.
        return BASH.parse(source, tree).root_node

    def _block(self, node: Node) -> None:
        self._all(node.children)

    def _all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._run(node)

    def _run(self, node: Node) -> None:
        self.statements += 1
        if self.statements > MOST_STATEMENTS:
            raise ConfigError(f"{self.place}: has more than {MOST_STATEMENTS:,} statements with its loops")
        self.words.visit(node)
        self.depth += 1
        if self.depth > DEEPEST:
            raise ConfigError(f"{self.place}: is nested too deep")
        try:
            if known := self.statements_of.get(node.type):
                known(node)
            elif node.type == "compound_statement" and node.children[0].type == "((":
                self._status(node)
            elif node.type in ("negated_command", "compound_statement", "do_group", "variable_assignments"):
                self._block(node)
        finally:
            self.depth -= 1

    def _error(self, node: Node) -> None:
        self.script.unread.append(node.start_point[0] + 1)
        self._block(node)

    def _redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self._run(body)

    def _subshell(self, node: Node) -> None:
        before = self.words.copy()
        with suppress(_LeavingError):
            self._block(node)
        self.words.variables = before

    def _pipeline(self, node: Node) -> None:
        for part in node.children:
            before = self.words.copy()
            with suppress(_LeavingError):
                self._run(part)
            self.words.variables = before

    def _define(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[_text(name)] = body

    def _unset(self, node: Node) -> None:
        for child in node.children[1:]:
            self.words.variables.pop(_text(child), None)

    # Conditions

    def _status(self, node: Node, in_if: bool = False) -> bool | None:
        """Whether a statement succeeds, which may set variables; None: only a run could tell."""
        match node.type:
            case "test_command":
                return self._tested(node, in_if)
            case "negated_command":
                found = self._status(node.children[-1], in_if)
                return None if found is None else not found
            case "list":
                left, sign, right = node.children[0], node.children[1].type, node.children[-1]
                first = self._status(left, in_if)
                if first is None:
                    second = None
                    self._either(node, [(_text(left), lambda: void(self._status(right, in_if))), ("", lambda: None)])
                    return second
                if first is (sign == "&&"):
                    return self._status(right, in_if)
                return first
            case "compound_statement" if node.children[0].type == "((":
                try:
                    return self.words.number(node) != 0
                except UndecidedError:
                    return None
            case "command":
                name = _text(node.child_by_field_name("name") or node)
                if name in ("true", ":", "false"):
                    return name != "false"
                self._run(node)
                # Of what a script only does on its way the success is taken for granted; a question is open.
                return None if in_if or name in ("[", "test") else True
            case "redirected_statement":
                body = node.child_by_field_name("body")
                return self._status(body, in_if) if body is not None else True
            case "pipeline" if in_if:
                self._run(node)
                return None
        self._run(node)
        return True

    def _tested(self, node: Node, in_if: bool) -> bool | None:
        inner = [child for child in node.children[1:-1] if child.is_named]
        if not inner:
            return None
        with self.words.noted() as defaulted:
            found = self.words.condition(inner[-1], doubled=node.children[0].type == "[[")
        if found is not None and defaulted and in_if:
            self.script.by_default.setdefault(" ".join(_text(inner[-1]).split()), node.start_point[0] + 1)
        return found

    def _if(self, node: Node) -> None:
        branches: list[tuple[Node | None, list[Node]]] = [(node.child_by_field_name("condition"), [])]
        for child in node.children:
            if child.type == "elif_clause":
                named = [inner for inner in child.children if inner.is_named]
                branches.append((named[0], named[1:]))
            elif child.type == "else_clause":
                branches.append((None, list(child.children)))
            elif child.is_named and child != branches[0][0] and child.type != "comment":
                branches[0][1].append(child)
        open_ones: list[tuple[str, Callable[[], None]]] = []
        for condition, body in branches:
            decided = True if condition is None else self._status(condition, in_if=True)
            run = partial(self._all, body)
            if decided is False:
                continue
            if decided and not open_ones:
                run()
                return
            open_ones.append(("" if condition is None else _text(condition), run))
            if decided:
                break
        else:
            open_ones.append(("", lambda: None))
        if len(open_ones) > 1:
            self._either(node, open_ones)

    def _case(self, node: Node) -> None:
        with self.words.noted() as defaulted:
            value = self.words.text(node.child_by_field_name("value") or node.children[1])
        if defaulted and not is_open(value):
            self.script.by_default.setdefault(f"{_text(node.children[1])} is {value}", node.start_point[0] + 1)
        open_ones: list[tuple[str, Callable[[], None]]] = []
        for item in node.children:
            if item.type != "case_item":
                continue
            end = next((place for place, child in enumerate(item.children) if child.type == ")"), len(item.children))
            patterns = [child for child in item.children[:end] if child.type not in ("|", "(")]
            body = item.children[end + 1 :]
            run = partial(self._all, body)
            texts = [pattern_of(self.words.atoms(pattern)) for pattern in patterns]
            everything = any(text == "*" for text in texts)
            if is_open(value) and not everything:
                open_ones.append((f"{_text(node.children[1])} in {' | '.join(map(_text, patterns))}", run))
            elif everything or any(matches(value, text) for text in texts):
                if not open_ones:
                    run()
                    return
                open_ones.append(("", run))
                break
        else:
            open_ones.append(("", lambda: None))
        if len(open_ones) > 1:
            self._either(node, open_ones)

    def _either(self, node: Node, branches: Sequence[tuple[str, Callable[[], object]]]) -> None:
        """Walks branches of which the script does not decide, each from the same variables, and joins what they set."""
        before, line, found = self.words.variables, node.start_point[0] + 1, []
        ended: list[_LeavingError] = []
        for condition, run in branches:
            self.words.variables = before
            self.words.variables = self.words.copy()
            words = " ".join(condition.split()) or "otherwise"
            self.branch.append(f"line {line}, {words if len(words) <= 60 else words[:57] + '...'}")
            try:
                run()
                found.append(self.words.variables)
            except _LeavingError as end:
                ended.append(end)
                self.may_leave |= end.kind != "continue"
                if end.kind == "exit" and self.script.may_end is None:
                    self.script.may_end = len(self.script.commands)
            finally:
                self.branch.pop()
        if not found:
            raise ended[0]
        joined: dict[str, Value] = {}
        for name in dict.fromkeys(name for state in found for name in state):
            values = [state.get(name) for state in found]
            joined[name] = self.words.joined(values, line)
        self.words.variables = joined

    # Loops

    def _for(self, node: Node) -> None:
        body, name = node.child_by_field_name("body"), node.child_by_field_name("variable")
        if body is None or name is None:
            return
        places = [child for child in node.children if child.is_named and child not in (body, name)]
        items = self.words.fields_of(places)
        for item in items:
            self.words.variables[_text(name)] = item
            if not self._body(body):
                return

    def _while(self, node: Node) -> None:
        body, condition = node.child_by_field_name("body"), node.child_by_field_name("condition")
        start, step = node.child_by_field_name("initializer"), node.child_by_field_name("update")
        if body is None:
            return
        arithmetic = node.type == "c_style_for_statement"
        wanted = node.children[0].type != "until"
        try:
            if start is not None:
                self.words.number_of(start)
            while True:
                go_on = (
                    self.words.number_of(condition) != 0
                    if arithmetic and condition
                    else (self._status(condition, in_if=True) if condition is not None else None)
                )
                if go_on is None:
                    self._either(node, [(_text(condition or node), lambda: self._body(body)), ("", lambda: None)])
                    return
                if go_on is not wanted or not self._body(body):
                    return
                if step is not None:
                    self.words.number_of(step)
        except UndecidedError:
            self._either(node, [("the loop", lambda: self._body(body)), ("", lambda: None)])

    def _body(self, body: Node) -> bool:
        """Runs the body of a loop once; False: it is left."""
        before, self.may_leave = self.may_leave, False
        try:
            self._run(body)
            return not self.may_leave
        except _LeavingError as end:
            if end.kind not in ("break", "continue"):
                raise
            return end.kind == "continue"
        finally:
            self.may_leave = before

    # Commands

    def _command(self, node: Node) -> None:
        left_out = ("variable_assignment", "file_redirect", "heredoc_redirect", "herestring_redirect")
        words: list[Node] = []
        for child in node.children:
            # After `kill -9` the grammar misses the end of the line.
            if words and re.search(rb"(?<!\\)\n", self.source[words[-1].end_byte : child.start_byte]):
                self._simple(node, words)
                words = []
            if child.type not in left_out:
                words.append(child)
        self._simple(node, words)

    def _simple(self, node: Node, words: Sequence[Node]) -> None:
        fields = self.words.fields_of(words)
        if re.match(rb"[ \t]*\\ (?:[ \t]+#|[ \t]*(?:\n|$))", self.source[node.end_byte :][:80]):
            fields.append(" ")  # a backslash before a blank instead of the end of its line, which the grammar drops
        if not fields:
            return
        name, arguments = fields[0], fields[1:]
        match name:
            case "exit" | "return" | "break" | "continue":
                raise _LeavingError(name)
            case "shift":
                count = int(arguments[0]) if arguments and arguments[0].isdigit() else 1
                self.words.arguments = self.words.arguments[count:]
            case "set" if "--" in arguments:
                self.words.arguments = arguments[arguments.index("--") + 1 :]
            case "set" | "[" | "test" | "let":
                return
            case "read" | "mapfile" | "readarray":
                for argument in arguments:
                    if re.fullmatch(r"[A-Za-z_]\w*", argument):
                        self.words.variables[argument] = self.words.left_open(f"${argument}")
            case "eval":
                self._nested(" ".join(arguments))
            case "bash" | "sh" if "-c" in arguments[:2] and len(arguments) > arguments.index("-c") + 1:
                self._subshell_of(arguments[arguments.index("-c") + 1])
            case _ if name in self.functions:
                self._call(name, arguments)
            case _ if name in WRAPPERS:
                self._record(node, self._wrapped(fields))
                if name == "exec" and arguments:
                    raise _LeavingError("exit")
            case _:
                self._record(node, fields)

    def _record(self, node: Node, fields: Sequence[str]) -> None:
        if fields:
            self.words.count(sum(map(len, fields)))
            branch = "; ".join(self.branch)
            self.script.commands.append(Command(tuple(fields), node.start_point[0] + 1, branch))

    @staticmethod
    def _wrapped(fields: Sequence[str]) -> Sequence[str]:
        """The command that a wrapper starts: the first word that is no flag, no setting and no duration."""
        rest = list(fields)
        while rest and (rest[0] in WRAPPERS or re.match(r"-|\w+=|\d+[smh]?$", rest[0])):
            rest.pop(0)
        return rest

    def _nested(self, text: str) -> None:
        if is_open(text):
            return
        self.words.count(len(text))
        before, self.source = self.source, text.encode()
        self._run_all(self._parsed())
        self.source = before

    def _run_all(self, node: Node) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ConfigError(f"{self.place}: is nested too deep")
        self._block(node)
        self.depth -= 1

    def _subshell_of(self, text: str) -> None:
        before = self.words.copy()
        with suppress(_LeavingError):
            self._nested(text)
        self.words.variables = before

    def _call(self, name: str, arguments: list[str]) -> None:
        before, self.words.arguments = self.words.arguments, arguments
        try:
            self._run(self.functions[name])
        except _LeavingError as end:
            if end.kind != "return":
                raise
        finally:
            self.words.arguments = before


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def void(_: object) -> None:
    """For a callback whose result nobody asks for."""
