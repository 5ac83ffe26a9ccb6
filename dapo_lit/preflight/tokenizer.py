"""Refuses, before any work, a tokenizer that does not belong to the model, and prompts that it cannot express."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.config import ConfigError
from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import DataError
from dapo_lit.data.templates import PromptTemplate

SMALLEST_PART = 0.5
"""Of a model's vocabulary, what its tokenizer must have. Vocabularies are padded by some percent at most."""


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, folder: str | Path) -> None:
    """Raises ConfigError if the tokenizer's ids are not those of the model.

    Added tokens beyond the vocabulary are allowed (Gemma 3 has one for images); no prompt may contain them.
    """
    rows, added = model.get_input_embeddings().num_embeddings, set(tokenizer.added_tokens_decoder)
    ids = set(tokenizer.get_vocab().values())
    highest = max(ids - added, default=-1)
    if highest < rows and len(ids) >= SMALLEST_PART * rows:
        return
    raise ConfigError(
        f"policy.path={folder}: the tokenizer has {len(ids):,} tokens with ids up to {max(ids, default=-1):,}, but the "
        f"model has {rows:,}: they do not belong together. Put the model's own tokenizer files (tokenizer.json, "
        "tokenizer_config.json) into that folder"
    )


def check_prompts(
    problems: Sequence[Problem],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    key: str = "task.template",
) -> None:
    """Raises ConfigError for a template, and DataError for problems, that the policy would not read as written."""
    rendered = template.render("")
    parts = [rendered] if isinstance(rendered, str) else [message["content"] for message in rendered]
    try:
        ids = template.encode("", tokenizer, next((p.before for p in problems if p.before), ()))
    except ValueError as error:  # a chat for a policy without a chat template
        raise ConfigError(str(error)) from None
    rows = model.get_input_embeddings().num_embeddings
    if fault := next(filter(None, _faults(parts, tokenizer, rows)), None) or _beyond(ids, rows):
        raise ConfigError(f"{key}={template.name} does not fit the policy's tokenizer: {fault}")
    texts = ["\n".join((*(m["content"] for m in p.before), p.problem)) for p in problems]
    faults = _faults(texts, tokenizer, rows)
    named = [f"{problem.id}: {fault}" for problem, fault in zip(problems, faults, strict=True) if fault]
    if named:
        raise DataError(
            f"the policy's tokenizer cannot express {len(named):,} of {len(problems):,} problems: "
            f"{'; '.join(named[:3])}. Use another policy, or take these problems out of task.path"
        )


def _faults(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, rows: int) -> list[str | None]:
    """What is lost of each text when it is encoded and decoded, apart from spaces; None if nothing is."""
    if not texts:
        return []
    encoded = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    decoded = tokenizer.batch_decode(encoded, clean_up_tokenization_spaces=False)
    return [_beyond(ids, rows) or _lost(text, back) for ids, text, back in zip(encoded, texts, decoded, strict=True)]


def _beyond(ids: Sequence[int], rows: int) -> str | None:
    return f"token {max(ids)} is beyond the model's {rows:,}" if max(ids, default=0) >= rows else None


def _lost(text: str, back: str) -> str | None:
    before, after = (_without_spaces(each) for each in (text, back))
    if before == after:
        return None
    if lacking := sorted(set(before) - set(after)):
        return f"it has no token for {', '.join(map(repr, lacking[:5]))}"
    return f"{text[:40]!r} is read as {back[:40]!r}"


def _without_spaces(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())
