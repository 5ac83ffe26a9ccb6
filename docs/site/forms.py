r"""Which rule accepts which form of an answer, after which extraction: the rules themselves are asked."""

import json
from typing import get_args

from cells import ROOT

from math_answers import Extraction, Rule, equal, extract
from math_answers.forms import FORMS, OWN
from math_answers.rules import check_reference

EXTRACTIONS, RULES = get_args(Extraction), get_args(Rule)
PLACES = [example for form in FORMS for example in form.examples] + [("42 or 43", "42")]
"""Ends of a response, and its answer or another."""
CONTAINERS = {extraction: form.written for extraction, form in OWN.items()} | {"auto": OWN["boxed"].written}
"""How a response gives its answer to each extraction; to `auto` in a box, which marks its whole content."""
WRITTEN = (
    ("42", ("42.0", "042", "+42", "$42$", r"\text{42}", "\u201c42\u201d", "4.2e1", "84/2", r"\frac{84}{2}",
            r"\sqrt{1764}", "x = 42", "6 * 7 = 42", "42 cm", r"42\text{ cm}", "42 (apples)", "42 square",
            r"\$42", r"42\%", r"42^\circ", "42 or 43", "42, 42", "-42", "42!", "forty-two")),
    ("1/2", (r"\frac12", r"\dfrac{1}{2}", "0.5", ".5", "2/4", "50\\%", "0.50000000000000001", "0.51")),
    ("1,234", ("1234", "1{,}234", "1 234", "1.234", "1, 234")),
    ("(1, 2)", ("(1,2)", "1, 2", "(2, 1)", "[1, 2]", "(1, 4/2)")),
    (r"\sqrt{2}", (r"\sqrt2", r"2^{1/2}", r"\frac{2}{\sqrt{2}}", "1.41421356")),
)  # fmt: skip
"""References, and answers in other forms."""


def distinct() -> str:
    """Markdown: the distinct references of public sets that the rule counts as equal (benchmarks/references.py)."""
    found = json.loads((ROOT / "benchmarks" / "results" / "references.json").read_text(encoding="utf-8"))
    lines = [
        "| set | distinct references | equal pairs | confirmed by another reader | looked at by eye | unconfirmed |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        reviewed, unconfirmed = len(row["reviewed"]), len(row["unconfirmed"])
        confirmed = row["equal"] - reviewed - unconfirmed
        lines.append(f"| {name} | {row['references']:,} | {row['equal']} | {confirmed} | {reviewed} | {unconfirmed} |")
    return "\n".join(lines)


def table() -> str:
    """Markdown: a form a row, an extraction a column; in a cell the rules that count it as right."""
    names = " | ".join(f"`{name}`" for name in EXTRACTIONS)
    head = f"| reference | response | {names} |\n|---|---|{'---|' * len(EXTRACTIONS)}"
    places = [
        f"| {_code(answer)} | {_code(text)} | {' | '.join(accepting(text, answer, name) for name in EXTRACTIONS)} |"
        for text, answer in PLACES
    ]
    written = []
    for reference, answers in WRITTEN:
        for answer in answers:
            cells = [accepting(CONTAINERS[name].format(answer), reference, name) for name in EXTRACTIONS]
            written.append(f"| {_code(reference)} | {_code(answer)} | {' | '.join(cells)} |")
    return "\n".join(
        [
            "Where the answer is:", "", head, *places, "",
            "How it is written, where each extraction looks for it "
            f"({', '.join(_code(CONTAINERS[name].format('...')) for name in dict.fromkeys(EXTRACTIONS))}):",
            "", head, *written,
        ]
    )  # fmt: skip


def rows() -> str:
    """Markdown: the forms themselves, as `math_answers.forms` has them."""
    lines = ["| form | written | read by | asked for by the template |", "|---|---|---|---|"]
    for form in FORMS:
        read = ", ".join(f"`{name}`" for name in form.read_by)
        template = f"`{form.template}`, `{form.template}_base`" if form.template else ""
        lines.append(f"| {form.name.replace('_', ' ')} | {_code(form.written.format('42'))} | {read} | {template} |")
    return "\n".join(lines)


def responses() -> str:
    """Markdown: verdicts on published responses against their publishers' labels (benchmarks/responses.py)."""
    found = json.loads((ROOT / "benchmarks" / "results" / "responses.json").read_text(encoding="utf-8"))
    lines = [
        "| published | read by | responses | right | not in the form | wrong labels | choices | false positives | "
        "false negatives |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for source in found:
        for reading in source["readings"]:
            counts = [reading["responses"], reading["right"], reading["not in the form"]]
            counts += [sum(reading[key].values()) for key in ("wrong labels", "choices")]
            counts += [len(reading[key]) for key in ("false positives", "false negatives")]
            numbers = " | ".join(f"{count:,}" for count in counts)
            lines.append(f"| {source['source']} ({source['repository']}) | `{reading['extraction']}` | {numbers} |")
    return "\n".join(lines)


def differences() -> str:
    """Markdown: why verdicts and labels differ, whoever is right."""
    file = ROOT / "benchmarks" / "responses_reviewed.json"
    lines = ["| whose | why | responses |", "|---|---|---:|"]
    for who, reasons in json.loads(file.read_text(encoding="utf-8")).items():
        lines += [f"| {who} | {why.replace('|', chr(92) + '|')} | {len(names)} |" for why, names in reasons.items()]
    return "\n".join(lines)


def accepting(response: str, reference: str, extraction: Extraction) -> str:
    """The rules that count a response as right, in words."""
    answer = extract(response, extraction)
    if answer is None:
        return "no answer"
    usable = [rule for rule in RULES if check_reference(reference, rule) is None]
    right = [rule for rule in usable if equal(answer, reference, rule)]
    return "all" if len(right) == len(RULES) else ", ".join(right) or "none"


def _code(text: str) -> str:
    """Text as code in a cell; a line's end is shown."""
    shown = text.replace("\n", "⏎").replace("|", "\\|")
    return f"`{shown}`"
