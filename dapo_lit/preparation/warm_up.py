"""Supervised warm-up: trains a policy on a file of rows and writes a Hugging Face folder."""

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.config import ConfigError
from dapo_lit.config.sft import AgreementFilter, SftConfig
from dapo_lit.data.demonstrations import PromptResponse, agreeing, load_demonstrations
from dapo_lit.data.rows import DataError
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.policy.load import end_id, load_model, load_tokenizer
from dapo_lit.policy.narrow import compute_in
from dapo_lit.policy.pretrain import Row, train_supervised
from dapo_lit.policy.save import save_policy
from dapo_lit.recipe.base_policy import policy_folder
from dapo_lit.recipe.models import freeze_first_layers
from dapo_lit.recipe.policy_check import check_policy
from dapo_lit.recipe.preflight import Finding, run_checks
from dapo_lit.recipe.tokenizer_check import check_vocabulary
from dapo_lit.rewards.extraction import extract
from dapo_lit.rewards.pool import Verifier


def warm_up(config: SftConfig) -> Path:
    """Trains and writes the policy, prints what became of the rows, and returns the folder.

    Raises:
        DataError: rows that cannot be used, or none left.
        ConfigError: the folder already exists, or the template does not fit the policy.
    """
    if config.data is None:
        return Path(policy_folder(config.policy, config.task))
    output = Path(config.output).expanduser()
    if output.exists():
        raise ConfigError(f"output={config.output} already exists; move it away or choose another folder")
    torch.manual_seed(config.seed)
    counts: dict[str, int] = {}
    rows = load_demonstrations(config.data)
    counts["rows"] = len(rows)
    if config.agreement.enabled:
        rows = keep_agreeing(rows, config.agreement, config.data)
        counts["rows_agreeing"] = len(rows)
    start = policy_folder(config.policy, config.task)
    tokenizer = load_tokenizer(start)
    model = load_model(start, dtype=getattr(torch, config.policy.dtype))
    encoded = encode_rows(rows, config, tokenizer)
    counts |= {"rows_trained": len(encoded), "rows_too_long": len(rows) - len(encoded)}
    settings = config.training
    if config.preflight:
        run_checks(checks(config, start, model, tokenizer, len(encoded), len(rows) - len(encoded)))
    prepare(model, config)
    updates = ceil(settings.epochs * len(encoded) / settings.batch_size)
    losses = train_supervised(
        model,
        encoded,
        updates=updates,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        seed=config.seed,
        warmup_frac=settings.warmup_frac,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        micro_batches=settings.micro_batches,
        progress=output.name,
    )
    tenth = max(1, updates // 10)
    before, after = fmean(losses[:tenth]), fmean(losses[-tenth:])
    print(f"loss: {before:.4f} -> {after:.4f} nats a response token (first and last tenth of {updates:,} updates)")
    notes = {"config": config.model_dump(mode="json"), "start": str(start), **counts, "losses": losses}
    save_policy(output, model, tokenizer, {"sft.json": notes})
    return output


def checks(
    config: SftConfig,
    start: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: int,
    long: int,
) -> dict[str, Callable[[], Finding]]:
    """What is tried out before the first update. The rows were read before."""
    settings = config.training

    def weights() -> Finding:
        narrow = f", computing in {settings.dtype}" if settings.dtype else ""
        frozen = f", the first {config.policy.freeze_frac:g} of the layers frozen" if config.policy.freeze_frac else ""
        return Finding(f"float32 weights{narrow}{frozen}, learning rate {settings.learning_rate:g}")

    def check_tokenizer() -> Finding:
        check_vocabulary(tokenizer, model, start)
        return Finding(f"{len(tokenizer):,} tokens")

    return {
        "weights": weights,
        "policy": lambda: check_policy(model),
        "tokenizer": check_tokenizer,
        "rows": lambda: Finding(f"{rows:,} to train on; {long:,} left out, above training.max_tokens"),
    }


def prepare(model: PreTrainedModel, config: SftConfig) -> None:
    """Freezes layers and sets the dtype of computation.

    Raises:
        ConfigError: the layers of this family are not found.
    """
    try:
        freeze_first_layers(model, config.policy.freeze_frac)
        if config.training.dtype is not None:
            compute_in(model, getattr(torch, config.training.dtype))
    except ValueError as error:
        fault = str(error).partition(";")[0]
        raise ConfigError(
            f"policy.path={config.policy.path}: {fault}; set policy.freeze_frac=0 training.dtype=null"
        ) from None


def keep_agreeing(rows: Sequence[PromptResponse], settings: AgreementFilter, path: str) -> list[PromptResponse]:
    """The rows with the majority answer of their prompt; DataError if there are none."""
    answers = [extract(row.response, settings.extraction) for row in rows]
    with Verifier(rule=settings.rule, extraction=settings.extraction) as verifier:
        vote = agreeing(
            [row.prompt for row in rows],
            answers,
            verifier.equivalent,
            min_samples=settings.min_samples,
            min_frac=settings.min_frac,
        )
    print(f"agreement: {vote}")
    if not vote.kept:
        raise DataError(f"{path}: no prompt has an answer that several samples agree on ({vote})")
    return [rows[index] for index in vote.kept]


def encode_rows(rows: Sequence[PromptResponse], config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """Token ids of the rows that fit into training.max_tokens, each response followed by its end token.

    Raises:
        DataError: a row without a token in the policy's vocabulary, or no row that fits.
        ConfigError: the policy's tokenizer cannot use the template.
    """
    try:
        template = PromptTemplate.load(config.task.template)
        end = end_id(tokenizer, chat=bool(template.messages))
        prompts = [template.encode(row.prompt, tokenizer) for row in rows]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    encoded: list[Row] = []
    for row, prompt in zip(rows, prompts, strict=True):
        response = tokenizer(row.response, add_special_tokens=False)["input_ids"]
        if not response or not prompt:
            raise DataError(f"{row.place}: the policy's vocabulary has none of the characters of this row")
        if len(prompt) + len(response) + 1 <= config.training.max_tokens:
            encoded.append((prompt, [*response, end]))
    if not encoded:
        raise DataError(
            f"{config.data}: every row has more than training.max_tokens={config.training.max_tokens} tokens"
        )
    return encoded
