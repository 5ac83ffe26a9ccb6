"""Reads the prompts as the policy reads them: encoded, decoded again, and searched for their problems. Refuses a
tokenizer that does not belong to the model, and responses that could not end.
"""

import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.chat_template import ChatTemplateError, apply_chat_template
from dapo_lit.config import ConfigError
from dapo_lit.data.sources import DataError
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.policy.load import eos_ids
from dapo_lit.preflight.table import Finding
from dapo_lit.rollout.records import Prompt

SMALLEST_PART = 0.5
"""Of a model's vocabulary, what its tokenizer must have more of. Vocabularies are padded by some percent at most."""


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, folder: str | Path) -> Finding:
    """Raises ConfigError if the tokenizer's ids are not those of the model, or no token of the model ends a response.

    Added tokens beyond the vocabulary are allowed (Gemma 3 has one for images); no prompt may contain them.
    """
    rows, added = model.get_input_embeddings().num_embeddings, set(tokenizer.added_tokens_decoder)
    ids = set(tokenizer.get_vocab().values())
    highest = max(ids - added, default=-1)
    if highest >= rows or len(ids) <= SMALLEST_PART * rows:
        raise ConfigError(
            f"policy.path={folder}: the tokenizer has {len(ids):,} tokens with ids up to {max(ids, default=-1):,}, but "
            f"the model has {rows:,}: they do not belong together. Put the model's own tokenizer files (tokenizer.json "
            "and tokenizer_config.json) into that folder"
        )
    try:
        ends = eos_ids(model, tokenizer)
    except ValueError as error:
        raise ConfigError(f"policy.path={folder}: {error}; set eos_token in tokenizer_config.json") from None
    if min(ends) >= rows:
        raise ConfigError(
            f"policy.path={folder}: responses end with token {min(ends):,}, and the model has {rows:,}: no response "
            "could end. Set eos_token_id in generation_config.json to the token that the model was trained with"
        )
    own, warnings = tokenizer.eos_token_id, list[str]()
    files = [getattr(source, "eos_token_id", None) for source in (model.config, model.generation_config)]
    configured = {end for ids in files for end in (ids if isinstance(ids, list | tuple) else [ids])} - {None}
    named = ", ".join(repr(tokenizer.convert_ids_to_tokens(end)) for end in ends)
    if own is not None and configured and own not in configured:
        warnings.append(
            f"the model's files and its tokenizer ({tokenizer.eos_token!r}) name different tokens that end a response; "
            f"{named} end one here. Set eos_token_id in generation_config.json to those that the model writes"
        )
    return Finding(f"{len(tokenizer):,} tokens; a response ends with {named}", tuple(warnings))


REPEATED = 0.05
"""A larger share of problems whose prompt is that of another gets a warning."""
PROBLEM, ANSWER = "qzq", "zqz"
"""Texts that no chat template contains."""


def check_prompts(
    prompts: Sequence[Prompt],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    key: str = "task.template",
) -> Finding:
    """Raises ConfigError for a template, and DataError for problems, that the policy would not read as written."""
    rows = model.get_input_embeddings().num_embeddings
    rendered = template.render("")
    parts = [rendered] if isinstance(rendered, str) else [message["content"] for message in rendered]
    if fault := next(filter(None, _faults(parts, tokenizer, rows)), None):
        raise ConfigError(f"{key}={template.name} does not fit the policy's tokenizer: {fault}")
    encoded = [prompt.ids.tolist() for prompt in prompts]
    decoded = tokenizer.batch_decode(encoded, clean_up_tokenization_spaces=False) if encoded else []
    lost = [
        prompt
        for prompt, ids, read in zip(prompts, encoded, decoded, strict=True)
        if max(ids, default=0) >= rows or _bare(prompt.problem.problem) not in _bare(read)
    ]
    if lost:
        _refuse(lost, len(prompts), tokenizer, rows, f"{key}={template.name}")
    distinct, lengths = len({*map(tuple, encoded)}), [len(ids) for ids in encoded]
    warnings = []
    if distinct < (1 - REPEATED) * len(prompts):
        warnings.append(
            f"{len(prompts):,} problems have only {distinct:,} distinct prompts; task.deduplicate=true keeps each once"
        )
    special = [token for token in tokenizer.all_special_tokens if token]
    if odd := [p.problem.id for p in prompts if any(token in p.problem.problem for token in special)]:
        warnings.append(
            f"{len(odd):,} problems contain special tokens of the tokenizer, such as {odd[0]}, and the policy reads "
            "them as such: take them out of the texts"
        )
    if template.messages and not _has_generation_prompt(tokenizer):
        warnings.append(
            "the tokenizer's chat template opens no turn of the assistant (add_generation_prompt has no effect), so "
            "the policy continues the user's; mend chat_template in the model's folder, or choose a text template"
        )
    tokens = f"{min(lengths, default=0)} to {max(lengths, default=0)} tokens"
    words = f"{len(prompts):,} problems, each found in its prompt; {distinct:,} distinct prompts of {tokens}"
    return Finding(words, tuple(warnings))


def _refuse(lost: Sequence[Prompt], total: int, tokenizer: PreTrainedTokenizerBase, rows: int, template: str) -> None:
    faults = _faults([prompt.problem.problem for prompt in lost], tokenizer, rows)
    named = [f"{prompt.problem.id}: {fault}" for prompt, fault in zip(lost, faults, strict=True) if fault]
    if named:
        raise DataError(
            f"the policy's tokenizer cannot express {len(named):,} of {total:,} problems: {'; '.join(named[:3])}. Use "
            "another policy, or take these problems out of task.path"
        )
    read = tokenizer.decode(lost[0].ids.tolist())
    raise ConfigError(
        f"{template}: {len(lost):,} of {total:,} prompts do not contain their problem: the policy reads {read[-60:]!r} "
        f"for {lost[0].problem.problem[:60]!r}. Mend the tokenizer's chat template in the model's folder, or choose a "
        "text template"
    )


def _faults(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, rows: int) -> list[str | None]:
    """What is lost of each text when it is encoded and decoded, apart from spaces; None if nothing is."""
    encoded = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    decoded = tokenizer.batch_decode(encoded, clean_up_tokenization_spaces=False)
    return [_beyond(ids, rows) or _lost(text, back) for ids, text, back in zip(encoded, texts, decoded, strict=True)]


def _beyond(ids: Sequence[int], rows: int) -> str | None:
    return f"token {max(ids)} is beyond the model's {rows:,}" if max(ids, default=0) >= rows else None


def _lost(text: str, back: str) -> str | None:
    before, after = _bare(text), _bare(back)
    if before == after:
        return None
    if lacking := sorted(set(before) - set(after)):
        return f"it has no token for {', '.join(map(repr, lacking[:5]))}"
    return f"{text[:40]!r} is read as {back[:40]!r}"


def _bare(text: str) -> str:
    """The text without spaces and in one Unicode form, which tokenizers may change."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _has_generation_prompt(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether what follows the problem in a prompt is what precedes an assistant's message.

    Only templates that ignore `add_generation_prompt` are compared: others may open a turn in a way of their own, such
    as one for reasoning.
    """

    def rendered(answers: bool, opens: bool) -> str:
        messages = [{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": ANSWER}][: 1 + answers]
        return str(apply_chat_template(tokenizer, messages, tokenize=False, add_generation_prompt=opens))

    with suppress(ChatTemplateError):  # it may take no conversation of this form
        prompt = rendered(answers=False, opens=True)
        if prompt == rendered(answers=False, opens=False):
            opening = rendered(answers=True, opens=False).partition(PROBLEM)[2].partition(ANSWER)[0]
            return len(_bare(prompt.partition(PROBLEM)[2])) >= len(_bare(opening))
    return True
