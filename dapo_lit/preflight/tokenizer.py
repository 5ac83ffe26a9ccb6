"""Refuses, before any work, a tokenizer that does not belong to the model, and responses that could not end."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.config import ConfigError
from dapo_lit.policy.load import eos_ids
from dapo_lit.preflight.table import Finding

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
