"""Models and tokenizers from a hub id, a local HF folder or a GGUF file, and every token that ends a response."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

_MARK = "zqz"
"""Words of an assistant that no chat template contains."""


def load_model(
    path: str | Path, *, dtype: torch.dtype = torch.float32, attn_implementation: str | None = None
) -> PreTrainedModel:
    """A causal language model in evaluation mode, on the CPU.

    `attn_implementation`: as in transformers; None leaves the choice to it. The weights of a GGUF file are dequantised.
    Raises FileNotFoundError, with what to do, if there is no such model.
    """
    place, extra = _place(path)
    if extra:
        extra = {**extra, "quantization_config": GgufConfig(dequantize=True)}
    if attn_implementation is not None:
        extra["attn_implementation"] = attn_implementation
    try:
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, **extra)
    except OSError as error:
        raise _missing(path, error) from error
    return model.eval()


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer that lies with the model. Without a pad token of its own it pads with an EOS token: masks are made
    from lengths, never from pad ids. Raises FileNotFoundError as load_model does."""
    place, extra = _place(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **extra)
    except OSError as error:
        raise _missing(path, error) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that ends a response, ascending: of the generation config, of the config, the tokenizer's, and the
    one that closes an assistant's turn in its chat template. With only one of them counted, finished responses look
    truncated. Raises ValueError if there is none."""
    found: set[int] = set()
    for ids in (
        getattr(model.generation_config, "eos_token_id", None),
        model.config.eos_token_id,
        tokenizer.eos_token_id,
        _end_of_turn(tokenizer),
    ):
        found.update([ids] if isinstance(ids, int) else ids or [])
    if not found:
        raise ValueError("neither the model nor its tokenizer names an EOS token; responses could never end")
    return tuple(sorted(found))


def end_id(tokenizer: PreTrainedTokenizerBase, *, chat: bool) -> int:
    """The token that a response is taught to end with: in a chat the one that closes the assistant's turn, else EOS.

    Raises ValueError if there is none.
    """
    found = _end_of_turn(tokenizer) if chat else None
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        raise ValueError("the tokenizer names no EOS token; responses could never end")
    return found


def _end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The first special token after an assistant's words in the chat template."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _MARK}]
    tail = str(tokenizer.apply_chat_template(turns, tokenize=False)).rpartition(_MARK)[2]
    special = set(tokenizer.all_special_ids)
    return next((i for i in tokenizer.encode(tail, add_special_tokens=False) if i in special), None)


def _place(path: str | Path) -> tuple[str, dict[str, object]]:
    """Where transformers should look, and the argument that names a GGUF file."""
    local = Path(path).expanduser()
    if local.suffix == ".gguf":
        if not local.is_file():
            raise _missing(path, "no such file")
        return str(local.parent), {"gguf_file": local.name}
    if (local / "config.json").is_file():
        return str(local), {}
    if local.exists() or local.is_absolute():
        raise _missing(path, f"no config.json in {local}")
    _ask_the_hub(path)
    return str(path), {}


def _ask_the_hub(path: str | Path) -> None:
    """Passes if the hub's local cache or the hub has the model. Without a network this fails at once, where a download
    tries again for most of a minute."""
    try:
        if not isinstance(try_to_load_from_cache(str(path), "config.json"), str):
            HfApi().model_info(str(path), timeout=10)
    except Exception as error:  # Of the HTTP client, of the hub, of an id that is none: all mean the same here.
        raise _missing(path, error) from error


def _missing(path: str | Path, reason: object) -> FileNotFoundError:
    first_line = str(reason).strip().partition("\n")[0]
    return FileNotFoundError(
        f"policy.path: there is no model {str(path)!r}: no local HF folder or GGUF file has this name, and the model "
        f"hub did not give one ({first_line}). Without a network, set policy.path to a local folder; "
        "`make model` puts SmolLM2-135M-Instruct into models/smollm2_135m."
    )


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keeps the bars for reading and writing weights off the terminal."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
