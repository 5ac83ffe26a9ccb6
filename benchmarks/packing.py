"""Forward and backward over completions of uneven length: padded, packed by transformers, packed by this project.

A workload consists of groups of 8 completions of one prompt. Every implementation computes the same sum of log-probs of
the response tokens, with the same head, in micro-batches of at most --budget tokens (padding included), and accumulates
the gradients. Useful tokens are those of prompts and responses; a prompt counts once for each completion, even if it is
computed only once. The table's note has the largest relative difference from the gradient of the padded batches.

    OMP_NUM_THREADS=1 python benchmarks/packing.py --size 7M --out benchmarks/results
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from head_loss import head_loss
from measure import arguments, in_turns, machine, markdown, median, publish, seconds
from policies import policy
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.policy.attention import packed_hidden
from dapo_lit.policy.head import Head
from dapo_lit.step.balance import first_fit
from dapo_lit.step.batch import TokenBatch

GROUP = 8
Lengths = Callable[[int, torch.Generator], Tensor]

WORKLOADS: dict[str, tuple[int, Lengths]] = {
    "equal: 24 + 128": (24, lambda n, g: torch.full((n,), 128)),
    "uniform: 24 + 1 to 256": (24, lambda n, g: torch.randint(1, 257, (n,), generator=g)),
    "long tail: 24 + median 64, at most 1,024": (
        24,
        lambda n, g: (64 * torch.randn(n, generator=g).exp()).long().clamp(1, 1024),
    ),
    "long prompts: 256 + 16 to 64": (256, lambda n, g: torch.randint(16, 65, (n,), generator=g)),
}
"""Tokens of each prompt, and of the responses."""


def workload(prompt: int, lengths: Lengths, completions: int, vocabulary: int) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    responses = lengths(completions, generator)
    groups = completions // GROUP
    prompts = torch.randint(2, vocabulary, (groups, prompt), generator=generator)
    sequences = [
        torch.cat([prompts[b // GROUP], torch.randint(2, vocabulary, (int(n),), generator=generator)])
        for b, n in enumerate(responses)
    ]
    tokens = int(responses.sum())
    return TokenBatch(
        sequences=sequences,
        prompt_lengths=torch.full((completions,), prompt),
        response_lengths=responses,
        group_index=torch.arange(groups).repeat_interleave(GROUP),
        rewards=torch.zeros(completions, dtype=torch.float64),
        loss_mask=torch.ones(tokens, dtype=torch.bool),
        rollout_logprobs=torch.zeros(tokens),
        fresh=torch.ones(tokens, dtype=torch.bool),
    )


def back(model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> None:
    """hidden [n, hidden size] predicts targets [n]."""
    loss, _ = head_loss(hidden, Head.of(model), targets, lambda logprobs, _: -logprobs)
    loss.backward()


def chunks(order: list[int], lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Neighbours of `order` whose padded batch fits into the budget."""
    chosen: list[int] = []
    for b in order:
        longest = max(lengths[i] for i in [*chosen, b])
        if chosen and longest * (len(chosen) + 1) > budget:
            yield chosen
            chosen = []
        chosen.append(b)
    yield chosen


def padded(model: PreTrainedModel, batch: TokenBatch, budget: int, *, sorts: bool) -> None:
    lengths = [len(s) for s in batch.sequences]
    order = sorted(range(len(lengths)), key=lengths.__getitem__) if sorts else list(range(len(lengths)))
    model.set_attn_implementation("sdpa")
    for chosen in chunks(order, lengths, budget):
        ids = torch.nn.utils.rnn.pad_sequence([batch.sequences[b] for b in chosen], batch_first=True)
        place, own = torch.arange(ids.shape[1]), torch.tensor([lengths[b] for b in chosen])[:, None]
        hidden = model.base_model(ids, attention_mask=(place < own).long(), use_cache=False).last_hidden_state
        scored = (place >= batch.prompt_lengths[chosen][:, None] - 1) & (place < own - 1)
        back(model, hidden[scored], ids.roll(-1, 1)[scored])


def packed_by_transformers(model: PreTrainedModel, batch: TokenBatch, budget: int) -> None:
    model.set_attn_implementation("sdpa")
    for chosen in first_fit([len(s) for s in batch.sequences], budget):
        ids = torch.cat([batch.sequences[b] for b in chosen])[None]
        place = torch.cat([torch.arange(len(batch.sequences[b])) for b in chosen])[None]
        hidden = model.base_model(ids, position_ids=place, use_cache=False).last_hidden_state[0]
        prompts = torch.cat([batch.prompt_lengths[b].expand(len(batch.sequences[b])) for b in chosen])
        ends = place[0].roll(-1) == 0
        scored = (place[0] >= prompts - 1) & ~ends
        back(model, hidden[scored], ids[0].roll(-1)[scored])


def ours(model: PreTrainedModel, batch: TokenBatch, budget: int, *, shares: bool) -> None:
    for micro in batch.micro_batches(range(len(batch.sequences)), budget, shares_prompts=shares):
        back(model, packed_hidden(model, micro.input_ids, micro.packed)[micro.rows], micro.targets)


def gradient(model: PreTrainedModel) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", choices=["0.3M", "7M"], default="7M")
    parser.add_argument("--completions", type=int, default=64)
    parser.add_argument("--budget", type=int, default=4096)
    args = parser.parse_args()
    if args.tiny:
        args.size, args.completions, args.repeats, args.warmup = "0.3M", 8, 1, 0
    torch.set_num_threads(args.threads)
    model, began = policy(args.size, context=2048), machine(args.threads)
    rows, results = [], {}
    for label, (prompt, lengths) in list(WORKLOADS.items())[: 2 if args.tiny else None]:
        batch = workload(prompt, lengths, args.completions, model.config.vocab_size)
        useful = sum(len(s) for s in batch.sequences)
        calls: dict[str, Callable[[], None]] = {
            "padded": partial(padded, model, batch, args.budget, sorts=False),
            "padded, sorted by length": partial(padded, model, batch, args.budget, sorts=True),
            "packed by transformers (sdpa)": partial(packed_by_transformers, model, batch, args.budget),
            "dapo_lit": partial(ours, model, batch, args.budget, shares=False),
            "dapo_lit, prompts shared": partial(ours, model, batch, args.budget, shares=True),
        }
        errors, expected = dict[str, float](), torch.empty(0)
        for name, call in calls.items():
            model.zero_grad()
            call()
            found = gradient(model)
            expected = found if name == "padded" else expected
            errors[name] = float((found - expected).norm() / expected.norm())
        times = in_turns({n: partial(seconds, c) for n, c in calls.items()}, args.warmup, args.repeats)
        rates = {name: useful / median(took) for name, took in times.items()}
        rows.append([f"{label} ({useful:,})", *(f"{rate:,.0f}" for rate in rates.values())])
        results[label] = {"useful_tokens": useful, "tokens_per_s": rates, "seconds": times, "gradient_error": errors}
    worst = max(e for of in results.values() for e in of["gradient_error"].values())
    table = markdown(["useful tokens a second, by lengths (prompt + response; tokens in all)", *calls], rows)
    note = f"\n\n{args.size} parameters, budget {args.budget:,} tokens; the gradients differ by at most {worst:.0e}."
    publish("packing", args, began, ("transformers",), results, table + note)


if __name__ == "__main__":
    main()
