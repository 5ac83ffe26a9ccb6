r"""Find the answer in a text that follows no template (`extraction: auto`).

The first of these that is found, after any `</think>`:

1. the last mark that is made for answers: `\boxed{...}`, with those just before it that a comma, `and` or `or` joins to
   it; the rest of the line after `####`; `<answer>` tags; the key `"answer"` of JSON; and after one of these a line
   `Answer:` or a `final answer is`, if a formula or a number is all that follows;
2. what follows the last `answer:` or `answer is` (also `Réponse:`, `答案`, ...), or an `A:` that starts the last line,
   up to the end of the sentence;
3. the whole text, if it is not prose;
4. the last formula between dollar signs or `\( \)`;
5. the last number, with its sign, currency and percent.

A dollar sign opens a formula as in Markdown: no digit may follow the closing one, and what starts with a digit may not
end in a space or an operator. So `$5 and gets $3` and `$20 - $13 = $7` are amounts of money. Calculator notes as in
GSM8K (`3+4=<<3+4=7>>7`) are left out.

Reading is generous, so a model is never trained on it by default: the templates of `templates.py` are strict.
"""

import re

from math_answers.marks import block_at
from math_answers.templates import MAX_ANSWER_CHARS, extract_hash, find_boxes, find_tags, first_number, last_number
from math_answers.tokens import words

TAIL_CHARS = 8000
"""The answer is looked for in this many characters at the end (boxes, tags, JSON: anywhere)."""
MAX_BARE_CHARS = 600
"""A longer text is prose."""

_THINK_END = "</think>"
_JOINED_BOXES = re.compile(r"[\s$.,;]*(?:[a-z]+\s+){0,2}(?:and|or|,|;)\s*(?:[a-z]+\s+){0,2}[\s$]*", re.IGNORECASE)
_TEX_JOINER = re.compile(r"\\(?:q?quad|text|mbox|,|;|!)|[{}]")
_MARKER = re.compile(
    r"(?:\b(?:final\s+answer|answers?|result|(?:correct|right|best)\s+(?:option|choice)|réponse|respuesta|resposta"
    r"|antwort|risposta|ответ)\b|答案】?|答え|回答|故选|정답|उत्तर)[*_\s]*"
    r"(?:to\s+[^.\n]{1,60}?\s)?"
    r"(?::|：|=|\b(?:is|are|est|es|ist)\b\s*:?|是|为|选|は|은|(?<=】)|(?=[$\\])|(?=[-+(]?[0-9][^\n]{0,20}(?:\n|$)))[*_\s]*"
    r"|\bsolutions?\s+(?:is|are)\b\s*:?\s*"
    r"|(?m:^)[ \t*_]*A[*_]*:(?=[^\n]*\s*\Z)[*_\s]*",
    re.IGNORECASE,
)
# After a box it says that another answer follows; the heading `**Final Answer**` above a box comes before it.
_LATER = re.compile(
    r"(?:\bfinal\s+answer(?:\s+is|[*_]*\s*:)|(?m:^)\W{0,6}answer[*_]*\s*:|最终答案(?:[:：]|[是为]))[*_:\s]*",
    re.IGNORECASE,
)
_KEY = re.compile(
    r'"(?:final[_ ])?answer"\s*:\s*(?:"(?P<text>(?:[^"\\]|\\.){0,2000})"|(?P<number>[-+0-9.,eE]+))', re.DOTALL
)
_CALCULATION = re.compile(r"<<[^<>\n]{1,300}>>")
_FORMULA = re.compile(
    r"""\$\$(?P<a>[^$]{1,1500}?)\$\$
      | (?<![\\$]) \$ (?![0-9][^$\n]{0,600}[-+*/=<(×÷−\s]\$) (?P<b>(?:\\\$|[^$\n]){1,600}?) (?<!\\) \$ (?![0-9])
      | \\\( (?P<c>.{1,600}?) \\\)
      | \\\[ (?P<d>.{1,1500}?) \\\]""",
    re.DOTALL | re.VERBOSE,
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TEXT_COMMAND = re.compile(r"\\(?:text|mbox|mathrm|textbf|operatorname|textit|begin|end)\s*\{[^{}]*\}")
_SENTENCE_END = re.compile(r"(?<=[^\s.])\.(?=\s+[A-Z]|\s*$)|\n\s*\n|\n|。|<\|")
_HOPE = re.compile(r"\.?\s*I hope it is correct.*", re.IGNORECASE | re.DOTALL)
_FORMULA_WORDS = words(
    """
    and or in sin cos tan cot sec csc log ln lg exp sqrt pi inf infinity arcsin arccos arctan asin acos atan sinh cosh
    tanh max min gcd lcm abs det mod binom floor ceil
    """
)
_COPULA = re.compile(r".*\b(?:is|are|equals?|be|was)\b:?\s+", re.DOTALL)
_FOREIGN = re.compile(r"[^\W\d_A-Za-z\u0370-\u03ff]")  # letters, neither Latin nor Greek


def find_answer(text: str) -> str | None:
    """The answer by the rules above, None if there is none."""
    _, mark, after = text.rpartition(_THINK_END)
    if mark:
        text = after
    position, marked = max(_boxes(text), _hashes(text), _tags(text), _key(text))
    if marked:
        return _later(text[position:][-TAIL_CHARS:]) or marked
    text = _CALCULATION.sub("", text[-TAIL_CHARS:])
    said = _after_marker(text)
    if said:
        return said
    bare = text.strip()
    if bare and len(bare) <= MAX_BARE_CHARS and not is_prose(bare):
        return bare
    return _last_formula(text) or last_number(text)


def find_reference(text: str) -> str:
    """The answer in a reference that may be a worked solution: only a box, `####` or a marker is looked for.

    >>> find_reference("3 + 4 = 7 apples. #### 7"), find_reference("5 red and 3 blue balls")
    ('7', '5 red and 3 blue balls')
    """
    _, marked = max(_boxes(text), _hashes(text), _tags(text))
    return marked or _after_marker(text[-TAIL_CHARS:]) or text


def is_prose(text: str) -> bool:
    """True if a text is sentences with mathematics in them, rather than one answer."""
    outside = _FORMULA.sub(" $ ", text)
    formulas = outside != text
    outside = _TEXT_COMMAND.sub(" ", outside)
    found = [word for word in _WORD.findall(outside) if word.lower() not in _FORMULA_WORDS]
    if len(_FOREIGN.findall(outside)) > 3:
        return True
    if formulas:
        return bool(found)
    return len(found) > 4 or (len(found) > 2 and any(character.isdigit() for character in outside))


Marked = tuple[int, str]
"""Where a mark ends, and what it marks; `NOTHING` if there is none."""
NOTHING: Marked = (-1, "")


def _hashes(text: str) -> Marked:
    """`####` and the rest of its line, but no heading of Markdown that follows a box."""
    position = text.rfind("####", max(0, len(text) - TAIL_CHARS))
    answer = extract_hash(_CALCULATION.sub("", text[position:])) if position >= 0 else None
    if not answer or (find_boxes(text, last=1) and not _is_value(answer)):
        return NOTHING
    return position, answer


def _tags(text: str) -> Marked:
    """The answer between tags, which may be a sentence with one in it."""
    found = find_tags(text)
    if found is None or len(found[1]) > MAX_ANSWER_CHARS or "<answer>" in found[1]:
        return NOTHING
    return found[0], find_answer(found[1]) or ""


def _key(text: str) -> Marked:
    r"""The value of the last key `"answer"`, its LaTeX with single backslashes."""
    keys = [*_KEY.finditer(text)] if 'answer"' in text else []
    if not keys:
        return NOTHING
    value = (keys[-1]["text"] or keys[-1]["number"] or "").replace('\\"', '"')
    return keys[-1].end(), value.replace("\\\\", "\\").strip()


def _later(text: str) -> str | None:
    """The answer behind the last `final answer is` or line `Answer:` of a text that follows another answer."""
    markers = list(_LATER.finditer(text))
    if not markers:
        return None
    sentence = _sentence(_HOPE.sub("", text[markers[-1].end() :]).strip())
    words = _WORD.findall(_FORMULA.sub(" ", sentence))
    return sentence if sentence and len(words) < 2 and _is_value(sentence) else None  # a unit is one word


def _is_value(answer: str) -> bool:
    """True for what cannot be words about an answer: a formula, a number, a letter of a choice."""
    return bool(re.match(r"(?![A-Za-z]{2})\S", answer)) and not is_prose(answer)


def _boxes(text: str) -> Marked:
    spans = find_boxes(text)
    if not spans:
        return NOTHING
    chosen = [spans[-1]]
    for start, end in reversed(spans[:-1]):
        between = text[end + 1 : chosen[0][0]].removesuffix("{").rstrip()
        between = _TEX_JOINER.sub(" ", re.sub(r"\\f?boxed$", "", between))
        if len(between) > 60 or not _JOINED_BOXES.fullmatch(between):
            break
        chosen.insert(0, (start, end))
    contents = [text[start:end].strip() for start, end in chosen]
    return spans[-1][1], ", ".join(dict.fromkeys(contents)) if len(contents) > 1 else contents[0]


def _after_marker(text: str) -> str | None:
    """The answer in the sentence after the last marker."""
    markers = list(_MARKER.finditer(text))
    if not markers:
        return None
    rest = _HOPE.sub("", text[markers[-1].end() :]).strip()
    if block := block_at(rest):
        return block
    if _FORMULA.match(rest):
        return _formulas(rest[:MAX_ANSWER_CHARS])
    sentence = _sentence(rest)
    if is_prose(sentence):
        sentence = _COPULA.sub("", sentence, count=1) or sentence
    if not sentence or not is_prose(sentence):
        return sentence or None
    return _formulas(sentence) or first_number(sentence.rpartition("=")[2]) or sentence


def _sentence(text: str) -> str:
    end = _SENTENCE_END.search(text)
    return text[: end.start() if end else MAX_ANSWER_CHARS].strip().strip("*").strip()


def _formulas(text: str) -> str | None:
    """The first formula of a sentence with those that `and`, `or` or a comma joins to it."""
    joined: list[str] = []
    position = 0
    for found in _FORMULA.finditer(text):
        between = text[position : found.start()].strip().lower()
        if joined and between not in (",", "and", "or", ", and", ", or", ";"):
            break
        joined.append(next(part for part in found.groups() if part is not None).strip())
        percent = re.match(r"\s*\\?%", text[found.end() :])
        if percent:
            joined[-1] += "%"
        position = found.end()
    return ", ".join(joined) or None


def _last_formula(text: str) -> str | None:
    formulas = [next(part for part in found.groups() if part is not None) for found in _FORMULA.finditer(text)]
    for formula in reversed(formulas):
        if not is_prose(formula) and "?" not in formula:
            return formula.strip()
    return None
