"""The policy's head with DAPO's clipped loss, compared with other implementations: time, memory and error.

Measured from the hidden states of the response tokens to the gradients of hidden states and head. Every implementation
computes the same loss (token-level, clip 0.2 / 0.28) of the same random tokens; the old log-probs come from a slightly
different policy, so that some tokens are clipped. Each runs in its own process, in turns. Memory is the resident peak
of the first call beyond the memory before it (on a GPU: allocated), the head's gradient included. Errors are against
float64, at the first number of tokens: relative norm for gradients, largest absolute difference for log-probs.

    python benchmarks/head.py --out benchmarks/results
    python benchmarks/head.py --device cuda --dtype bfloat16 --tokens 16384 65536 --vocabulary 152064 --hidden 3584
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from head_loss import head_loss
from measure import Child, added_memory, arguments, in_turns, installed, machine, markdown, median, publish, seconds
from torch import Tensor

from dapo_lit.objective.losses import clipped_policy_loss
from dapo_lit.objective.tokens import Bounds, Tokens
from dapo_lit.policy.head import Head, scores

LOW, HIGH, TEMPERATURE = 0.2, 0.28, 1.0
BOUNDS = Bounds(LOW, HIGH)
SEQUENCE = 64
"""Tokens that share their advantage; they divide the numbers of tokens."""


class Problem:
    """Random tokens, hidden states and head; some tokens are clipped at each bound."""

    def __init__(self, tokens: int, vocabulary: int, hidden: int, dtype: torch.dtype, device: str) -> None:
        generator = torch.Generator(device).manual_seed(0)
        draw = partial(torch.randn, generator=generator, device=device)
        # At this scale, token distributions are far from uniform, like a policy's.
        self.hidden = (draw(tokens, hidden) / hidden**0.5 * 3).to(device, dtype).requires_grad_()
        self.weight = draw(vocabulary, hidden).to(device, dtype).requires_grad_()
        self.targets = torch.randint(vocabulary, (tokens,), generator=generator, device=device).to(device)
        of_sequences = draw(tokens // SEQUENCE + 1).repeat_interleave(SEQUENCE)
        self.advantages = of_sequences[:tokens].to(device)
        self.noise = (0.2 * draw(tokens)).to(device)
        self.old = torch.empty(0)

    def of_tokens(self, logprobs: Tensor, part: slice = slice(None)) -> Tensor:
        losses, _ = clipped_policy_loss(Tokens(logprobs, self.old[part], self.advantages[part]), BOUNDS)
        return losses / len(self.targets)


Found = tuple[Tensor, Tensor | None]
"""Loss, with gradient; log-probs [n], where the implementation gives them."""


def ours(p: Problem) -> Found:
    return head_loss(p.hidden, Head(p.weight), p.targets, p.of_tokens, temperature=TEMPERATURE)


def ours_compiled(p: Problem) -> Found:
    return head_loss(p.hidden, Head(p.weight), p.targets, p.of_tokens, temperature=TEMPERATURE, compiles=True)


def three_products(p: Problem) -> Found:
    """The floor: logits and their gradients' way back, without what is between. Its gradients are of another loss."""
    logits, loss = p.hidden @ p.weight.t(), p.hidden.new_zeros(())
    p.hidden.grad, p.weight.grad = logits @ p.weight, logits.t() @ p.hidden
    return loss.requires_grad_(), None


def two_passes(p: Problem) -> Found:
    logprobs, _ = scores(p.hidden, Head(p.weight), p.targets, temperature=TEMPERATURE)
    return p.of_tokens(logprobs).sum(), logprobs


def plain(p: Problem) -> Found:
    logits = (p.hidden @ p.weight.t()).float() / TEMPERATURE
    log_p = torch.log_softmax(logits, -1)
    with torch.no_grad():  # what a trainer logs
        (-(log_p.exp() * log_p).sum(-1)).mean()
    logprobs = log_p.gather(-1, p.targets[:, None]).squeeze(-1)
    return p.of_tokens(logprobs).sum(), logprobs


def of_trl(p: Problem) -> Found:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    # 32768: what the trainer sets
    logprobs = ChunkedLogProbFunction.apply(
        p.hidden, p.weight, None, p.targets, TEMPERATURE, 32768, None, 1.0, ("entropy",)
    )[0]
    return p.of_tokens(logprobs).sum(), logprobs


def of_liger(p: Problem) -> Found:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    shape = (-1, SEQUENCE)
    loss = LigerFusedLinearGRPOLoss(
        beta=0.0,
        compiled=False,
        use_ref_model=False,
        chunk_size=len(p.targets) // SEQUENCE,
        epsilon_low=LOW,
        epsilon_high=HIGH,
        loss_type="dapo",
    )(
        p.hidden.view(*shape, p.hidden.shape[1]),
        p.weight,
        p.targets.view(shape),
        torch.ones_like(p.targets.view(shape)),
        p.advantages.view(shape)[:, 0],
        old_per_token_logps=p.old.view(shape),
    )
    return loss[0], None


COMPILED = "gradient in the forward pass, compiled"
FLOOR = "three products alone, no loss"
ALL: dict[str, tuple[Callable[[Problem], Found], str | None]] = {
    "gradient in the forward pass": (ours, None),
    COMPILED: (ours_compiled, None),
    "two passes (losses of whole mini-batches)": (two_passes, None),
    "TRL, chunked": (of_trl, "trl"),
    "Liger": (of_liger, "liger_kernel"),
    "plain torch": (plain, None),
    FLOOR: (three_products, None),
}
"""Implementation and the package that it needs."""


@torch.no_grad()
def reference(p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs and gradients in float64, a few tokens at a time; sets the old log-probs."""
    weight = p.weight.double()
    logprobs, slopes = torch.empty(len(p.targets), dtype=torch.float64), None
    d_hidden, d_weight = torch.empty_like(p.hidden, dtype=torch.float64), torch.zeros_like(weight)
    for passes in range(2):
        for rows in torch.arange(len(p.targets)).split(256):
            log_p = torch.log_softmax(p.hidden[rows].double() @ weight.t() / TEMPERATURE, -1)
            if passes == 0:
                logprobs[rows] = log_p.gather(-1, p.targets[rows, None]).squeeze(-1).cpu()
                continue
            assert slopes is not None
            d_logits = log_p.exp_().mul_(-slopes[rows, None])
            d_logits.scatter_add_(1, p.targets[rows, None], slopes[rows, None]).div_(TEMPERATURE)
            d_hidden[rows] = d_logits @ weight
            d_weight += d_logits.t() @ p.hidden[rows].double()
        if passes == 0:
            p.old = logprobs.to(p.hidden.device).float() + p.noise
            with torch.enable_grad():
                leaf = logprobs.to(p.hidden.device, copy=True).requires_grad_()
                losses = clipped_policy_loss(Tokens(leaf, p.old.double(), p.advantages.double()), BOUNDS)[0]
                losses = losses / len(p.targets)
                (slopes,) = torch.autograd.grad(losses.sum(), leaf)
    return logprobs, d_hidden, d_weight


def serve(connection: Connection, name: str, sizes: tuple[Any, ...], threads: int) -> None:
    """Answers "memory" (first), "seconds" of a call, and "errors" (last)."""
    torch.set_num_threads(threads)
    asked = connection.recv()
    problem, logprobs = Problem(*sizes), None
    problem.old = problem.noise - 5.0

    def once() -> None:
        nonlocal logprobs
        problem.hidden.grad = problem.weight.grad = None
        loss, logprobs = ALL[name][0](problem)
        loss.backward()
        if problem.hidden.is_cuda:
            torch.cuda.synchronize()

    while True:
        match asked:
            case "memory":
                connection.send({"memory": allocated(once) if problem.hidden.is_cuda else added_memory(once)})
            case "seconds":
                connection.send({"seconds": seconds(once)})
            case "errors":
                exact = reference(problem)
                once()
                connection.send(errors(problem, logprobs, exact))
        asked = connection.recv()


def allocated(call: Callable[[], object]) -> int:
    """Peak GPU bytes of a call beyond those allocated before; the second call, to exclude libraries' initialisation."""
    call()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def errors(problem: Problem, logprobs: Tensor | None, exact: tuple[Tensor, Tensor, Tensor]) -> dict[str, Any]:
    expected, *gradients = exact
    found: dict[str, Any] = {"logprob_error": None}
    for key, leaf, gradient in zip(("hidden", "head"), (problem.hidden, problem.weight), gradients, strict=True):
        assert leaf.grad is not None
        found[f"{key}_error"] = float((leaf.grad.double() - gradient).norm() / gradient.norm())
    if logprobs is not None:
        found["logprob_error"] = float((logprobs.detach().double().cpu() - expected).abs().max())
    return found


def measured(tokens: int, with_errors: bool, args: argparse.Namespace) -> tuple[list[list[str]], dict[str, Any]]:
    sizes = (tokens, args.vocabulary, args.hidden, getattr(torch, args.dtype), args.device)
    names = [name for name, (_, needs) in ALL.items() if needs is None or installed(needs)]
    if args.device == "cpu":
        names.remove(COMPILED)  # as `trainer.compile=auto` has it
    children = {name: Child(serve, name, sizes, args.threads) for name in names}
    try:
        found = {name: child.ask("memory") for name, child in children.items()}
        times = in_turns({n: partial(c.ask, "seconds") for n, c in children.items()}, args.warmup, args.repeats)
        for name, child in children.items():
            found[name]["seconds"] = [t["seconds"] for t in times[name]]
            if with_errors and name != FLOOR:
                found[name] |= child.ask("errors")
    finally:
        for child in children.values():
            child.close()
    rows, first = [], median(found[names[0]]["seconds"])
    for name, of in found.items():
        took = median(of["seconds"])
        keys = ("hidden_error", "head_error", "logprob_error")
        values = ["" if of.get(key) is None else f"{of[key]:.1e}" for key in keys]
        row = [f"{tokens:,} tokens: {name}", f"{took * 1e3:,.0f}", f"{took / first:.2f}", f"{of['memory'] / 1e6:,.0f}"]
        rows.append(row + values)
    return rows, found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-errors", action="store_true", help="float64 in every process takes 10 GB of a GPU each")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.tiny:
        args.tokens, args.vocabulary, args.hidden, args.repeats = [128], 512, 32, 2
    for name, (_, needs) in ALL.items():
        if needs is not None and not installed(needs):
            print(f"head: {name} skipped, {needs} is not installed; `make bench` makes an environment with it")
    began, rows, results = machine(args.threads), [], {}
    for tokens in args.tokens:
        more, results[str(tokens)] = measured(tokens, tokens == args.tokens[0] and not args.no_errors, args)
        rows += more
    sizes = f"vocabulary {args.vocabulary:,}, hidden size {args.hidden:,}, {args.dtype}"
    logits = ", ".join(f"{3 * 4 * n * args.vocabulary / 1e6:,.0f} MB for {n:,}" for n in args.tokens)
    header = [sizes, "ms", "times ours", "MB", "error, d hidden", "error, d head", "error, log-probs"]
    tables = markdown(header, rows) + f"\n\nThree float32 tensors of tokens x vocabulary: {logits} tokens; "
    tables += f"the gradient of the head: {4 * args.vocabulary * args.hidden / 1e6:,.0f} MB."
    publish("head", args, began, ("trl", "liger_kernel"), results, tables)


if __name__ == "__main__":
    main()
