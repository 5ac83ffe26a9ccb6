"""Supervised warm-up: teaches a policy the form of a response before it is trained by its rewards.

    python docs/examples/warm_up.py rows.jsonl models/smollm2_135m warm --template gsm8k_chat --learning-rate 1e-5
    python -m dapo_lit.train policy=hf policy.path=warm ...

Each line of rows.jsonl has `prompt` and `response`. The template is put around the prompt, as in training; the response
gets the token that ends it. `--agree EXTRACTION` keeps the rows whose answer most of the rows with the same prompt give
(self-consistency, arXiv 2203.11171), if at least two do.
"""

import argparse
import json
from collections import Counter, defaultdict
from math import ceil
from pathlib import Path
from typing import Any

import torch

from ablations.screen import StatusLine
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.policy.load import end_of_turn, load_model, load_tokenizer, save_policy
from dapo_lit.policy.pretrain import Example, train_supervised
from dapo_lit.preflight.policy import check_policy
from math_answers.extraction import extract


def read_rows(file: Path) -> list[dict[str, str]]:
    """Raises ValueError that names the line of a row without text."""
    rows = [json.loads(line) for line in file.open(encoding="utf-8")]
    for number, row in enumerate(rows, 1):
        for key in ("prompt", "response"):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise ValueError(f"{file}, line {number}: `{key}` is not text")
    return rows


def agreeing(rows: list[dict[str, str]], extraction: Any) -> list[dict[str, str]]:
    """The rows with the most frequent answer of their prompt: two rows or more, and no other answer as often."""
    answers = defaultdict(list)
    for row in rows:
        answers[row["prompt"]].append(extract(row["response"], extraction))
    majority = {}
    for prompt, given in answers.items():
        (first, most), (_, second) = [*Counter(filter(None, given)).most_common(2), ("", 0), ("", 0)][:2]
        majority[prompt] = first if most > max(second, 1) else None
    return [
        row for row in rows if (answer := extract(row["response"], extraction)) and answer == majority[row["prompt"]]
    ]


def encoded(rows: list[dict[str, str]], template: PromptTemplate, tokenizer: Any, max_tokens: int) -> list[Example]:
    """Prompt and response ids of the rows that fit into `max_tokens`."""
    end = end_of_turn(tokenizer) if template.messages else None
    end = tokenizer.eos_token_id if end is None else end
    pairs = [
        Example(
            template.encode(row["prompt"], tokenizer),
            [*tokenizer(row["response"], add_special_tokens=False).input_ids, end],
        )
        for row in rows
    ]
    return [pair for pair in pairs if len(pair.prompt) + len(pair.response) <= max_tokens]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("policy", help="a folder or hub id")
    parser.add_argument("output", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--template", required=True, help="as task.template")
    parser.add_argument("--agree", metavar="EXTRACTION", help="as reward.extraction")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    for name, default in (("batch-size", 16), ("micro-batches", 4), ("max-tokens", 2048), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(arguments)
    if args.output.exists():
        parser.error(f"{args.output} already exists; choose another folder")
    rows = read_rows(args.rows)
    chosen = agreeing(rows, args.agree) if args.agree else rows
    tokenizer, model = load_tokenizer(args.policy), load_model(args.policy, dtype=torch.float32)
    check_policy(model)
    pairs = encoded(chosen, PromptTemplate.load(args.template), tokenizer, args.max_tokens)
    print(f"rows: {len(rows)}, kept: {len(chosen)}, of at most {args.max_tokens} tokens: {len(pairs)}")
    updates = ceil(args.epochs * len(pairs) / args.batch_size)
    with StatusLine(args.output.name) as line:
        losses = train_supervised(
            model,
            pairs,
            updates=updates,
            batch_size=args.batch_size,
            micro_batches=args.micro_batches,
            learning_rate=args.learning_rate,
            seed=args.seed,
            report=lambda done, loss: line.update(done, updates, f"{done} of {updates} updates, loss {loss:.3f}"),
        )
    notes = {key: str(value) for key, value in vars(args).items()}
    save_policy(args.output, model, tokenizer, {"warm_up.json": {**notes, "losses": losses}})
    print(f"loss: {losses[0]:.4f} -> {losses[-1]:.4f} nats a response token; policy: {args.output}")


if __name__ == "__main__":
    main()
