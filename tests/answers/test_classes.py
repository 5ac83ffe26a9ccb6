r"""Classes of answers that must not be taken for each other, each as a property of anything that a generator draws.

math_answers/README.md says: if the meaning is in doubt, the verdict is different. `DOUBTS` are the ways to leave it
in doubt.
"""

import unicodedata
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_equivalence import same

from math_answers.extraction import extract
from math_answers.quantity import read_quantity
from math_answers.rules import decide
from math_answers.templates import last_number

NUMBERS = st.one_of(st.integers(2, 999).map(str), st.decimals("0.1", "99", places=2).map(str))
DIGITS = st.integers(10, 66).filter(lambda n: set(str(n)) <= set("123456")).map(str)
"""Numerals of any base from 7 on."""

QUANTITIES = {
    "dollar": ("${}", r"\${}", "{} dollars", "USD {}", "{} USD", "US${}", r"\$ {}", "{} dollars in total"),
    "cent": ("{} cents", "{}¢", r"{}\text{ cents}"),
    "euro": ("€{}", "{} €", "{}€", "EUR {}", "{} euros", r"\euro {}"),
    "sterling": ("£{}", "GBP {}", r"\pounds {}", r"\text{£}{}"),
    "rupee": ("Rs. {}", "₹{}", "{} rupees"),
    "yen": ("{} yen", "JPY {}"),
    "yuan": ("{} yuan", "CNY {}", "RMB {}"),
    "percent": ("{}%", r"{}\%", "{} percent", r"{}\text{ percent}"),
    "degree": (r"{}^\circ", "{}°", "{} degrees", r"{}^{\circ}"),
    "radian": ("{} radians", r"{}\text{ rad}"),
    "celsius": ("{}°C", "{} degrees Celsius", r"{}^\circ\text{C}"),
    "fahrenheit": ("{}°F", r"{}^\circ\text{F}"),
    "metre": (r"{}\text{ m}", "{} meters", r"{}\,\mathrm{m}", "{} (m)", "{} (meters)"),
    "centimetre": ("{} cm", r"{}\text{ cm}", r"{} \, \mathrm{cm}", "{} (cm)", "{} [cm]", "{} (in centimeters)"),
    "area": ("{} cm^2", r"{}\text{ cm}^2", "{} square centimeters", "{} (cm^2)"),
    "weight": ("{} lbs", "{} (lb)"),
    "hour": ("{} hours", "{} hrs", r"{}\text{ hours}"),
    "speed": ("{} km/h", "{} kph", r"{}\text{ km/h}"),
    "apples": ("{} apples", "{} (apples)", r"{}\text{ apples}", r"{} \text{ (apples)}", "{} apples in total"),
    "oranges": ("{} oranges", "{} (oranges)", "{} [oranges]"),
    "base 7": ("{}_7", r"{}_{7}", "{} (base 7)"),
    "base 9": ("{}_9", "{} base 9"),
    "modulo 11": (r"{} \pmod{11}", r"{} \mod 11"),
    "morning": ("{}:00 am", "{}:00 a.m."),
    "evening": ("{}:00 pm", "{}:00 p.m."),
}
"""Kinds of quantity, each with its spellings."""
OPEN = ({"degree", "celsius"}, {"degree", "fahrenheit"})
"""Two kinds with a spelling that is both: a degree sign alone is any degree."""
KINDS = st.sampled_from(sorted(QUANTITIES))
PLACES = st.sampled_from(["{}", "x = {}", "({}, 3)", "{}; 7", r"\text{{Total}} = {}", "${}$", "**{}**", r"x < {}"])


@st.composite
def quantity(draw, kind: str, number: str) -> str:
    spelling = draw(st.sampled_from(QUANTITIES[kind]))
    return spelling.replace("{}", number)


@settings(max_examples=150)
@given(st.data(), DIGITS, KINDS, KINDS, PLACES)
def test_two_quantities_of_different_currency_unit_or_kind_are_different(data, number, kind, other, place):
    assume(kind != other and {kind, other} not in OPEN)
    first, second = (place.replace("{}", data.draw(quantity(k, number))) for k in (kind, other))
    assume(place != "${}$" or "$" not in first[1:-1] + second[1:-1])
    assert not same(first, second)


@settings(max_examples=150)
@given(st.data(), DIGITS, KINDS)
def test_two_spellings_of_one_quantity_are_equal_and_of_two_numbers_are_not(data, number, kind):
    first, second = (data.draw(quantity(kind, number)) for _ in range(2))
    assert same(first, second)
    assert not same(data.draw(quantity(kind, str(int(number) + 1))), second)


@settings(max_examples=150)
@given(st.data(), DIGITS, KINDS.filter(lambda kind: kind not in ("morning", "evening")))
def test_a_unit_on_one_side_only_is_dropped_in_brackets_or_not(data, number, kind):
    written = data.draw(quantity(kind, number))
    assert same(written, number)
    assert same(number, written)


@pytest.mark.parametrize("a", "$€£₹¥")
@pytest.mark.parametrize("b", "$€£₹¥%")
def test_the_rule_for_numbers_tells_currencies_apart_too(a, b):
    other = "5%" if b == "%" else f"{b}5"
    assert decide(f"{a}5", other, "numeric") == decide(other, f"{a}5", "numeric") == (a == b)
    assert decide(f"{a}5", "5", "numeric")


# --- sets ---------------------------------------------------------------------------------------------------------


@st.composite
def pieces(draw) -> list[tuple[int | None, int | None, bool, bool]]:
    """A union of intervals and points of the real line that do not touch; None is infinite."""
    ends = sorted(draw(st.sets(st.integers(-9, 9), min_size=1, max_size=4)))
    found, position = [], 0
    if draw(st.booleans()):
        found.append((None, ends[0], False, draw(st.booleans())))
        position = 1
    while position < len(ends):
        if draw(st.booleans()):
            found.append((ends[position], ends[position], True, True))
            position += 1
        elif position + 1 < len(ends):
            found.append((ends[position], ends[position + 1], draw(st.booleans()), draw(st.booleans())))
            position += 2
        else:
            found.append((ends[position], None, draw(st.booleans()), False))
            position += 1
    return found


def complement(union):
    gaps, low, closed = [], None, False
    for start, end, low_closed, high_closed in union:
        if start is not None:
            gaps.append((low, start, closed, not low_closed))
        low, closed = end, not high_closed
    if low is not None:
        gaps.append((low, None, closed, False))
    return gaps


def as_intervals(union) -> str:
    def interval(low, high, low_closed, high_closed):
        if low == high:
            return rf"\{{{low}\}}"
        opening, closing = "[" if low_closed else "(", "]" if high_closed else ")"
        start, end = (r"-\infty" if low is None else low), (r"\infty" if high is None else high)
        return f"{opening}{start},{end}{closing}"

    return r" \cup ".join(interval(*piece) for piece in union)


def as_inequalities(union) -> str:
    def condition(low, high, low_closed, high_closed):
        if low is None or high is None:
            sign = {(True, True): r"\le", (True, False): "<", (False, True): r"\ge", (False, False): ">"}
            return f"x {sign[low is None, high_closed or low_closed]} {high if low is None else low}"
        first, second = (r"\le" if closed else "<" for closed in (low_closed, high_closed))
        return f"{low} {first} x {second} {high}"

    return r" \text{ or } ".join(condition(*piece) for piece in union)


def as_exclusion(union) -> str:
    return rf"\mathbb{{R}} \setminus {as_intervals(complement(union))}"


def as_non_membership(union) -> str:
    return rf"x \notin {as_intervals(complement(union))}"


def spellings(union) -> list[str]:
    found = [as_intervals(union)]
    outside = complement(union)
    if len(outside) == 1:
        found += [as_exclusion(union), as_non_membership(union)]
    points = [low for low, high, *_ in outside if low == high]
    if points and len(points) == len(outside):
        listed = ", ".join(map(str, points))
        found += [rf"x \ne {listed}", rf"\mathbb{{R}} \setminus \{{{listed}\}}", rf"\mathbb{{R}} - \{{{listed}\}}"]
        found += [
            " and ".join(rf"x \ne {point}" for point in points),
            f"all real numbers except {' and '.join(map(str, points))}",
        ]
    if all(low != high for low, high, *_ in union):
        found.append(as_inequalities(union))
    return found


@settings(max_examples=150)
@given(st.data(), pieces())
def test_a_set_and_its_complement_are_different_however_both_are_spelled(data, union):
    assume(complement(union))
    first, second = (data.draw(st.sampled_from(spellings(part))) for part in (union, complement(union)))
    assert not same(first, second)
    assert not same(second, first)
    assert not same(first, "all real numbers")
    assert not same(r"\mathbb{R}", first)


@settings(max_examples=150)
@given(st.data(), pieces())
def test_two_spellings_of_one_set_are_equal(data, union):
    assume(complement(union))
    first, second = (data.draw(st.sampled_from(spellings(union))) for _ in range(2))
    assert same(first, second), (first, second)


@given(st.integers(1, 9))
def test_what_is_unequal_to_two_numbers_is_unequal_to_both(number):
    assert same(rf"x \ne \pm {number}", rf"x \ne {number}, -{number}")
    assert not same(rf"x \ne \pm {number}", rf"x \ne {number}")
    assert not same(rf"x \ne {number} \text{{ or }} x \ne -{number}", r"\mathbb{R}")


# --- statements ---------------------------------------------------------------------------------------------------

CONTRADICTIONS = (
    "{a} = {b}", "x = {a} = {b}", "x = {b} = {a}", r"x = {a} \approx {far}", r"{far} \approx {b}", "${a} = {b}$",
    r"\text{{Area}} = {a} = {b}", "No. This would lead to {a} = {b}.", "This would lead to {a} = {b}",
    "It cannot be that {b} = {b}", "No. This would lead to ${a}={b}$.", "x = {a}, y = {a} = {b}",
)  # fmt: skip


@given(st.integers(-99, 99), st.integers(-99, 99), st.sampled_from(CONTRADICTIONS))
def test_a_statement_that_contradicts_itself_is_no_answer(a, b, statement):
    assume(a != b)
    text = statement.format(a=a, b=b, far=a + b + 1000)
    for answer in (a, b, a + b + 1000):
        assert not same(text, str(answer)), text


NO_NAMES = (
    "not {}", "no {}", "{} is not", "more than {}", "less than {}", "at least {}", "at most {}", "up to {}", "some {}",
    "any {}", "about {}", "nearly {}", "either {}", "if {}", "maybe {}", "{} exceeds", "other than {}",
)  # fmt: skip
NAMED = (
    ("{} = 5", "5"),
    (r"{} \approx 5", "5"),
    (r"{} \equiv 5", "5"),
    (r"{} \in [1,5]", "[1,5]"),
    (r"{} \in \{{5\}}", "5"),
)


@given(st.sampled_from(NO_NAMES), st.sampled_from(("x", "AB", "the area", r"\text{the area}")), st.sampled_from(NAMED))
def test_words_that_deny_or_compare_are_no_name_whatever_sign_follows(words, name, named):
    statement, value = named
    assert same(statement.format(name), value)
    assert not same(statement.format(words.format(name)), value)
    assert not same(statement.format(rf"\text{{{words.format('')}}}{name}"), value)


@given(st.sampled_from(("area under the curve", "sum of all values of x", "least common multiple", "distance about O")))
def test_a_noun_phrase_names_a_quantity(name):
    assert same(f"{name} = 5", "5")


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 9))
def test_a_chain_of_equalities_is_its_last_side_where_another_side_confirms_it(a, b, c):
    assert same(f"{a} + {b} = {a + b}", str(a + b))
    assert same(rf"x = {a} + {b} = {a + b} \cdot {c} = {(a + b) * c}", str((a + b) * c))
    assert not same(f"{a} + {b} = {a + b + c}", str(a + b + c))


# --- expressions that break ---------------------------------------------------------------------------------------

ABSOLUTE = ("|{}|", r"\sqrt{{({})^2}}", r"\sqrt[4]{{({})^4}}")
LINEAR = (
    "{a}x + {b}",
    "{a}x - {b}",
    "{b} - {a}x",
    r"\frac{{x}}{{{a}}} + {b}",
    "{a}(x - {b})",
    "x - {b}y",
    "{a}n - {b}",
)


@settings(max_examples=100)
@given(
    st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(LINEAR),
    st.sampled_from(ABSOLUTE), st.sampled_from(ABSOLUTE),
)  # fmt: skip
def test_an_absolute_value_is_neither_of_its_branches_however_far_away_the_other_is(a, b, linear, first, second):
    inside = linear.format(a=a, b=b)
    for branch in (inside, f"-({inside})"):
        assert not same(first.format(inside), branch)
        assert not same(branch, first.format(inside))
        assert not same(f"{first.format(inside)} < 7", f"{branch} < 7")
    assert same(first.format(inside), second.format(f"-({inside})"))


# --- dashes -------------------------------------------------------------------------------------------------------

DASHES = ("–", "—", " – ")


@given(st.integers(0, 99), st.integers(1, 99), st.sampled_from(DASHES), st.sampled_from(["{}", "x = {}", "{} cm"]))
def test_a_dash_between_numbers_is_a_range_in_text_and_a_minus_in_mathematics(low, width, dash, place):
    high = low + width
    span = place.format(f"{low}{dash}{high}")
    for number in (low - high, high - low, low, high, low + high):
        assert not same(span, str(number))
        assert not same(str(number), span)
    assert same(span, place.format(f"{low} to {high}"))
    assert same(place.format(f"from {low} to {high}"), span)
    assert not same(span, place.format(f"{low} to {high + 1}"))
    assert not same(span, f"[{low}, {high}]")
    assert not same(span, f"{low}, {high}")
    assert same(f"${low}{dash}{high}$", str(low - high))
    assert same(f"${high} - {low}$", str(width))


@given(st.integers(0, 99), st.integers(1, 99))
def test_a_hyphen_between_ascending_numbers_is_no_difference_outside_a_formula(low, width):
    assert not same(f"{low}-{low + width}", str(-width))
    assert same(f"{low}-{low + width}", f"{low} to {low + width}")
    assert same(f"{low} - {low + width}", str(-width))
    assert same(f"${low}-{low + width}$", str(-width))
    assert same(f"{low + width}-{low}", str(width))


# --- numbers ------------------------------------------------------------------------------------------------------

LITERALS = (
    "{a}.{b}e-{c}", "{a}E{b}", "{a} {b:03}", "{a},{b:03}", "{a},{b:03},{c}", "{a}.{b}.{c}", "{a}:{b}", "{a}/{b}/{c}",
    "{a} {b}/{c}", "{a}{{,}}{b:03}", r"{a}\,{b:03}", "{a}^{b}", "{a}^{{{b}}}", r"{a} \times 10^{{-{b}}}", "{a}x10^{b}",
    r"\frac{{{a}}}{{{b}}}", r"{a}\sqrt{{{b}}}",
    r"\frac{{\sqrt{{{a}}}}}{{{b}}}", r"\frac{{{a}}}{{\sqrt{{{b}}}}}", r"{a}^{{\frac{{{b}}}{{{c}}}}}",
    "{a}√{b}", "{a}π", r"{a}\pi", "{a}½", "{a}⅜", "{a}²", "{a}₂",
    "{a} million", "{a}_{b:03}",
    "0.{b}...", "{a}'{b:03}", "{a}x", "{a}i", "2{a:03}-05-{c}1",
)  # fmt: skip


@settings(max_examples=150)
@given(
    st.integers(1, 99), st.integers(1, 99), st.integers(2, 9), st.sampled_from(LITERALS),
    st.sampled_from(["{}", "It is {}", "7 + 8 is {} apples", "So: {}.", "({})", "**{}**", "= -{}"]),
)  # fmt: skip
def test_a_number_is_read_whole_or_not_at_all(a, b, c, literal, place):
    written = literal.format(a=a, b=b, c=c)
    found = extract(place.format(written), "number")
    assert found is not None
    assert found.lstrip("-") == written
    read, whole = read_quantity(found), read_quantity(written)
    assert (read is None) == (whole is None)
    assert read is None or whole is None or abs(read.value) == abs(whole.value)


@given(st.integers(2, 9), st.sampled_from(["hundred", "thousand", "million"]), st.sampled_from(["thousand", "million"]))
def test_a_number_in_words_and_digits_is_read_whole(a, first, second):
    factor = {"hundred": 100, "thousand": 1000, "million": 10**6}
    value = a * factor[first] * factor[second]
    assert same(f"{a} {first} {second}", str(value))
    assert not same(f"{a} {first} {second}", str(a * factor[first]))
    assert not same(f"{a} {first} {second} dollars", str(a))


POSITIONED = [c for c in map(chr, range(0x3000)) if unicodedata.decomposition(c).split(" ")[0] in ("<super>", "<sub>")]
FRACTIONS = [c for c in map(chr, range(0x3000)) if unicodedata.decomposition(c).startswith("<fraction>")]


@given(st.integers(10, 99), st.sampled_from([c for c in POSITIONED if unicodedata.normalize("NFKC", c).isdigit()]))
def test_a_raised_or_lowered_digit_is_none_on_the_line(number, character):
    digit = unicodedata.normalize("NFKC", character)
    mark = "^" if unicodedata.decomposition(character).startswith("<super>") else "_"
    assert not same(f"{number}{character}", f"{number}{digit}")
    assert same(f"x{character}", f"x{mark}{digit}")
    if mark == "^" or set(str(number)) <= set(map(str, range(int(digit)))):
        assert same(f"{number}{character}", f"{number}{mark}{digit}")


@given(st.integers(1, 99), st.sampled_from([c for c in FRACTIONS if c != "⅟"]))
def test_a_fraction_of_one_character_is_its_value(number, character):
    value = Fraction(unicodedata.numeric(character)).limit_denominator(10)
    assert same(character, str(value))
    assert same(f"{number}{character}", str(number + value))
    assert same(f"4^{character}", f"4^{{{value}}}")


PARTS = {
    **{
        "halves": 2,
        "thirds": 3,
        "fifths": 5,
        "eighths": 8,
        "ninths": 9,
        "tenths": 10,
        "twelfths": 12,
        "sixteenths": 16,
    },
    **{"twentieths": 20, "ninetieths": 90, "hundredths": 100, "thousandths": 1000, "millionths": 10**6},
}


@given(
    st.integers(2, 99),
    st.sampled_from(sorted(PARTS)),
    st.sampled_from(("{0} {1}", "{0} {1} of a mile", r"{0}\text{{ {1}}}")),
)
def test_a_number_of_parts_is_a_fraction(number, part, place):
    written = place.format(number, part)
    assert same(written, str(Fraction(number, PARTS[part])))
    assert not same(written, str(number))
    assert not same(place.format(number, "hundred " + part), str(number))
    assert not same(place.format(number, "twenty-" + part), str(number))


ANOTHER_NUMBER = (
    "two", "tens", "degrees below zero", "times two", "times as many", "quarters", "third", "thousandth", "score",
    "gross", "doubled", "feet under the sea", "hundred million lakh", "miles and three", "apples, ten", "dollars (six)",
)  # fmt: skip


@given(st.integers(2, 99), st.sampled_from(ANOTHER_NUMBER), st.sampled_from(("{0} {1}", r"{0}\text{{ {1}}}")))
def test_words_that_say_another_number_are_no_unit(number, words, place):
    assert not same(place.format(number, words), str(number))


@given(st.integers(2, 9), st.integers(2, 9))
def test_digits_that_a_base_does_not_have_are_no_numeral(base, digit):
    assert same(f"1{digit}_{base}", f"1{digit}") == (digit < base)


# --- marks --------------------------------------------------------------------------------------------------------

MARKS = (
    "**{}**", "*{}*", "__{}__", "_{}_", "`{}`", "```{}```", '"{}"', "“{}”", "«{}»", "「{}」", "『{}』", "《{}》",
    "【{}】",
    "{}。", "{}।", "\u200b{}\ufeff", "\u200e{}", "\u2068{}\u2069", "{}\u00a0", "** {}", "{}**", "• {}", "***{}***",
)  # fmt: skip
FORMULAS = ("${}$", "$${}$$", r"\({}\)", r"\[{}\]", "$ {} $", r"$\boxed{{{}}}$", r"\boxed{{{}}}")
BLOCKS = (
    "\n$$\n{}\n$$", "\n\\[\n{}\n\\]", "\n\\(\n{}\n\\)", "\n$\n{}\n$", "\n\n$$ {}\n$$\n", "\n```\n{}\n```",
    "\n```text\n{}\n```",
    "\n\\begin{{equation}}\n{}\n\\end{{equation}}", "\n\\begin{{align*}}\n{}\n\\end{{align*}}",
)  # fmt: skip
FREE_TEXT = {
    "answer_line": ("Answer: {}", "**Answer:** {}", "**Answer**: {}", "**Answer: {}**", "### Answer: {}", "Answer：{}"),
    "hash": ("#### {}", "**#### {}**", "####{}"),
    "boxed": (r"\boxed{{{}}}", r"**$\boxed{{{}}}$**"),
    "auto": ("The answer is {}", "**Answer:** {}"),
}
"""Extractions that read free text, with the ways in which models write the marker."""
RULES = ("numeric", "dapo", "sympy")


@settings(max_examples=150)
@given(NUMBERS, st.sampled_from(sorted(FREE_TEXT)), st.sampled_from(RULES), st.data())
def test_marks_around_an_answer_are_no_part_of_it_for_any_rule(number, extraction, rule, data):
    marks = data.draw(st.lists(st.sampled_from(MARKS), max_size=2))
    written = number
    for mark in marks:
        written = mark.format(written)
    if rule != "dapo" or extraction != "auto":
        written = data.draw(st.sampled_from(("{}", *FORMULAS))).format(written) if not marks else written
    response = "So we get this.\n" + data.draw(st.sampled_from(FREE_TEXT[extraction])).format(written)
    found = extract(response, extraction)
    assert found is not None
    assert decide(found, number, rule), (response, found)


@settings(max_examples=150)
@given(NUMBERS, st.sampled_from(("answer_line", "hash", "auto")), st.sampled_from(RULES), st.sampled_from(BLOCKS))
def test_a_formula_on_lines_of_its_own_is_found_for_any_rule(number, extraction, rule, block):
    marker = {"answer_line": "Answer:", "hash": "####", "auto": "The answer is:"}[extraction]
    found = extract(f"So we get this.\n{marker}{block.format(number)}", extraction)
    assert found is not None
    assert decide(found, number, rule), found


# --- sentences ----------------------------------------------------------------------------------------------------

BEFORE = (
    "",
    "The value is ",
    "the answer is ",
    "So we get ",
    "Thus, ",
    "We conclude that the sum is ",
    "The area equals ",
)
AFTER = ("", ".", " as the answer.", ", as required", " (which is in lowest terms)")
DENIED_BEFORE = (
    "not ", "The value is not ", "about ", "The value is approximately ", "twice ", "negative ", "It is at least ",
    "$7$ or ", "either ", "No. The value is ", "I doubt that the value is ", "one more than ", "3 times ", "$7$, so ",
)  # fmt: skip
DENIED_AFTER = (
    " or so", " or $7$", " squared", " is wrong", " is not the answer", ", but not always", " if positive", " or 7",
    " less one", ", which is false", " more than before", " (not $7$)", " is twice the answer",
)  # fmt: skip


@given(st.integers(100, 999), st.sampled_from(BEFORE), st.sampled_from(AFTER), st.sampled_from(("${}$", r"\({}\)")))
def test_a_sentence_that_states_one_formula_is_that_formula(number, before, after, formula):
    found = extract(f"Answer: {before}{formula.format(number)}{after}", "answer_line")
    assert found is not None
    assert same(found, str(number)), found
    assert not same(found, str(number + 1))


@given(st.integers(100, 999), st.data())
def test_a_sentence_that_denies_or_changes_its_formula_states_nothing(number, data):
    if data.draw(st.booleans()):
        before, after = data.draw(st.sampled_from(DENIED_BEFORE)), data.draw(st.sampled_from(AFTER))
    else:
        before, after = data.draw(st.sampled_from(BEFORE)), data.draw(st.sampled_from(DENIED_AFTER))
    found = extract(f"Answer: {before}${number}${after}", "answer_line")
    assert found is not None
    assert not same(found, str(number)), found


def test_a_unit_after_a_formula_still_counts():
    assert not same("$9$ (apples)", "9 oranges")
    assert not same("The length is $9$ cm", "9 m")


# --- doubt --------------------------------------------------------------------------------------------------------

DOUBTS = (
    "{a} or {b}", "{a} and {b}", "{a}, {b}", "{a} / or {b}", r"{a} \pm {b}", "{a}–{b}", "{a} to {b}", "{a} = {b}",
    "{b} = {a}", r"{a} \ne {b}", "> {a}", r"\ge {a}", "< {a}", r"x \ne {a}", r"\ne {a}", "not {a}", "{a} or more",
    "at least {a}", "at most {a}", "about {a}", "more than {a}", "less than {a}", "maybe {a}", "{a} (wrong)",
    "{a} (not {b})",
    "{a} or so, perhaps {b}", "{a}; {b}", "({a}, {b})", "{a} {b}", "{a} {b} {a}", "{a} / {b} / {a}", "{a}:{b}:{a}",
    "(A) {a} (B) {b}", "{a} (A) or {b} (B)", "x = {a} or x = {b}", r"x \in \{{{a}, {b}\}}", "[{a}, {b}]", "x > {a}",
    "either {a} or {b}", "{a} unless {b}", "{a}, but {b} if negative", "{b} - {a} ?= {a}", "no {a}", "{a} squared",
    r"{a} \text{{ or }} {b}", r"{a} \lor {b}", "x = {a} and x = {b}", "x = {a}, y = {b}", "{a} {b}/{a}",
)  # fmt: skip


@settings(max_examples=150)
@given(st.integers(100, 999), st.integers(2, 9), st.sampled_from(DOUBTS), st.sampled_from(["{}", "${}$", "{}."]))
def test_if_the_meaning_is_in_doubt_the_verdict_is_different(a, factor, doubt, place):
    b = factor * a + 1  # longer, and no multiple
    written = place.format(doubt.format(a=a, b=b))
    for answer in (str(a), str(b)):
        assert not same(written, answer), written
        assert not same(rf"\boxed{{{written}}}", answer)
        assert decide(written, answer, "numeric") is False


def test_a_negative_reading_needs_a_number_before_the_dash():
    assert last_number("= –5") == "–5"
    assert decide("–5", "-5", "numeric")
    assert same("–5", "-5")
