"""Reads the prompts as the policy reads them: encoded, decoded again, and searched for their problems and the messages
before them. Shows the first. Refuses a tokenizer that does not belong to the model, and responses that could not end.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ablations.errors import DataError
from ablations.screen import printable
from dapo_lit.config import ConfigError
from dapo_lit.data.selection import deduplicate
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.policy.load import eos_ids, turn_ending
from dapo_lit.preflight.table import Finding
from dapo_lit.rollout.records import Prompt
from math_answers.forms import ASKED

SMALLEST_PART = 0.5
"""A tokenizer must have more than this share of its model's vocabulary, which is padded by some percent at most."""


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
    return Finding(f"{len(tokenizer):,} tokens; a response ends with {_named(ends, tokenizer)}")


def _named(ends: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return " or ".join(repr(tokenizer.convert_ids_to_tokens(end)) for end in ends)


REPEATED = 0.05
"""A larger share of problems whose prompt is that of another gets a warning."""


def check_prompts(
    prompts: Sequence[Prompt],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    key: str = "task.template",
    source: str = "task.path",
) -> Finding:
    """Raises ConfigError for a template, and DataError for problems, that the policy would not read as written.

    key, source: of the template and of the problems, for messages.
    """
    rows = model.get_input_embeddings().num_embeddings
    rendered = template.render("")
    parts = [rendered] if isinstance(rendered, str) else [message["content"] for message in rendered]
    if fault := next(filter(None, _faults(parts, tokenizer, rows)), None):
        raise ConfigError(f"{key}={template.name} does not fit the policy's tokenizer: {fault}")
    encoded = [prompt.ids.tolist() for prompt in prompts]
    decoded = tokenizer.batch_decode(encoded, clean_up_tokenization_spaces=False) if encoded else []
    lost: list[Prompt] = []
    dropped: dict[str, int] = {}  # prompts that lack a message of this role
    for prompt, ids, read in zip(prompts, encoded, decoded, strict=True):
        bare = _bare(read)
        if max(ids, default=0) >= rows or _bare(prompt.problem.problem) not in bare:
            lost.append(prompt)
        before = prompt.problem.before or template.messages[:-1]
        for role in {message["role"] for message in before if _bare(message["content"]) not in bare}:
            dropped[role] = dropped.get(role, 0) + 1
    if lost:
        _refuse(lost, len(prompts), tokenizer, rows, f"{key}={template.name}", source)
    distinct, lengths = len({*map(tuple, encoded)}), [len(ids) for ids in encoded]
    warnings = []
    if distinct < (1 - REPEATED) * len(prompts):
        kept = len(deduplicate([prompt.problem for prompt in prompts])[0])
        cure = f"task.deduplicate=true keeps {kept:,} of these rows"
        if source != "task.path":  # the key is of the training problems
            cure = (
                f"a repeated problem counts several times; delete the repeated rows of {source}, so that {kept:,} stay"
            )
        if kept == len(prompts):
            cure = "their rows differ in what the prompt does not show"
        warnings.append(f"{len(prompts):,} problems have only {distinct:,} distinct prompts; {cure}")
    warnings += _two_forms(prompts, template, key)
    warnings += _lost_messages(prompts, dropped, template, key)
    warnings += _unread_ends(prompts, template, tokenizer, model, key)
    tokens = f"{min(lengths, default=0)} to {max(lengths, default=0)} tokens"
    words = f"{len(prompts):,} problems, each found in its prompt; {distinct:,} distinct prompts of {tokens}"
    return Finding(words, tuple(warnings), _first_prompt(prompts, tokenizer, model))


SHOWN_LINES, SHOWN_CHARS = (10, 6), (900, 500)
"""Lines and characters shown at the start and at the end of a long prompt; the middle is left out."""


def _first_prompt(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
) -> tuple[str, ...]:
    """The first prompt with its special tokens, its reference, and where the response starts and ends."""
    if not prompts:
        return ()
    first = prompts[0]
    text = printable(tokenizer.decode(first.ids.tolist(), clean_up_tokenization_spaces=False))
    if len(text) > sum(SHOWN_CHARS):
        text = f"{text[: SHOWN_CHARS[0]]}\n[{len(text) - sum(SHOWN_CHARS):,} characters]\n{text[-SHOWN_CHARS[1] :]}"
    lines = [f"| {line}" for line in f"{text}[response]".split("\n")]
    if len(lines) > sum(SHOWN_LINES) + 1:
        left = f"| [{len(lines) - sum(SHOWN_LINES):,} lines]"
        lines = [*lines[: SHOWN_LINES[0]], left, *lines[-SHOWN_LINES[1] :]]
    ends = _named(eos_ids(model, tokenizer), tokenizer)
    answer = printable(first.problem.answer)
    answer = answer if len(answer) <= SHOWN_CHARS[1] else f"{answer[: SHOWN_CHARS[1]]}..."
    return (
        f"the first, {first.problem.id}, as the policy reads it:",
        *lines,
        f"a response ends with {ends}, or at the limit; "
        + (f"its reference answer is {answer!r}" if answer else "it has no reference answer"),
    )


def _two_forms(prompts: Sequence[Prompt], template: PromptTemplate, key: str) -> list[str]:
    """A warning about prompts that ask for the answer in two forms, in the data, in the template or in both."""
    rendered = template.render("")
    own = rendered if isinstance(rendered, str) else "\n".join(message["content"] for message in rendered)
    found: dict[tuple[str, ...], int] = {}
    for prompt in prompts:
        statement, before = template.asked(prompt.problem)
        text = "\n".join([own, statement, *(message["content"] for message in before)])
        forms = tuple(form.said for form in ASKED if re.search(form.mark, text))
        if len(forms) > 1:
            found[forms] = found.get(forms, 0) + 1
    if sum(found.values()) <= REPEATED * len(prompts):
        return []
    forms = max(found, key=lambda forms: found[forms])
    return [
        f"{found[forms]:,} of {len(prompts):,} prompts ask for the answer in two forms, {' and '.join(forms)}, and a "
        f"reward reads one; take one out of the data or choose another {key} ({key}=chat adds none)"
    ]


def _lost_messages(
    prompts: Sequence[Prompt], dropped: Mapping[str, int], template: PromptTemplate, key: str
) -> list[str]:
    """Warnings about system messages and worked examples that are in a file and not in the prompt."""
    total = f"{len(prompts):,}"
    warnings = [
        f"{count:,} of {total} prompts lack the message of the role {role} before their problem: the "
        "tokenizer's chat template drops it. Write it into the user's message, or correct chat_template in the model's "
        "folder"
        for role, count in dropped.items()
    ]
    replacing, own = sum(bool(prompt.problem.before) for prompt in prompts), len(template.messages) - 1
    if replacing and own > 0:
        warnings.append(
            f"{replacing:,} of {total} problems have messages of their own, which take the place of the {own} before "
            f"{{problem}} in {key}={template.name}, so those are not in their prompts; {key}=chat adds none"
        )
    return warnings


def _unread_ends(
    prompts: Sequence[Prompt],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    key: str,
) -> list[str]:
    """Warnings about a second BOS token, a prompt that ends as responses do, and an end of turn that ends none."""
    warnings, bos = [], tokenizer.bos_token_id
    if prompts and bos is not None and prompts[0].ids[:2].tolist() == [bos, bos]:
        writer, cure = f"{key}={template.name}", "take it out of its text"
        if template.messages:
            writer, cure = "the tokenizer's chat template", "correct chat_template in the model's folder"
        warnings.append(
            f"prompts start with two {tokenizer.bos_token!r}, which models are not trained on, one of them written by "
            f"{writer}; {cure}"
        )
    ends = eos_ids(model, tokenizer)
    if prompts and (last := prompts[0].ids[-1:].tolist()) and last[0] in ends:
        writer, cure = "the tokenizer", "set add_eos_token=false in tokenizer_config.json, or fix its post_processor"
        if template.messages:
            writer, cure = "the tokenizer's chat template", "correct chat_template in the model's folder"
        elif tokenizer.encode(template.around_problem()[1], add_special_tokens=False)[-1:] == last:
            writer, cure = f"{key}={template.name}", "take it out of its text"
        warnings.append(
            f"prompts end with {_named(last, tokenizer)}, which ends a response, so the policy is asked to go on after "
            f"its end; it is written by {writer}; {cure}"
        )
    ending = turn_ending(tokenizer).strip() if template.messages else ""
    if ending and not {*tokenizer.encode(ending, add_special_tokens=False)} & {*ends}:
        warnings.append(
            f"the chat template closes an assistant's turn with {ending!r}, and none of the tokens that end a response "
            f"({_named(ends, tokenizer)}) is in it, so a response that closes its turn goes on to the limit; take the "
            "tokenizer files that the model was trained with, or a chat template that closes turns as they do"
        )
    return warnings


def _refuse(
    lost: Sequence[Prompt], total: int, tokenizer: PreTrainedTokenizerBase, rows: int, template: str, source: str
) -> None:
    faults = _faults([prompt.problem.problem for prompt in lost], tokenizer, rows)
    named = [f"{prompt.problem.id}: {fault}" for prompt, fault in zip(lost, faults, strict=True) if fault]
    if named:
        raise DataError(
            f"the policy's tokenizer cannot express {len(named):,} of {total:,} problems: {'; '.join(named[:3])}. Use "
            f"another policy, or take these problems out of {source}"
        )
    read = tokenizer.decode(lost[0].ids.tolist())
    raise ConfigError(
        f"{template}: {len(lost):,} of {total:,} prompts do not contain their problem: the policy reads {read[-60:]!r} "
        f"for {lost[0].problem.problem[:60]!r}. Correct the tokenizer's chat template in the model's folder, or "
        "choose a text template"
    )


def _faults(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, rows: int) -> list[str | None]:
    """The loss in each text when it is encoded and decoded, apart from spaces; None if there is none."""
    encoded = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    decoded = tokenizer.batch_decode(encoded, clean_up_tokenization_spaces=False)
    return [
        f"token {max(ids)} is beyond the model's {rows:,}" if max(ids, default=0) >= rows else _lost(text, back)
        for ids, text, back in zip(encoded, texts, decoded, strict=True)
    ]


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
