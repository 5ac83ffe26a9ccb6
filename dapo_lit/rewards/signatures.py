"""Loads reward functions, and calls those that were written for another trainer as that trainer calls them.

A function of this package is `reward(problems, completions)`; with a third parameter `groups` it gets whole groups.
TRL's, verl's and OpenRLHF's are told apart by the names of their parameters, plain or `async`. Any other is refused
with the lines that adapt it.
"""

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from ablations.errors import UserError
from dapo_lit.imports import module_file, named_object
from dapo_lit.rewards.functions import LEAVES_OUT, RewardFunction, RewardProblem, declared_range
from dapo_lit.rewards.score import Score

ANSWER_COLUMNS = ("answer", "solution", "ground_truth")
"""Names under which a function with TRL's signature finds the reference answer."""
GROUPS = "groups"
"""The parameter by which a function asks for whole groups: a list of the positions of each group's completions."""
IDS, STATE = "completion_ids", "trainer_state"
"""TRL's parameters for the tokens of each completion, and for the trainer's state, of which the step is given."""
NOT_GIVEN = {
    "log_metric": "a metric of your own is logger.own_metrics (docs/metrics.md); give it a default, =None",
    "log_extra": "the completions are in rollouts/ with every column; give it a default, =None",
}
"""Arguments that TRL gives a reward besides columns."""
VERL, VERL_BATCH = ("solution_str", "ground_truth"), ("solution_strs", "ground_truths")
OPENRLHF = ("queries", "prompts", "labels")
CHAT_ERRORS = ("string indices must be integers", "'str' object has no attribute 'get'")
"""What a function says that takes TRL's conversational completions, lists of messages, where it gets texts."""


class SignatureError(UserError, TypeError):
    """A reward function that cannot be called as any trainer calls it; the message says what adapts it."""


def load_function(path: str) -> RewardFunction:
    """The function at `package.module.function`, after its module's `prepare()` if there is one.

    Raises NamedError, SignatureError, or what `prepare()` raises.
    """
    function = named_object(path)
    if not callable(function):
        raise SignatureError(f"{path} is not a function but a {type(function).__name__}")
    prepare = getattr(sys.modules[path.rpartition(".")[0]], "prepare", None)
    if prepare is not None:
        prepare()
    return adapted(function, path)


def adapted(function: Callable[..., Any], path: str) -> RewardFunction:
    """The function as this package calls it, with its range if it has one."""
    try:
        bounds = declared_range(function)
    except ValueError as error:
        raise SignatureError(f"{path}: {error}") from None
    called = _adapted(function, path)
    if declared_range(called) != bounds:  # of an object, whose class has it
        vars(called)["range"] = bounds
    return called


def _adapted(function: Callable[..., Any], path: str) -> RewardFunction:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable written in C
        return function
    names = set(parameters)
    # The trainer's side has looked for it in the source, and sends what is no group where it found nothing.
    if GROUPS in names and not asks_for(path, GROUPS):
        module = path.rpartition(".")[0]
        raise SignatureError(
            f"{path} asks for `{GROUPS}`, and {module} does not define it with `def`: name the module that does, or "
            f"define a function there that passes `{GROUPS}` on"
        )
    function = awaited(function)
    adapter: Callable[..., RewardFunction] | None = None
    if names.issuperset(VERL) or names.issuperset(VERL_BATCH):
        adapter = as_verl_calls
    elif names.issuperset(OPENRLHF):
        adapter = as_openrlhf_calls
    elif "problems" not in names and ("prompts" in names or [*parameters][:1] in (["completions"], [IDS])):
        for name, remedy in NOT_GIVEN.items():
            if name in names and parameters[name].default is inspect.Parameter.empty:
                raise SignatureError(f"{path}: TRL gives {name}, and a reward here does not get it: {remedy}")
        adapter = as_trl_calls
    if adapter is as_trl_calls and parameters.get(IDS) and not asks_for(path, IDS):
        raise SignatureError(
            f"{path} asks for `{IDS}`, and {path.rpartition('.')[0]} does not define it with `def`: name the module "
            "that does"
        )
    if adapter is not None:
        return adapter(function, parameters)
    given: dict[str, Any] = {GROUPS: []} if GROUPS in names else {}
    try:
        inspect.Signature([*parameters.values()]).bind([], [], **given)
    except TypeError:
        shown = ", ".join(map(str, parameters.values()))
        module, _, name = path.rpartition(".")
        raise SignatureError(
            f"{path}({shown}) has none of the known signatures: (problems, completions), TRL's (prompts, completions, "
            "**columns), verl's (data_source, solution_str, ground_truth, extra_info), OpenRLHF's (queries, prompts, "
            f"labels). Adapt it in three lines: `from {module} import {name}`, `def reward(problems, completions):`, "
            f"`    return [{name}(...) for problem, text in zip(problems, completions)]`"
        ) from None
    if not given:
        return function

    @wraps(function)
    def with_groups(problems: Sequence[RewardProblem], texts: Sequence[str]) -> Any:
        return function(problems, texts, **{GROUPS: [[*range(len(texts))]]})

    return with_groups


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function that waits for what an `async` one, or an object with an `async` call, returns."""
    if not any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        return function

    async def waits(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(waits(*args, **kwargs))

    return call


def asks_for(path: str, name: str) -> bool:
    """True if the function's definition has a parameter of this name. Read from its source: this process imports no
    reward."""
    import ast

    from ablations.texts import read_bytes  # here: YAML would be loaded in every worker

    file, function = module_file(path), path.rpartition(".")[2]
    if file is None or file.suffix != ".py":
        return False
    try:
        tree = ast.parse(read_bytes(file))
    except (SyntaxError, ValueError):  # the worker that imports it says so
        return False
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if all(node.name != function for node in defined):  # an object of a class with `__call__`
        function = "__call__"
        defined = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(
        node.name == function and any(a.arg == name for a in (*node.args.args, *node.args.kwonlyargs))
        for node in defined
    )


def _passed(columns: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> Mapping[str, Any]:
    """The columns that the function takes by name: all of them where it has `**columns`."""
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return columns
    return {name: columns[name] for name in parameters if name in columns}


class TrainerState:
    """The part of TRL's `trainer_state` that a completion determines."""

    def __init__(self, global_step: int) -> None:
        self.global_step = global_step
        """The rollout step in which the completion was sampled; 0 where there is none, as in an evaluation."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer_state.{name}: a reward gets global_step only, its completion's rollout step")


def _step(problem: RewardProblem) -> int:
    return int(problem.sample.partition("/")[0] or 0)


def as_trl_calls(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> RewardFunction:
    """TRL: `(prompts, completions, **columns) -> list[float | None]`, by name; texts, or lists of messages where it
    asks for `completion[0]["content"]`."""
    takes_chats = False

    def call(problems: Sequence[RewardProblem], texts: Sequence[str]) -> Any:
        nonlocal takes_chats
        columns: dict[str, Any] = {name: [problem.answer for problem in problems] for name in ANSWER_COLUMNS}
        for name in dict.fromkeys(name for problem in problems for name in problem.meta):
            columns[name] = [problem.meta.get(name) for problem in problems]
        statements = [problem.problem for problem in problems]
        plain = columns | {"prompts": statements, "completions": list(texts), GROUPS: [[*range(len(texts))]]}
        own: dict[str, Any] = {IDS: [[*problem.ids] for problem in problems], STATE: TrainerState(_step(problems[0]))}
        plain |= {name: value for name, value in own.items() if name in parameters}
        chats = plain | {
            "prompts": [[{"role": "user", "content": statement}] for statement in statements],
            "completions": [[{"role": "assistant", "content": text}] for text in texts],
        }
        if not takes_chats:
            try:
                return function(**_passed(plain, parameters))
            except (TypeError, AttributeError) as error:
                if not str(error).startswith(CHAT_ERRORS):
                    raise
            takes_chats = True
        return function(**_passed(chats, parameters))

    @wraps(function)
    def of_steps(problems: Sequence[RewardProblem], texts: Sequence[str]) -> Any:
        steps: dict[int, list[int]] = {}
        for place, problem in enumerate(problems if STATE in parameters else ()):
            steps.setdefault(_step(problem), []).append(place)
        if len(steps) < 2:
            return call(problems, texts)
        found: list[Any] = [None] * len(texts)
        for places in steps.values():  # its state is that of one step
            scores = call([problems[place] for place in places], [texts[place] for place in places])
            for place, score in zip(places, scores, strict=True):
                found[place] = score
        return found

    vars(of_steps)[LEAVES_OUT] = True
    return of_steps


def as_verl_calls(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> RewardFunction:
    """verl: `(data_source, solution_str, ground_truth, extra_info)` of one completion, or of a batch with the plurals:
    a number, or `{"score": ..., "acc": ...}`, where `acc` says whether it is right."""
    of_batch = "solution_strs" in parameters

    @wraps(function)
    def call(problems: Sequence[RewardProblem], texts: Sequence[str]) -> Any:
        rows = [
            {
                "data_source": problem.meta.get("data_source"),
                "solution_str": text,
                "ground_truth": problem.answer,
                "extra_info": {**problem.meta, "index": problem.id},
            }
            for problem, text in zip(problems, texts, strict=True)
        ]
        if not of_batch:
            return [_of_verl(function(**_passed(row, parameters))) for row in rows]
        columns = {f"{name}s": [row[name] for row in rows] for name in rows[0]} if rows else {}
        return [_of_verl(result) for result in function(**_passed(columns, parameters))]

    return call


def _of_verl(result: Any) -> Any:
    if not isinstance(result, Mapping):
        return result
    if "score" not in result:
        # Not raised, which would leave the whole batch without a verdict.
        error = f"returned a dict with {', '.join(map(str, result))}, and verl's has `score`"
        return Score(False, 0.0, error=error)
    if "acc" not in result:
        return result["score"]
    answer = result.get("pred")
    # As they are: `call_function` judges what every signature returns, and bool("False") would be a verdict.
    return Score(result["acc"], result["score"], answer if isinstance(answer, str) else None)


def as_openrlhf_calls(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> RewardFunction:
    """OpenRLHF: `(queries, prompts, labels)`, a query being the prompt and its completion: numbers, or
    `{"rewards": ..., "scores": ...}`, where a score of 1 is right and one of 0 wrong."""

    @wraps(function)
    def call(problems: Sequence[RewardProblem], texts: Sequence[str]) -> Any:
        columns = {
            "queries": [problem.problem + text for problem, text in zip(problems, texts, strict=True)],
            "prompts": [problem.problem for problem in problems],
            "labels": [problem.answer for problem in problems],
        }
        result = function(**_passed(columns, parameters))
        if not isinstance(result, Mapping):
            return result
        rewards = result.get("rewards")
        if rewards is None or result.get("scores") is None:
            return rewards if rewards is not None else result.get("scores")
        pairs = zip(rewards, result["scores"], strict=True)
        return [Score(score, reward) for reward, score in pairs]  # as they are, like verl's `acc`

    return call
