"""Marks around an answer that are no part of it: emphasis and code of Markdown, quotation marks, full stops of other
scripts, characters that nothing shows, and the delimiters of a formula on lines of its own.
"""

import re

# zero-width and direction marks, the byte order mark, soft hyphens
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u00ad]")
_PAIRS = (
    *(("```", "```"), ("**", "**"), ("__", "__"), ("*", "*"), ("_", "_"), ("`", "`"), ('"', '"')),
    *(
        ("“", "”"),
        ("„", "“"),
        ("‘", "’"),
        ("«", "»"),
        ("‹", "›"),
        ("「", "」"),
        ("『", "』"),
        ("《", "》"),
        ("【", "】"),
        ("<answer>", "</answer>"),
    ),
)
_STOPS = "。．｡।॥۔"
# Half of a pair whose other half was cut off with the marker or the sentence: no answer starts with a times sign. One
# may end in a star (the conjugate `z^*`) or in `"`, but not after a digit, a bracket or another mark.
_OPEN_HALF = re.compile(r'^(?:[*`•"“„«‹「『《【]|__)\s*')
_CLOSED_HALF = re.compile(rf'\s*(?:\*\*|__|[`”»›」』》】]|(?<=[0-9)\]}}$%"*_`”’»›」』》】\s{_STOPS}])[*_"])$')

_DELIMITED = re.compile(r"\$\$([^$]+)\$\$|\\\(((?:(?!\\[()]).)+)\\\)|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL)
_BLOCK = re.compile(
    r"""\$\$(?P<dollars>.+?)\$\$ | \\\[(?P<brackets>.+?)\\\] | \\\((?P<parentheses>.+?)\\\)
      | (?<!\$)\$(?P<dollar>(?![^\S\n]*[-+]?[0-9.,]+\s)[^$]+?)\$    # `$18` is an amount; another may follow
      | ```[^\n`]*\n(?P<code>.+?)```
      | \\begin\{(?P<name>(?:equation|align|gather|displaymath|math)\*?)\}(?P<body>.+?)\\end\{(?P=name)\}""",
    re.DOTALL | re.VERBOSE,
)


def unmarked(text: str) -> str:
    r"""An answer without the marks around it; what is inside stays.

    >>> unmarked("** 42**"), unmarked("「42」。"), unmarked("`x_1`"), unmarked("z^*")
    ('42', '42', 'x_1', 'z^*')
    """
    body = _INVISIBLE.sub("", text).strip()
    shorter = True
    while shorter:
        before = body
        body = body.rstrip(_STOPS).rstrip()
        for opening, closing in _PAIRS:
            if len(body) > len(opening) + len(closing) and body.startswith(opening) and body.endswith(closing):
                body = body[len(opening) : -len(closing)].strip()
        if body == before:
            body = _OPEN_HALF.sub("", body)
        if body == before:
            body = _CLOSED_HALF.sub("", body)
        shorter = body != before
    return body


def in_dollars(answer: str) -> str:
    r"""With dollar signs for other delimiters around the whole, which the rule `dapo` does not know.

    >>> in_dollars(r"\[42\]"), in_dollars("$$42$$"), in_dollars(r"\(1\), \(2\)")
    ('$42$', '$42$', '\\(1\\), \\(2\\)')
    """
    found = _DELIMITED.fullmatch(answer)
    return f"${next(body for body in found.groups() if body is not None).strip()}$" if found else answer


def line_at(text: str, position: int) -> str:
    r"""What follows a marker: the rest of its line, or the formula or code on lines of its own that starts there.

    >>> line_at("Answer:\n$$\n42\n$$", 7), line_at("Answer: 42\nDone.", 7)
    ('42', '42')
    """
    return block_at(text[position:]) or text[position:].lstrip().split("\n", 1)[0].strip()


def block_at(text: str) -> str | None:
    """The formula or code that fills the first lines of a text, None if they are something else."""
    block = _BLOCK.match(text.lstrip())
    if block is None or "\n" not in block[0]:
        return None
    content = next(body for name, body in block.groupdict().items() if body is not None and name != "name")
    if block["code"] is None:
        content = re.sub("[–—]", "-", content)  # in a formula every dash is a minus
    after = text.lstrip()[block.end() :].split("\n", 1)[0]
    return " ".join(f"{content} {after}".split())
