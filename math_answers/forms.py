r"""The forms in which responses give their answer: one table.

A form is a place (`\boxed{}`, a line `Answer: `, tags) or a sentence around it. Its row says how a prompt asks for it,
how an answer is written in it, and which extractions find it there. Prompt templates, the checks before a run and the
tables in README.md are made of these rows; `tests/answers/test_forms.py` reads every example in every way.

A new form is a row here, and code (`templates.py`, `free_text.py`) only where no extraction reads it yet. A form
without an extraction of its own is read by `auto` alone; `Extraction` in `extraction.py` names those that have one.

`SPELLINGS` is the other half: how an answer is spelled once it is found.
"""

from dataclasses import dataclass

from math_answers.extraction import Extraction

STEP_BY_STEP = "Please reason step by step, and put your final answer within"


@dataclass(frozen=True)
class Form:
    name: str
    written: str
    """An answer in this form; `{}` is the answer."""
    read_by: tuple[Extraction, ...]
    """The extractions that find it, the form's own first."""
    examples: tuple[tuple[str, str], ...]
    """Ends of responses, and their answers; all but `number` of `read_by` find each, as one reading or another."""
    mark: str = ""
    """What a prompt that asks for this form has in it, as a pattern; empty: no prompt asks for it."""
    said: str = ""
    """The form in a message to people."""
    prompt: str = ""
    """A message that asks for it, with `{problem}`, which ships as a template; empty: none ships."""
    template: str = ""
    """The name of that template; NAME_base is the same text for policies without a chat template."""

    @property
    def extraction(self) -> Extraction:
        """The strictest that reads it: its own, or `auto`."""
        return self.read_by[0]


FORMS: tuple[Form, ...] = (
    Form(
        "answer_line",
        "Answer: {}",
        ("answer_line", "number", "auto"),
        (
            ("Answer: 42", "42"), ("**Answer:** 42", "42"), ("Answer: $42$", "42"), ("Answer:\n$$\n42\n$$", "42"),
            (r"Answer: \boxed{42}", "42"), ("Answer: 42\nor so", "42"), ("Answer: 41\nAnswer: 42", "42"),
            ("Answer: <answer>42</answer>", "42"), (r"It is \boxed{41}, no:" "\nAnswer: 42", "42"),
        ),
        mark=r"\bAnswer:",
        said='"Answer: ..."',
        # DAPO's own (arXiv 2503.14476), to the letter: one user message, no system prompt.
        prompt=(
            "Solve the following math problem step by step. The last line of your response should be of the form "
            "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{problem}\n\n"
            'Remember to put your answer on its own line after "Answer:".'
        ),
        template="dapo",
    ),
    Form(
        "boxed",
        r"\boxed{{{}}}",
        ("boxed", "number", "auto"),
        (
            (r"\boxed{42}", "42"), (r"$\boxed{42}$.", "42"), (r"\boxed{41} no, \boxed{42}", "42"),
            (r"#### Step 3" "\n" r"So it is \boxed{42}." "\n#### Explanation\nAs above.", "42"),
        ),
        mark=r"\\boxed\b",
        said=r"\boxed{}",
        # Customary for models that were tuned on mathematics (Qwen2.5-Math and others).
        prompt="{problem}\n\n" + STEP_BY_STEP + r" \boxed{}.",
        template="boxed",
    ),
    Form(
        "hash",
        "#### {}",
        ("hash", "number", "auto"),
        (
            ("#### 42", "42"), ("3 * 14 = <<3*14=42>>42\n#### 42", "42"), ("####\n\\[\n42\n\\]", "42"),
            (r"\boxed{41}? No." "\n#### 42", "42"), ("So our selection is option C. #### C", "C"),
        ),
        mark="####",
        said='"#### ..."',
    ),
    Form(
        "tags",
        "<answer>{}</answer>",
        ("tags", "number", "auto"),
        (
            ("<think>6 * 7</think><answer>42</answer>", "42"), ("</think>\n<answer>\n42\n</answer>", "42"),
            (r"</think> <answer> $\boxed{42}$ </answer>", "42"), (r"It is \boxed{41}. <answer>42</answer>", "42"),
            ("<answer>41</answer> <think>or not</think> <answer>42</answer>", "42"),
        ),
        mark="<answer>",
        said="<answer> tags",
        prompt=(
            "{problem}\n\nShow your reasoning in <think> </think> tags, and return the final answer in "
            "<answer> </answer> tags, for example <answer> 42 </answer>."
        ),
        template="tags",
    ),
    Form(
        "minerva",
        "Final Answer: The final answer is ${}$. I hope it is correct.",
        ("answer_line", "auto"),
        (
            ("Final Answer: The final answer is $42$. I hope it is correct.", "42"),
            ("Final Answer: The final answer is 42. I hope it is correct.", "42"),
            (r"so \boxed{255} left. Final Answer: The final answer is $10,455$. I hope it is correct.", "10455"),
        ),
        mark=r"I hope it is correct",
        said='"The final answer is ... I hope it is correct."',
    ),
    Form(
        "llama",
        r"Therefore, the final answer is: $\boxed{{{}}}$. I hope it is correct.",
        ("boxed", "number", "auto"),
        (
            (r"Therefore, the final answer is: $\boxed{42}$. I hope it is correct.", "42"),
            (r"The final answer is: $\boxed{\frac{84}{2}}$", "42"),
        ),
    ),
    Form(
        "sentence",
        "The answer is {}.",
        ("auto",),
        (
            ("The answer is 42.", "42"), ("Therefore, the answer is $42$ apples.", "42"), ("**42**", "42"),
            ("6 * 7 = 42", "42"), ("42", "42"), ("He has 42 apples in all.\nA: 42", "42"),
            (r"It is \boxed{41}. No, the final answer is 42.", "42"),
        ),
    ),
    Form(
        "json",
        '{{"reasoning": "...", "answer": "{}"}}',
        ("auto",),
        (
            ('{"reasoning": "6 * 7, so the answer is 42.", "answer": "42"}', "42"),
            ('```json\n{\n  "reasoning": "In 15 days.",\n  "answer": 42\n}\n```', "42"),
            ('{"answer": "41"}\nNo: {"final_answer": "\\\\frac{84}{2}"}', "42"),
        ),
        mark=r'"answer":',
        said='JSON with "answer"',
    ),
    Form(
        "choice",
        "The correct option is ({}).",
        ("auto",),
        (
            ("The correct option is B.", "B"), ("The best answer is (B).", "B"), ("Option B: 12 cm", "B"),
            ("B. 12 cm", "B"), ("B) 12 cm", "B"), ("(B) $12$", "B"), (r"\boxed{\text{(B) } 12}", "B"),
            (r"\boxed{B}", "(B) 12"), ("ANSWER: B", "B"), (r"\boxed{12}", "(B) 12"),
        ),
    ),
    Form(
        "chinese",
        "答案：{}",
        ("auto",),
        (
            ("答案：42", "42"), ("【答案】42", "42"), ("答案是４２。", "42"), ("因此，答案为 $42$。", "42"),
            (r"最终答案：\boxed{42}", "42"), ("所以一共有４２个苹果。", "42"), ("答案选（B）", "B"), ("故选：B．", "B"),
            ("（１，２）", "(1, 2)"), ("ｘ＝４２", "42"),
        ),
    ),
)  # fmt: skip

OWN: dict[Extraction, Form] = {form.read_by[0]: form for form in reversed(FORMS)} | {
    "number": Form("number", "{}", ("number", "auto"), (("6 * 7 = 42", "42"),))
}
"""The form that an extraction is for. `auto` reads all of them; its own here is a sentence."""
ASKED: tuple[Form, ...] = tuple(form for form in FORMS if form.mark)
"""Those that a prompt asks for in words that can be recognised."""

SPELLINGS = (
    "{}", "${}$", r"\({}\)", r"\[{}\]", r"\boxed{{{}}}", r"$\boxed{{{}}}$", "{}.", "**{}**", "x = {}", "n={}",
    "{0} = {0}", r"\text{{{}}}", r"\textbf{{{}}}", r"\mathbf{{{}}}", r"\mbox{{{}}}", r"\overline{{{}}}", "{{{}}}",
    "({})", r"\left({}\right)", r"\displaystyle {}", r"\frac{{{}}}{{1}}", r"\dfrac{{{}}}{{1}}", "{}/1", "{}.0", "0{}",
    "+{}", r"{}^\circ", "{} degrees", r"\${}", "{} dollars", r"{}\%", "{} cm", r"{}\text{{ cm}}", "{} units",
    r"{}\ \text{{ways}}", "{} apples", "{} points", r"\approx {}",
    "The value is ${}$.", "the answer is ${}$", "So we get ${}$ as the answer", "${}$ is the answer", r"So \({}\).",
    "${}$ (which is in lowest terms)", "${}$, as required",
)  # fmt: skip
"""An answer as models spell it, in whichever form; `{}` is the reference."""
