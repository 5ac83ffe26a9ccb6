r"""The first and the last number of a text, each read whole: `3.5e-7`, `1 000 000`, `2\sqrt{3}`, `3 million`, `12:30`.

What is found need not be one number (`numeric` refuses `12:30` and `3 million`), but it is never a part of one: of
`10^6` neither 10 nor 6 is taken, of `1.234.567` neither piece.
"""

import re

from math_answers.quantity import ascii_digits

_MULTIPLE = r"(?:[ ](?:hundred|thousand|million|billion|trillion|dozen)s?\b)"
_BRACES = r"\{(?:[^{}]|\{[^{}]{0,100}\}){0,200}\}"
"""A group, which may hold groups: of `\frac{\sqrt{3}}{2}` the 2 is a part."""
_COMMAND = rf"\\(?:[dtc]?frac|sqrt|binom)(?:\[[^\[\]]{{0,20}}\])?(?:\s*{_BRACES}|[0-9])+"
_NUMBER = re.compile(
    rf"""
    (?<![A-Za-z0-9_.^])(?<![_^]\{{)                        # not in a name, a decimal or a power
    (?:(?:[-\u2212]|(?<![0-9][ ])–)?(?:\s?[$€£¥₹]\s?)?-?)  # sign and currency
    (?:
        [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?![0-9])                                # 2020-01-05
      | [0-9]{{1,3}}(?:[ \u00a0\u2009\u202f][0-9]{{3}})+(?![0-9/])(?:\.[0-9]+)?  # 1 000 000
      | [0-9]{{1,3}}(?:(?:\{{,\}}|,?\\[,!][ ]?)[0-9]{{3}})+(?![0-9])             # 1{{,}}000
      | [0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9]|,[0-9])(?:\.[0-9]+)?                # 1,000.5
      | (?=[0-9,]*,[0-9]{{3}}(?![0-9]))[0-9]+(?:,[0-9]+)+                        # 1,234,56: no number
      | [0-9]+[ ][0-9]+/[0-9]+                                                   # 1 1/2
      | [0-9]+(?:[.:'_/][0-9]+)+(?:\.\.\.|…)?                                    # 3.14, 3/4, 12:30, 1.234.567
      | [0-9]+,[0-9]{{1,2}}(?![0-9])                                             # 3,5
      | [0-9]+[ ]?{_COMMAND}                                                     # 2\sqrt{{3}}
      | {_COMMAND}
      | [0-9]*[½¼¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]
      | [0-9]+
      | \.[0-9]+
    )
    (?: [eE][-+]?[0-9]+(?![0-9A-Za-z])
      | \s?(?:\\times|\\cdot|[*x×·])\s?10\s?\^\s?(?:\{{[-+\u2212]?[0-9]+\}}|[-+\u2212]?[0-9]+)
      | \s?\^\s?(?:{_BRACES}|-?[0-9]+)
      | [⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+
      | (?:\\pi|\\sqrt|[π√])\w*
      | [xyzni](?![A-Za-z])
    )*
    {_MULTIPLE}*
    (?:\s?\\?%|\s?[€£¥₹₩₽¢])?
    """,
    re.VERBOSE,
)


def last_number(text: str) -> str | None:
    """The last number, with its sign, currency, fraction and percent.

    >>> last_number("from 1,200 to 3.5e-7"), last_number("It is 10^6"), last_number("12-25")
    ('3.5e-7', '10^6', '25')
    """
    numbers = list(_NUMBER.finditer(ascii_digits(text)))
    return numbers[-1].group().strip() if numbers else None


def first_number(text: str) -> str | None:
    """The first number, read like the last one."""
    found = _NUMBER.search(ascii_digits(text))
    return found.group().strip() if found else None
