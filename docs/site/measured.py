"""What benchmarks measured, in numbers of sentences (inline.py) and in tables (made.py).

Made of benchmarks/results, and of the JSON of simulations in benchmarks/.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from statistics import fmean, median
from typing import Any

import on_gpu
import pandas as pd
from cells import ROOT

BENCHMARKS = ROOT / "benchmarks"


@cache
def results(name: str) -> Any:
    """A benchmark's JSON, in benchmarks/results or, of a simulation, in benchmarks."""
    places = (BENCHMARKS / "results" / f"{name}.json", BENCHMARKS / f"{name}.json")
    return json.loads(next(place for place in places if place.is_file()).read_text(encoding="utf-8"))


def between(values: Iterable[float], shown: str, unit: str = "") -> str:
    """The range of some values.

    >>> between([1.62, 1.58, 1.71], ".1f", " times"), between([0.031, 0.034], ".0%")
    ('1.6 to 1.7 times', '3 %')
    """
    least, most = (format(end, shown).replace("%", "") for end in _ends(values))
    unit = " %" if shown.endswith("%") else unit
    return (least if least == most else f"{least} to {most}") + unit


def _ends(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return min(found), max(found)


# Rules of the reward (benchmarks/verify.py)


def agreement() -> str:
    """Markdown: agreement with labelled triples."""
    found = results("verify")
    lines = ["| | agreement | false positives | false negatives |", "|---|---:|---:|---:|"]
    for rule, name in {
        "sympy": "`sympy`",
        "math-verify": f"math-verify {found['machine']['math-verify']}",
        "dapo": "`dapo`",
    }.items():
        row = found["agreement"][rule]
        lines.append(
            f"| {name} | {100 * row['agreement']:.1f} % | {row['false_positives']} | {row['false_negatives']} |"
        )
    return "\n".join(lines)


# Scripts of other trainers (benchmarks/convert_scripts.py)


def scripts_read() -> str:
    """Markdown: what convert reads of public shell scripts, and what bash passes."""
    lines = [
        "| scripts of | scripts | commands | words | of them open | different from bash | refused |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in results("convert_scripts"):
        numbers = (f"{row[key]:,}" for key in ("scripts", "commands", "words", "open", "different", "refused"))
        lines.append(f"| {' | '.join([row['folder'], *numbers])} |")
    return "\n".join(lines)


# TRL's rewards (benchmarks/trl_examples.py)


def trl_examples() -> str:
    """Markdown: what becomes of rewards in TRL's forms."""
    lines = ["| reward | trains | |", "|---|---|---|"]
    for row in results("trl_examples"):
        lines.append(f"| {row['example']} | {'yes' if row['trains'] else 'no'} | {row['said'].replace('|', '/')} |")
    return "\n".join(lines)


# Published logs (benchmarks/finished_logs.py)


def finished_logs() -> str:
    """Markdown: sets of public logs by repository and layout, and how many of each kind are read; and what was read of
    the later ones before anything was mended for them."""
    kinds = ("answered", "in part", "asked", "wrong")
    found: dict[tuple[str, str], list[str]] = {}
    rows = results("finished_logs")
    first = [row["first"] for row in rows if "first" in row]
    for row in rows:
        found.setdefault((f"{row['repository']}@{row['commit'][:8]}", row["what"]), []).append(row["verdict"])
    lines = [f"| repository | layout | sets | {' | '.join(kinds)} |", f"|---|---|{'---:|' * (len(kinds) + 1)}"]
    for (repository, what), verdicts in found.items():
        counts = " | ".join(str(verdicts.count(kind)) for kind in kinds)
        lines.append(f"| {repository} | {what} | {len(verdicts)} | {counts} |")
    every = [verdict for verdicts in found.values() for verdict in verdicts]
    totals = " | ".join(str(every.count(kind)) for kind in kinds)
    lines += [f"| all | | {len(every)} | {totals} |"]
    if first:
        said = ", ".join(f"{first.count(kind)} {kind}" for kind in kinds)
        lines += [
            "",
            f"The last {len(first)} sets were chosen and counted before they were read. The reader as it was then: "
            f"{said}. It was changed for them afterwards, and the table has its present verdicts.",
        ]
    return "\n".join(lines)


# The first minutes and what `ablate` promises (benchmarks/first_run.py, benchmarks/estimates.py)


def first_minutes() -> str:
    """Markdown: README's two commands, seconds to each event."""
    found = results("first_run")
    events = {"first_line": "first line", "first_point": "first point of a curve", "whole": "end"}
    machine = f"{found['machine']['processor']}, {found['machine']['cores']} cores"
    lines = [f"| {machine} | | s | processor s |", "|---|---|---:|---:|"]
    for command, name in {"first": "`make train`", "second": "README's study"}.items():
        row = found[command]
        lines += [
            f"| {name} | {said} | {row[event]:.0f} | {row[f'{event}_processor']:.0f} |"
            for event, said in events.items()
            if event in row
        ]
    return "\n".join(lines)


def estimates() -> str:
    """Markdown: tokens and seconds that `ablate` promised of small studies, and what they used."""
    lines = ["| study | runs | tokens promised | used | ratio | s promised | used | ratio |", "|---|" + "---:|" * 7]
    for row in results("estimates")["studies"]:
        promised, used = row["promised"], row["used"]
        cells = [f"{of[key]:,.0f}" for key in ("tokens", "seconds") for of in (promised, used)]
        ratios = [f"{promised[key] / used[key]:.2f}" for key in ("tokens", "seconds")]
        shown = [row["study"], str(used["runs"]), *cells[:2], ratios[0], *cells[2:], ratios[1]]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


# TRL (benchmarks/vs_trl.py)


def _rate(turn: list[dict[str, Any]]) -> float:
    return sum(step["tokens"] for step in turn) / sum(step["seconds"] for step in turn)


def rates_of_trl(work: str, side: str = "dapo_lit") -> list[float]:
    """Our rate over that of TRL's fastest setting, in each turn."""
    turns = results("vs_trl")["results"][work]["turns"]
    peer = max((name for name in turns if name.startswith("TRL")), key=lambda name: median(map(_rate, turns[name])))
    return [_rate(ours) / _rate(its) for ours, its in zip(turns[side], turns[peer], strict=True)]


def _peak(work: str, side: str) -> float:
    turns = results("vs_trl")["results"][work]["turns"]
    name = (
        side
        if side in turns
        else max((n for n in turns if n.startswith(side)), key=lambda n: median(map(_rate, turns[n])))
    )
    return float(max(step["peak_bytes"] for turn in turns[name] for step in turn))


def memory_of_trl(work: str, side: str = "dapo_lit") -> float:
    """Our peak over that of TRL's fastest setting."""
    return _peak(work, side) / _peak(work, "TRL")


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


# The head (benchmarks/head.py)


def _head(name: str) -> list[float]:
    """Processor time over ours, at each number of tokens."""
    found = list(results("head")["results"].values())
    ours = "gradient in the forward pass"
    return [median(row[name]["seconds"]) / median(row[ours]["seconds"]) for row in found]


# Packing (benchmarks/packing.py)


def _packing(even: bool) -> list[float]:
    """Rate of packed rows over that of padded ones, where lengths are equal or where they are not."""
    found = results("packing")["results"]
    rows = [
        row["tokens_per_s"] for name, row in found.items() if name.startswith("equal") == even and "prompts" not in name
    ]
    return [row["dapo_lit"] / row["padded"] for row in rows]


def padded_is_faster() -> str:
    rows = results("packing")["results"]["equal: 24 + 128"]["tokens_per_s"]
    return between((rows[way] / rows["dapo_lit"] - 1 for way in ("padded", "padded, sorted by length")), ".0%")


# Sampling (benchmarks/sampler.py)


def faster_than(peer: str) -> str:
    """Our rate over a peer's, medians, in every row that has both."""
    rows = [row["tokens_per_s"] for row in results("sampler")["results"]]
    return between((median(row["dapo_lit"]) / median(row[peer]) for row in rows if peer in row), ".1f", " times")


# A step and its limit (benchmarks/step_limit.py), and the host (benchmarks/host.py)


def step_over_floor(record: str = "step_limit", work: str = "chain_sum") -> str:
    """Lower bound of a step's time over the measured one, medians over steps, as its table has it."""
    found = results(record)["results"]
    steps, rates = found[work], (found["multiply_adds_per_s"], found["copied_bytes_per_s"])
    floors = sum(
        median([sum(work / rate for work, rate in zip(step["work"][phase], rates, strict=True)) for step in steps])
        for phase in steps[0]["work"]
    )
    return f"{floors / median([step['wall_s'] for step in steps]):.2f}"


def threads() -> str:
    """Markdown: seconds of a step and of its two long phases with one thread and with two."""
    one, two = (results(f"step_limit_threads_{number}")["results"] for number in (1, 2))
    lines = ["| wall time, one run each on an idle machine | 1 thread | 2 threads | ratio |", "|---|---:|---:|---:|"]
    for work, policy in {"chain_sum": "tiny policy", "smollm2": "SmolLM2-135M"}.items():
        for phase in ("generate", "train", ""):
            took = [
                median([step["seconds"][phase] if phase else step["wall_s"] for step in found[work]])
                for found in (one, two)
            ]
            shown = " | ".join(f"{s:.3g} s" for s in took)
            lines.append(f"| {policy}: {phase or 'a step'} | {shown} | {took[0] / took[1]:.2f} |")
    return "\n".join(lines)


def host_seconds() -> str:
    return f"{median(results('host')['results']['paper_step_s']):.2f} s"


def host_above(limit: float = 10.0) -> str:
    seconds = results("host")["results"]["paper_step_s"]
    return f"{sum(s > limit for s in seconds)} of {len(seconds)}"


# Dynamic sampling, simulated (benchmarks/dynamic_sampling.py)

WAYS = {
    "ours": "this", "fixed_3x": "fixed 3x (verl)", "rounds": "refill in rounds",
    "completion_order": "order of completion", "foresight": "foresight",
}  # fmt: skip


def _simulated(method: str, keep_rate: float) -> list[dict[str, Any]]:
    """Rows at a keep rate, one a number of slots."""
    rows = results("dynamic_sampling")["rows"]
    return [row for row in rows if row["method"] == method and row["keep_rate"] == keep_rate]


def sampling_costs() -> str:
    """Markdown: what a step costs by the way in which groups are asked for, at a keep rate of 0.6 and 8,192 slots."""
    lines = ["| method | million tokens | surplus | ticks | mean length accepted |", "|---|---:|---:|---:|---:|"]
    for method, name in WAYS.items():
        row = next(row for row in _simulated(method, 0.6) if row["slots"] == 8192)
        lines.append(
            f"| {name} | {row['tokens'] / 1e6:.1f} | {100 * row['surplus_frac']:.1f} % | {row['ticks']:,.0f} | "
            f"{row['length_mean']:,.0f} |"
        )
    return "\n".join(lines)


def _against(method: str, key: str, keep_rate: float = 0.6) -> list[float]:
    """Another way over ours, at each number of slots."""
    return [
        its[key] / ours[key]
        for ours, its in zip(_simulated("ours", keep_rate), _simulated(method, keep_rate), strict=True)
    ]


def tokens_saved(keep_rate: float) -> str:
    return between((1 - 1 / ratio for ratio in _against("fixed_3x", "tokens", keep_rate)), ".0%")


def longer_than(method: str, shown: str) -> str:
    return between((1 / ratio - 1 for ratio in _against(method, "ticks")), shown)


def shorter_answers() -> str:
    return between((1 - ratio for ratio in _against("completion_order", "length_mean")), ".0%")


# The rule that decides, simulated (benchmarks/decision_rule.py), and ranks that stream (benchmarks/rank_streams.py)


def errors(rule: str, bases: int, shown: str = ".1%") -> str:
    """How often a rule decides something without any effect, over all kinds of noise."""
    kinds = results("decision_rule")["false_decisions"].values()
    return between((kind[rule][str(bases)][0] for kind in kinds), shown)


def error_of_the_last() -> str:
    """Of the last comparison of a family, with its upper bound, where it is largest."""
    kinds = results("decision_rule")["false_decisions"].values()
    found, bound = max(kind["spending, last of four"]["24"] for kind in kinds)
    return f"{100 * found:.1f} % (upper bound {100 * bound:.1f} %)"


def power() -> str:
    """Markdown: how often each rule finds an effect, and with how many bases."""
    lines = [
        "| effect, sd of a pair | 12 bases: power | 24 bases: power | spending: power, mean bases | e-values |",
        "|---|---|---|---|---|",
    ]
    for family in ("one", "of four"):
        for size in ("0.9", "1.5"):
            row = results("decision_rule")["finds"][size]
            fixed = [f"{row[f'{count} bases, {family}'][0]:.2f}" for count in (12, 24)]
            looking = ["{:.2f}, {:.1f}".format(*row[f"{rule}, {family}"]) for rule in ("spending", "e-values")]
            name = size if size != "0.9" else f"{size}, {'one comparison' if family == 'one' else family}"
            lines.append(f"| {name} | {' | '.join([*fixed, *looking])} |")
    return "\n".join(lines)


def looking(family: str, what: str) -> str:
    """What looking costs in power, or saves in base policies, against 24 bases, at an effect of 0.9."""
    row = results("decision_rule")["finds"]["0.9"]
    (fixed, bases), (spending, used) = row[f"24 bases, {family}"], row[f"spending, {family}"]
    return f"{100 * (fixed - spending):.0f}" if what == "power" else f"{bases - used:.0f}"


def rank_stream(way: str) -> str:
    """Mean seconds of a step, of engines and ticks of uneven speed."""
    rows = results("rank_streams")["rows"]
    row = next(row for row in rows if (row["spread_of_engines"], row["spread_of_ticks"]) == (0.1, 0.2))
    return f"{fmean(row['seconds'][way]):.0f} s"


# Sampling ahead, simulated (benchmarks/steps_ahead.py)


def _steps_an_hour(carry_over: str, steps_ahead: int, shared: bool) -> set[float]:
    return {
        row["steps_per_hour"]
        for row in results("steps_ahead")["rows"]
        if (row["carry_over"], row["gpus"] == "shared") == (carry_over, shared)
        and _same(row["steps_ahead"], steps_ahead)
    }


def _same(found: int, wanted: int) -> bool:
    """Zero, or any number of steps ahead."""
    return (found == 0) == (wanted == 0)


def steps_ahead() -> str:
    """Markdown: steps an hour by the GPUs and the steps ahead."""
    lines = ["| GPUs | $k$ | `carry_over=none` | `all` |", "|---|---|---:|---:|"]
    for name, ahead, shared in (("shared by both phases", 0, True), ("divided", 0, False), ("divided", 1, False)):
        found = [_steps_an_hour(carry, ahead, shared) for carry in ("none", "all")]
        texts = [between(values, ".2f") for values in found]
        rows = results("steps_ahead")["rows"]
        counts = sorted({row["steps_ahead"] for row in rows if row["steps_ahead"]})
        of = f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}" if ahead else "0"
        lines.append(f"| {name} | {of} | {' | '.join(texts)} |")
    return "\n".join(lines)


def ahead_over(shared: bool) -> str:
    """What one step ahead is worth against none, with `carry_over=none` and `all`."""
    values = [min(_steps_an_hour(carry, 1, False)) / min(_steps_an_hour(carry, 0, shared)) for carry in ("none", "all")]
    return between((value - 1 for value in values), ".0%") if shared else between(values, ".1f", " times")


def more_than_one_ahead() -> str:
    """What more steps ahead gain over one, at most."""
    rows = [row for row in results("steps_ahead")["rows"] if row["steps_ahead"]]
    one = {row["carry_over"]: row["steps_per_hour"] for row in rows if row["steps_ahead"] == 1}
    return f"{100 * max(row['steps_per_hour'] / one[row['carry_over']] - 1 for row in rows):.0f} %"


# Rules that keep or discard changes (benchmarks/referee.py)


def _goal(part: str, key: str) -> list[float]:
    tasks = results("referee")["tasks"]
    return [abs(tasks[name][part][key]) for name in ("joint", "programs", "parity")]


# Starts on a GPU (benchmarks/results/gpu)


def engine_apart(words: str) -> str:
    """How far an engine's log-probs were from the trainer's, in the row of a start."""
    rows = map(json.loads, (BENCHMARKS / "results/gpu/2026-11-27_h200/starts.jsonl").open(encoding="utf-8"))
    [detail] = [row["detail"] for row in rows if words in row["command"]]
    return next(found[0] for found in [re.findall(r"[\d.]+ nats", detail)] if found)


def detail_of(start: str, pattern: str) -> str:
    """What a pattern finds in the detail of a row of a start."""
    [row] = [row for folder in on_gpu.folders() for row in on_gpu.rows("starts", folder) if row["id"] == start]
    [found] = re.findall(pattern, row["detail"])
    return str(found)


def on_h200(key: str, shown: str) -> str:
    """Of the comparison of card and CPU on the H200."""
    [row] = [row for row in on_gpu.rows("campaign", on_gpu.H200) if row["part"] == "start"]
    return format(row["measured"][key], shown).replace("%", " %")


def smollm2_peaks(step: int) -> str:
    """Median over the runs of `length_penalty` of a step's peak of GPU memory, in GB."""
    found = pd.read_parquet(ROOT / "experiments/length_penalty/runs/metrics.parquet")
    return f"{found.loc[found['step'] == step, 'memory/peak_gb'].median():.1f} GB"


def smollm2_runs() -> str:
    return f"{len(pd.read_parquet(ROOT / 'experiments/length_penalty/runs/cells.parquet'))} runs"


def more_rows(key: str) -> float:
    """What 8,192 rows a chunk of the compiled head have more than 2,048 at 16,384 tokens: `ms` or `peak_gb`."""
    rows = [row for row in on_gpu.rows("head") if row.get("compiled") and row["tokens"] == 16_384]
    of = {row["chunk"]: row[key] for row in rows}
    return of[8192] - of[2048]


def rows_saved_of_7b() -> str:
    """The saved ms as a share of the step of 7B."""
    [step] = [row["ms"] for row in on_gpu.rows("trainer") if row["policy"] == "7B" and "ms" in row]
    return f"{-100 * more_rows('ms') / step:.1f} %"


NAMED: dict[str, Callable[[], str]] = {
    "regret_saved": lambda: between(_goal("goals", "regret_minus_pairs"), ".1f"),
    "regret_saved_errors": lambda: between(_goal("standard_errors", "regret_minus_pairs"), ".1f"),
    "rate_of_trl_tiny": lambda: f"{median(rates_of_trl('tiny')):.2f} times",
    "rates_of_trl_tiny": lambda: between(rates_of_trl("tiny"), ".2f"),
    "rate_of_trl_rollout": lambda: _spread(rates_of_trl("tiny", "dapo_lit, old_logprobs=rollout")),
    "memory_of_trl_tiny": lambda: f"{memory_of_trl('tiny'):.2f} times",
    "rate_of_trl_smollm2": lambda: f"{median(rates_of_trl('smollm2')):.2f} times",
    "rates_of_trl_smollm2": lambda: between(rates_of_trl("smollm2"), ".2f"),
    "rate_of_trl_vllm": lambda: _spread(rates_of_trl("smollm2", "dapo_lit, vLLM")),
    "memory_of_trl_smollm2": lambda: f"{memory_of_trl('smollm2'):.2f}",
    "memory_of_trl_vllm": lambda: f"{memory_of_trl('smollm2', 'dapo_lit, vLLM'):.2f}",
    "head_liger": lambda: between(_head("Liger"), ".1f", " times"),
    "head_trl": lambda: between(_head("TRL, chunked"), ".1f", " times"),
    "head_rows_saved": lambda: f"{-more_rows('ms'):.0f} ms",
    "head_rows_saved_of_7b": rows_saved_of_7b,
    "head_rows_of_sums": lambda: f"{on_gpu.ms_of_new_sums(8 - 2):.0f} ms",
    "head_estimate": lambda: between([on_gpu.head_estimate(8192, in_place=p) for p in (True, False)], ".2f", " times"),
    "head_estimate_2048": lambda: between(
        [on_gpu.head_estimate(2048, in_place=p) for p in (True, False)], ".2f", " times"
    ),
    "head_rows_cost": lambda: f"{more_rows('peak_gb'):.0f} GB",
    "head_two_passes": lambda: between(_head("two passes (losses of whole mini-batches)"), ".1f", " times"),
    "padded_is_faster": padded_is_faster,
    "packing_uneven": lambda: between(_packing(even=False), ".1f", " times"),
    "faster_than_generate": lambda: faster_than("generate"),
    "faster_than_vllm": lambda: faster_than("vLLM"),
    "step_over_floor": step_over_floor,
    "step_over_floor_smollm2": lambda: between(
        [float(step_over_floor(f"step_limit_threads_{number}", "smollm2")) for number in (1, 2)], ".2f"
    ),
    "host_seconds": host_seconds,
    "host_above": host_above,
    "tokens_saved": lambda: tokens_saved(0.6),
    "tokens_saved_at_0.2": lambda: tokens_saved(0.2),
    "longer_than_completion": lambda: longer_than("completion_order", ".0%"),
    "longer_than_foresight": lambda: longer_than("foresight", ".1%"),
    "shorter_answers": shorter_answers,
    "errors_12": lambda: errors("12 bases", 12),
    "errors_spending": lambda: errors("spending", 24),
    "errors_e_values": lambda: errors("e-values", 24),
    "error_of_the_last": error_of_the_last,
    "looking_costs": lambda: f"{looking('one', 'power')} points",
    "looking_costs_of_four": lambda: looking("of four", "power"),
    "looking_saves": lambda: looking("one", "bases"),
    "looking_saves_of_four": lambda: looking("of four", "bases"),
    "waiting_for_all": lambda: rank_stream("every 8 steps"),
    "streaming": lambda: rank_stream("on arrival"),
    "streaming_reproducible": lambda: rank_stream("a tick later"),
    "no_exchange": lambda: rank_stream("no exchange"),
    "more_than_one_ahead": more_than_one_ahead,
    "engine_apart_graphs": lambda: engine_apart("sleep=true"),
    "engine_apart_eager": lambda: engine_apart("CUDA graphs off"),
    "smollm2_runs": smollm2_runs,
    "tiny_updates": lambda: detail_of("joint", r"([\d.]+ s) of it the 16 updates"),
    "study_on_card": lambda: detail_of("h200_study", r"\d+ cells in \d+ s"),
    "h200_equal": lambda: on_h200("equal_frac", ".0%"),
    "h200_apart": lambda: on_h200("largest_difference", ".1e"),
    "smollm2_first_peak": lambda: smollm2_peaks(1),
    "smollm2_last_peak": lambda: smollm2_peaks(12),
    "ahead_over_divided": lambda: ahead_over(shared=False),
    "ahead_over_shared": lambda: ahead_over(shared=True),
}
"""Name of a number in a sentence -> what makes its text."""
