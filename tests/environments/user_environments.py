"""Environments that the tests load by path."""

import os
import time


def echo(problem, responses):
    """Says how many turns there were, and what the last one was, until it is `stop`."""
    return None if responses[-1] == "stop" else f"{len(responses)}:{problem.answer}:{responses[-1]}"


class Counter:
    """Adds up what it is told."""

    def __init__(self, problem):
        self.total = int(problem.answer)

    def step(self, response):
        self.total += int(response)
        return str(self.total)


def obey(problem, responses):
    match responses[-1]:
        case "sleep":
            time.sleep(60)
        case "raise":
            raise RuntimeError("no answer to this")
        case "exit":
            os._exit(3)
        case "number":
            return 7
        case "nothing":
            return ""
        case "halves":
            return "a\ud800"
    return "well"


def of_one(problem):
    return None


class WithoutStep:
    def __init__(self, problem):
        pass


NUMBER = 3


def silent(problem, responses):
    return None


def speaks(problem, responses):
    """Of a random policy on four_sums: one in two turns gets one to three characters, two in three a small reward."""
    said, length = "".join(responses), len(responses[-1])
    return str(1000 + len(said))[-1 - len(said) % 3 :] if length % 2 else None, (length % 3 - 1) / 4096


def talks(problem, responses):
    """The same without rewards."""
    return speaks(problem, responses)[0]


def pays(problem, responses):
    match responses[-1]:
        case "nan":
            return None, float("nan")
        case "word":
            return "well", "much"
        case "list":
            return "well", [1]
    return (None, 1) if responses[-1] == "stop" else ("well", -0.25)


def breaks(problem, responses):
    if len(responses[-1]) % 4 == 1:
        raise RuntimeError("out of order")
    return None


def chatter(problem, responses):
    """Prints five megabytes."""
    for number in range(50):
        print(f"line {number} of {responses[-1]}", "." * 100_000, flush=True)
    return "well"


async def waits(problem, responses):
    return "77"


class Waiting:
    def __init__(self, problem):
        pass

    async def step(self, response):
        return "77", 0.5


def always_raises(problem, responses):
    raise KeyError("rubric")


def raises_on_junk(problem, responses):
    return str(int(responses[-1].strip("#")))


def never_the_same(problem, responses):
    return str(time.perf_counter_ns())


def never_ends(problem, responses):
    time.sleep(60)


def long_winded(problem, responses):
    return "9" * 500
