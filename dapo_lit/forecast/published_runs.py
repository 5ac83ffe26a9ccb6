"""Published step times: one run to which the efficiencies are fitted, and two that they predict.

`assumed` names what the sources do not state; the error of a prediction comes from the model and these assumptions.
"""

from dataclasses import dataclass

from dapo_lit.config.forecast import GPUS, Hardware, Workload
from dapo_lit.forecast.duration import Efficiency, Phase, Shape, Step, phases


@dataclass(frozen=True)
class Anchor:
    """A published step time."""

    name: str
    source: str
    assumed: str
    shape: Shape
    step: Step
    work: Workload
    hardware: Hardware
    gpus: int
    published: dict[str, float]
    """Seconds of phases, or of the whole `step`."""


def _work(mean: float, keep: float, tp: int) -> Workload:
    return Workload(
        prompt_tokens=200, mean_response_tokens=mean, length_spread=0.8, keep_frac=keep,
        engine_tensor_parallel=tp, engine_memory_frac=0.85,
    )  # fmt: skip


QWEN_7B = Shape(28, 3584, 18944, 28, 4, 152064, tied=False)
QWEN_32B = Shape(64, 5120, 27648, 40, 8, 152064, tied=False)
QWEN3_32B = Shape(64, 5120, 25600, 64, 8, 151936, tied=False, head_width=128)

FITTED = Anchor(
    "verl, Qwen2.5-Math-7B, 128 H20",
    "verl docs/advance/fully_async.md, colocate sync: gen 177.85, old_log_prob 53.92, update_actor 113.81 s",
    "mean response 3,000 tokens, every group trained on, engines of 2 GPUs",
    QWEN_7B,
    Step(num_prompts=512, samples=16, limit_tokens=28672, groups_generated=512),
    _work(3000, 1.0, 2),
    GPUS["h20"],
    128,
    {"decode": 177.85, "old log-probs": 53.92, "updates": 113.81},
)
PREDICTED = (
    Anchor(
        "NeMo-RL v0.5, Qwen3-32B, 32 H100",
        "NeMo-RL performance summary: 376 s a step, 2,048 sequences of 3.25k tokens",
        "128 prompts x 16, limit 16,384, prompts of 200 tokens, engines of 4 GPUs",
        QWEN3_32B,
        Step(num_prompts=128, samples=16, limit_tokens=16384, groups_generated=128),
        _work(3050, 1.0, 4),
        Hardware("H100", 80, 989, 3350, 50, 450),
        32,
        {"step": 376.0},
    ),
    Anchor(
        "verl, Qwen2.5-32B (DAPO), 128 A800",
        "230 rollout steps in 5 days: 1,880 s a step",
        "mean response 5,000 tokens, 1,536 groups generated, engines of 4 GPUs",
        QWEN_32B,
        Step(num_prompts=512, samples=16, limit_tokens=20480, groups_generated=1536),
        _work(5000, 0.6, 4),
        GPUS["a800"],
        128,
        {"step": 1880.0},
    ),
)


def fitted() -> Efficiency:
    """Three efficiencies from three phases of one run: a phase's time is inversely proportional to its own."""
    found = seconds(FITTED, Efficiency(1.0, 1.0, 1.0))
    return Efficiency(*(found[name] / FITTED.published[name] for name in ("decode", "old log-probs", "updates")))


def seconds(anchor: Anchor, efficiency: Efficiency) -> dict[str, float]:
    """Predicted seconds by phase, and of the whole `step`."""
    state = 12 * anchor.shape.parameters / anchor.gpus / 2**30
    found: list[Phase] = phases(anchor.shape, anchor.step, anchor.work, anchor.hardware, anchor.gpus, efficiency, state)
    return {phase.name: phase.seconds for phase in found} | {"step": sum(phase.seconds for phase in found)}
