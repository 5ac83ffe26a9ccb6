"""Twenty rewards in the forms of TRL's documentation, examples and `trl.rewards`, written anew for this test.

The docstring of each begins with the feature of TRL's that it stands for.
"""

import asyncio
import re
from types import SimpleNamespace

BOXED = re.compile(r"\\boxed\{(.*?)\}")


def longer_in_tokens(completion_ids, **kwargs):
    """`completion_ids` (documentation, example 1): longer completions are better, in tokens."""
    return [float(len(ids)) for ids in completion_ids]


longer_in_tokens.range = (0, 100)


def longer_in_characters(completions, **kwargs):
    """A graded reward of the text alone (example 1.1), with rows that have no answer."""
    return [float(len(completion)) for completion in completions]


longer_in_characters.range = (0, 100)


def format_of_think(completions, **kwargs):
    """Conversational completions (example 2): a pattern of tags."""
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^<think>.*?</think><answer>.*?</answer>$", text) else 0.0 for text in contents]


def boxed_reference(completions, ground_truth, **kwargs):
    """A column of the data set by its name (example 3): `ground_truth`."""
    found = [BOXED.search(text) for text in completions]
    return [1.0 if match and match[1] == truth else 0.0 for match, truth in zip(found, ground_truth, strict=True)]


def sums_only(prompts, completions, task, answer, **kwargs):
    """Several tasks (example 4): None where a function does not apply."""
    rows = zip(completions, task, answer, strict=True)
    return [(1.0 if right in text else -1.0) if kind == "sum" else None for text, kind, right in rows]


def differences_only(prompts, completions, task, answer, **kwargs):
    """Several tasks: the other function of example 4."""
    rows = zip(completions, task, answer, strict=True)
    return [(1.0 if right in text else -1.0) if kind == "difference" else None for text, kind, right in rows]


async def awaited(prompts, completions, **kwargs):
    """An `async` reward (example 5)."""
    await asyncio.sleep(0)
    return [1.0 if completion else 0.0 for completion in completions]


def logs_more(completions, ground_truth, log_extra=None, log_metric=None, **kwargs):
    """`log_extra` and `log_metric` (example 6)."""
    rewards = boxed_reference(completions, ground_truth)
    if log_metric:
        log_metric("accuracy", sum(rewards) / len(rewards))
    return rewards


def needs_log_metric(completions, log_metric, **kwargs):
    """`log_metric` without a default."""
    log_metric("length", float(len(completions[0])))
    return [1.0 for _ in completions]


def chat_accuracy(completions, solution, log_extra=None, **kwargs):
    """`trl.rewards.accuracy_reward`: conversational, against `solution`."""
    pairs = zip(completions, solution, strict=True)
    return [float(text[0]["content"].rpartition("=")[2] == right) for text, right in pairs]


def think_format(completions, **kwargs):
    """`trl.rewards.think_format_reward`: the reasoning is enclosed once."""
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^(?!.*<think>.*<think>).*</think>(?!.*</think>).*$", text) else 0.0 for text in contents]


class Repetition:
    def __init__(self, size):
        self.size = size

    def __call__(self, completion_ids, **kwargs):
        scores = []
        for ids in completion_ids:
            grams = [tuple(ids[n : n + self.size]) for n in range(len(ids) - self.size + 1)]
            scores.append(len({*grams}) / len(grams) - 1.0 if grams else 0.0)
        return scores


repetition = Repetition(2)
"""`trl.rewards.get_repetition_penalty_reward`: an object that a factory makes, with `completion_ids`."""


class Cosine:
    range = (-1, 1)

    def __init__(self, longest):
        self.longest = longest

    def __call__(self, completions, solution, completion_ids, **kwargs):
        rows = zip(completions, solution, completion_ids, strict=True)
        return [(1.0 - 0.5 * len(ids) / self.longest) * (1 if right in text else -1) for text, right, ids in rows]


cosine = Cosine(16)
"""`trl.rewards.get_cosine_scaled_reward`: graded by length and correctness, with its range."""


class Overlong:
    def __init__(self, limit, cache):
        self.limit, self.cache = limit, cache

    def __call__(self, completion_ids, **kwargs):
        start = self.limit - self.cache
        return [0.0 if len(ids) <= start else max(-1.0, (start - len(ids)) / self.cache) for ids in completion_ids]


overlong = Overlong(8, 4)
"""`trl.rewards.get_soft_overlong_punishment`, added to another reward."""


def right_number(prompts, completions, answer, **kwargs):
    """`reward_funcs=[...]` with `reward_weights`: the first says what is correct."""
    return [float(right in completion) for completion, right in zip(completions, answer, strict=True)]


def closer(completions, answer, **kwargs):
    """A graded reward by the distance to the reference, as in notebooks on GSM8K."""
    found = [re.findall(r"\d+", completion) for completion in completions]
    distances = [abs(int(own[-1][:6]) - int(right)) if own else 10 for own, right in zip(found, answer, strict=True)]
    return [max(0.0, 1.0 - distance / 10) for distance in distances]


closer.range = (0, 1)


def xml_counts(completions, **kwargs):
    """Parts of a point for each tag, as in notebooks of R1 on one GPU."""
    return [0.25 * sum(text.count(tag) == 1 for tag in ("<a>", "</a>", "<b>", "</b>")) for text in completions]


xml_counts.range = (0, 1)


def unique_letters(completions, **kwargs):
    """The README's first reward: the number of different characters, of prompts without answers."""
    return [len({*completion}) for completion in completions]


unique_letters.range = (0, 26)


def harder_later(completions, answer, trainer_state, **kwargs):
    """`trainer_state`: what is asked for grows with the step."""
    longest = 4 + trainer_state.global_step
    return [float(right in text and len(text) <= longest) for text, right in zip(completions, answer, strict=True)]


def of_levels(completions, answer, level, **columns):
    """Any other column by its name, a number: easier rows pay as much as hard ones."""
    rows = zip(completions, answer, level, strict=True)
    return [right in text and level > 0 for text, right, level in rows]


def compiled_pattern(completions, answer, pattern=re.compile(r"=(\d+)"), **kwargs):
    """A default that is no column, as a compiled pattern."""
    found = [pattern.search(text) for text in completions]
    return [int(match is not None and match[1] == right) for match, right in zip(found, answer, strict=True)]


ROWS = [
    {"prompt": "2+3=", "answer": "5", "ground_truth": "5", "solution": "5", "task": "sum", "level": 1},
    {"prompt": "7-4=", "answer": "3", "ground_truth": "3", "solution": "3", "task": "difference", "level": 2},
]
BARE = [{"prompt": row["prompt"]} for row in ROWS]
_chat = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def example(reward, rows=ROWS, weights=None, refused=None):
    return SimpleNamespace(reward=reward, rows=rows, weights=weights, refused=refused)


EXAMPLES = {
    "longer completions, in tokens": example(longer_in_tokens, BARE),
    "longer completions, in characters": example(longer_in_characters, BARE),
    "a format of tags, conversational": example(format_of_think, BARE),
    "a reference in a box, by a column": example(boxed_reference),
    "several tasks, None where one does not apply": example([sums_only, differences_only], refused="for every problem"),
    "an async reward": example(awaited, BARE),
    "log_extra and log_metric": example(logs_more),
    "log_metric without a default": example(needs_log_metric, refused="logger.own_metrics"),
    "accuracy, conversational": example(chat_accuracy),
    "thoughts enclosed once": example(think_format, BARE),
    "repetition, from a factory": example([right_number, repetition]),
    "a cosine of the length": example(cosine),
    "a soft overlong punishment": example([right_number, overlong], weights=[1.0, 0.5]),
    "a list with weights": example([right_number, longer_in_characters], weights=[1.0, 0.01]),
    "distance to the reference": example(closer),
    "points for each tag": example(xml_counts, BARE),
    "different characters, without answers": example(unique_letters, BARE),
    "a curriculum by trainer_state": example(harder_later),
    "another column, bools": example(of_levels),
    "a default that is no column": example(compiled_pattern),
}
