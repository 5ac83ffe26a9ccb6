"""Reward functions as other trainers call them, and two whose scores depend on their batch."""


def verl(data_source, solution_str, ground_truth, extra_info=None):
    assert (data_source, extra_info["split"]) == ("mine", "train")
    return {"score": 1.5 if ground_truth in solution_str else -0.5, "acc": ground_truth in solution_str, "pred": "seen"}


async def verl_async(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return 1.0 if ground_truth in solution_str else 0.0


def verl_batch(data_sources, solution_strs, ground_truths, extra_infos):
    return [float(truth in text) for text, truth in zip(solution_strs, ground_truths, strict=True)]


def verl_other(data_source, solution_str, ground_truth, extra_info=None):
    return {"reward": 1.0}


def verl_sometimes(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0} if ground_truth in solution_str else {"reward": 0.0}


NO_VERDICTS = {"half": 0.5, "nan": float("nan"), "text": "False", "none": None}


def verl_acc(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.5, "acc": NO_VERDICTS.get(solution_str, True)}


def openrlhf_scores(queries, prompts, labels):
    texts = [query.removeprefix(prompt) for query, prompt in zip(queries, prompts, strict=True)]
    return {"rewards": [0.5] * len(texts), "scores": [NO_VERDICTS.get(text, 1.0) for text in texts]}


def trl_chat(completions, answer, **kwargs):
    return [float(right in chat[0]["content"]) for chat, right in zip(completions, answer, strict=True)]


def trl_solution(completions, solution, ground_truth, worked_solution):
    assert worked_solution == ["2 + 3 = <<2+3=5>>5"] * len(completions)
    assert solution == ground_truth
    return [float(text == right) for text, right in zip(completions, solution, strict=True)]


def trl_own_solution(completions, solution, answer):
    return [float(text == f"{own} {right}") for text, own, right in zip(completions, solution, answer, strict=True)]


def trl_prompts(prompts, completions, answer):
    return [
        float(p[-1]["content"] == "2 + 3?" and a in c[0].get("content"))
        for p, c, a in zip(prompts, completions, answer, strict=True)
    ]


async def trl_async(prompts, completions, answer, **kwargs):
    return [float(right in text) for text, right in zip(completions, answer, strict=True)]


def openrlhf(queries, prompts, labels, **kwargs):
    right = [label in query.removeprefix(prompt) for query, prompt, label in zip(queries, prompts, labels, strict=True)]
    return {"rewards": [2.0 * r - 1 for r in right], "scores": [float(r) for r in right], "extra_logs": {}}


def openrlhf_list(queries, prompts, labels):
    return [float(query == prompt + "it is 5") for query, prompt in zip(queries, prompts, strict=True)]


async def own_async(problems, completions):
    return [problem.answer in text for problem, text in zip(problems, completions, strict=True)]


def areal(prompt, completions, prompt_ids, completion_ids, answer):
    return 1.0


def longest(problems, completions):
    """1 for a completion at least as long as the mean of what it was given."""
    return [len(text) >= sum(map(len, completions)) / len(completions) for text in completions]


def longest_of_group(problems, completions, groups):
    assert groups == [[*range(len(completions))]]
    assert len({problem.id for problem in problems}) == 1
    if problems[0].sample and not problems[0].sample.startswith("-"):
        assert [int(problem.sample.rpartition("/")[2]) for problem in problems] == [0, 1, 2, 3]
    return longest(problems, completions)


def fails_on_plus(problems, completions, groups):
    if any("+" in text for text in completions):
        raise ArithmeticError("plus")
    return [True] * len(completions)


def longest_of_some_groups(problems, completions, groups):
    """No group of two of the four questions is mixed, so that a step has more groups under way than it needs."""
    found = longest_of_group(problems, completions, groups)
    return found if problems[0].id[-1] in "01" else [False] * len(completions)


def shortest_of_prompt(prompts, completions, answer, **columns):
    """TRL's signature, and a comparison with the other completions of a prompt that are in the call."""
    shortest = {p: min(len(c) for q, c in zip(prompts, completions, strict=True) if p == q) for p in prompts}
    return [float(a in c and len(c) == shortest[p]) for p, c, a in zip(prompts, completions, answer, strict=True)]


def graded(completions, **kwargs):
    return [float(text) for text in completions]


graded.range = (0, 1)


def badly_graded(completions, **kwargs):
    return [1.0 for _ in completions]


badly_graded.range = (1, 0)


def tokens_and_step(completions, completion_ids, trainer_state, **kwargs):
    step = trainer_state.global_step
    return [text == f"{len(ids)} tokens in step {step}" for text, ids in zip(completions, completion_ids, strict=True)]


def not_applicable(completions, **kwargs):
    return [None for _ in completions]
