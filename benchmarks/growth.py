"""Growth of time and memory with the response length, for sampling and for training.

Training is forward and backward through packed attention and head, on responses of n tokens that make up 4,096 tokens
(or one longer response). Sampling is a decode step of 8 rows at a context of n tokens; the time of a response is the
sum over its tokens, by the trapezoidal rule. The exponent between two lengths is log(T2 / T1) / log(n2 / n1) of the
time of a whole response; for training, the table also has the exponent of the multiply-adds (linear + causal
attention). Memory is the resident peak of a call beyond the weights (sampling: beyond the memory before the call),
divided by the tokens of the batch. It must not grow, because no tensor is tokens x tokens or tokens x vocabulary.

    OMP_NUM_THREADS=1 python benchmarks/growth.py --out benchmarks/results
"""

import argparse
import ctypes
import math
from functools import partial
from typing import Any

import torch
from head_loss import head_loss
from measure import arguments, machine, markdown, median, publish, reset_peak, resident, seconds
from policies import policy
from transformers import PreTrainedModel

from dapo_lit.engines.protocol import SampleKey, SampleRequest, Sampling
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.policy.attention import layout, packed_hidden
from dapo_lit.policy.head import Head
from dapo_lit.step.balance import cost_of

BATCH_TOKENS = 4096
ROWS, STEPS = 8, 16
ENOUGH_S = 30.0
"""Repeats of a length stop after so many seconds."""


def give_back_memory() -> None:
    """Returns freed memory to the system, so that it does not count in the next peak."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def train(model: PreTrainedModel, tokens: int, sequences: int) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, model.config.vocab_size, (tokens * sequences,), generator=generator)
    hidden = packed_hidden(model, ids, layout([tokens] * sequences))
    model.zero_grad()
    loss, _ = head_loss(hidden, Head.of(model), ids.roll(-1), lambda logprobs, _: -logprobs)
    loss.backward()


def decode(engine: TorchEngine, prompt: tuple[int, ...]) -> list[float]:
    """Seconds of each decode step at a context of the prompt's length."""
    stream = engine.open(Sampling(STEPS + 1))
    stream.submit([SampleRequest(SampleKey(0, "p", 0, row), prompt) for row in range(ROWS)])
    stream.step()  # runs the prompt
    return [seconds(stream.step) for _ in range(STEPS)]


def peak_beyond(base: int, call: Any) -> tuple[float, int]:
    """Seconds of a call, and resident bytes at its peak beyond `base`."""
    give_back_memory()
    reset_peak()
    took = seconds(call)
    return took, resident(field="VmHWM") - base


def cell(model: PreTrainedModel, engine: TorchEngine, base: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Medians of one size and length."""
    sequences = max(1, BATCH_TOKENS // tokens)
    train(model, min(tokens, 256), 1)
    trained: list[tuple[float, int]] = []
    while not trained or (len(trained) < repeats and sum(took for took, _ in trained) < ENOUGH_S):
        trained.append(peak_beyond(base, partial(train, model, tokens, sequences)))
    model.zero_grad()
    give_back_memory()
    steps: list[float] = []
    with torch.inference_mode():
        _, sampled = peak_beyond(resident(), lambda: steps.extend(decode(engine, (3,) * tokens)))
    return {
        "train_s_per_response": median([took for took, _ in trained]) / sequences,
        "train_repeats": len(trained),
        "train_bytes": max(peak for _, peak in trained),
        "batch_tokens": sequences * tokens,
        "decode_s": median(steps) / ROWS,
        "sample_bytes": sampled,
    }


def exponent(first: float, second: float, ratio: float) -> float:
    return math.log(second / first) / math.log(ratio)


def measured(size: str, lengths: list[int], args: argparse.Namespace) -> tuple[list[list[str]], dict[int, Any]]:
    model = policy(size, context=32768)
    engine = TorchEngine(model.config, eos_ids=[], max_batch_size=ROWS)
    engine.sync_weights(model.state_dict().items(), version=0)
    head = model.config.hidden_size * model.config.vocab_size
    cost = cost_of(model.config)
    base = resident()
    found = {tokens: cell(model, engine, base, tokens, args.repeats) for tokens in lengths}
    rows, sampled, before = [], 0.0, None
    for tokens, of in found.items():
        previous = 0 if before is None else before
        start = of["decode_s"] if before is None else found[before]["decode_s"]
        earlier, sampled = sampled, sampled + (tokens - previous) * (start + of["decode_s"]) / 2
        of["sample_s_per_response"], of["multiply_adds"] = sampled, cost(tokens) + tokens * head
        row = [
            f"{size}: {tokens:,}",
            f"{of['train_s_per_response'] / tokens * 1e6:,.0f}",
            f"{of['train_bytes'] / of['batch_tokens'] / 1e3:,.1f}",
            f"{of['decode_s'] * 1e6:,.0f}",
            f"{of['sample_bytes'] / (ROWS * tokens) / 1e3:,.1f}",
        ]
        if before is None:
            row += ["", "", ""]
        else:
            ratio, last = tokens / before, found[before]
            row += [
                f"{exponent(last['train_s_per_response'], of['train_s_per_response'], ratio):.2f}",
                f"{exponent(last['multiply_adds'], of['multiply_adds'], ratio):.2f}",
                f"{exponent(earlier, sampled, ratio):.2f}",
            ]
        rows.append(row)
        before = tokens
    return rows, found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=["0.3M", "7M", "135M"], default=["0.3M", "7M", "135M"])
    parser.add_argument("--longest", type=int, default=16384, help="of 0.3M and 7M; 135M ends at 4,096")
    args = parser.parse_args()
    if args.tiny:
        args.sizes, args.longest, args.repeats = ["0.3M"], 256, 1
    torch.set_num_threads(args.threads)
    began, rows, results = machine(args.threads), [], {}
    for size in args.sizes:
        longest = min(args.longest, 4096 if size == "135M" else 16384)
        lengths = [n for n in (64, 256, 1024, 4096, 16384) if (n >= 256 or args.tiny) and n <= longest]
        try:
            more, results[size] = measured(size, lengths, args)
        except FileNotFoundError as error:
            print(f"growth: {size} skipped, {error}")
            continue
        rows += more
    header = ["tokens a response", "training, us a token", "kB a token", "sampling, us a token", "kB a token"]
    header += ["exponent, training", "of the multiply-adds", "exponent, sampling"]
    publish("growth", args, began, ("transformers",), results, markdown(header, rows))


if __name__ == "__main__":
    main()
