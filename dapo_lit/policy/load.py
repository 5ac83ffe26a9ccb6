"""Loads models and tokenizers from a hub id or a local HF folder, finds their EOS tokens, saves them, and says what is
wrong with safetensors files that are damaged or of another model.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from ablations.border import FolderName, checked, short
from ablations.errors import DamagedError
from ablations.files.atomic import replacing
from ablations.texts import MB, json_tree, read_bytes
from dapo_lit.chat_template import ChatTemplateError, render_chats
from dapo_lit.model_worker import ask
from dapo_lit.policy.folders import other_than_policy, without_weights
from dapo_lit.rewards.work import Reading

Shape = tuple[int, ...]
NO_CODE = {"trust_remote_code": False}
"""For transformers, which without it asks on the terminal whether a folder's code may run."""


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """An open safetensors file; an OSError with its path if it is not whole."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, FileNotFoundError) as error:
        raise OSError(f"policy.path: {file} is missing, truncated or damaged ({error}); copy it again") from None


def files_of_tensors(folder: Path) -> dict[str, Path]:
    """The file of every tensor in a folder."""
    # Its map is read rather than every file's header: a model of 100 files lies on a slow disk.
    if (weights := weight_map(folder)) is not None:
        return {name: folder / file for name, file in weights.items()}
    places: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with opened(file) as tensors:
            places |= dict.fromkeys(tensors.keys(), file)
    return places


def weight_map(folder: Path) -> dict[str, str] | None:
    """The file of every tensor, as the index of a folder says; None: it has none. Raises DamagedError in one line."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return None
    tree = checked(json_tree(read_bytes(index, 64 * MB), index), dict[str, Any], index)
    return checked(tree.get("weight_map"), dict[str, FolderName], f"{index}, weight_map")


READ_S, READ_MB = 3.0, 20
"""The time in which config and tokenizer of a folder are read, as far as they are no larger; else as much longer."""


def read_first(folder: Path) -> None:
    """Reads a folder's config, tokenizer and headers in another process (model_worker.py).

    Raises DamagedError: that has no end, takes a gigabyte, or config.json has sizes that the files do not have.
    """
    about = [(file.name, file.stat()) for file in sorted(folder.iterdir()) if file.is_file()]
    _read_first(folder, tuple((name, found.st_size, found.st_mtime_ns) for name, found in about))


@cache
def _read_first(folder: Path, about: tuple[tuple[str, int, int], ...]) -> None:
    # By the files' sizes and times: model and tokenizer are read of one folder.
    size = sum(size for name, size, _ in about if not name.endswith(".safetensors"))
    limit = READ_S * max(1.0, size / (READ_MB * MB))
    outcome = ask(Reading(str(folder)), limit)
    fault = f"reading them has not ended after {limit:.3g} s" if outcome.timed_out else outcome.error
    if fault is not None:
        raise DamagedError(
            f"policy.path={folder}: config, tokenizer and the headers of the weights cannot be read ({fault}); copy "
            "its files again, or choose another folder"
        )
    if outcome.result is not None:
        raise DamagedError(f"policy.path={folder}: {outcome.result}")


def check_headers(folder: Path, wanted: Mapping[str, Shape]) -> None:
    """Raises OSError unless the files have these tensors in these shapes; reads no weights."""
    places, found = files_of_tensors(folder), dict[str, Shape]()
    for file in sorted({places[name] for name in wanted if name in places}):
        with opened(file) as tensors:
            found |= {name: tuple(tensors.get_slice(name).get_shape()) for name in wanted if places.get(name) == file}
    check_fit(
        folder,
        lacking=sorted(wanted.keys() - found.keys()),
        reshaped=[(name, found[name], shape) for name, shape in wanted.items() if found.get(name, shape) != shape],
    )


def check_fit(
    folder: object, *, lacking: Sequence[str], reshaped: Sequence[tuple[str, Sequence[int], Sequence[int]]]
) -> None:
    """Raises OSError if tensors are not in the files, or (name, in the file, in the model) differ in shape."""
    if reshaped:
        name, found, wanted = min(reshaped)
        fault = f"{len(reshaped)} tensors have other shapes, such as {name}, {tuple(found)} for {tuple(wanted)}"
    elif lacking:
        fault = f"{len(lacking)} tensors of the model are not in the files, such as {min(lacking)}"
    else:
        return
    raise OSError(
        f"policy.path={folder}: the weights do not fit config.json: {fault}; put the config.json of these weights into "
        "the folder"
    )


def damage(folder: Path, part: str, error: Exception) -> OSError:
    """The error for a `part` of a folder that transformers cannot read; names the first file that is not whole."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with opened(file):
                pass
        except OSError as fault:
            return fault
    reason = " ".join(str(error).split())
    if isinstance(error, UnpicklingError) or "custom code" in reason:
        return OSError(
            f"policy.path={folder}: the {part} is a pickle or has code of its own, which is never run; take a model "
            "in safetensors of a type that transformers knows"
        )
    return OSError(
        f"policy.path={folder}: the {part} cannot be read ({type(error).__name__}: {reason[:240]}); copy its "
        "files again, or choose another folder"
    )


_MARK = "zqz"
"""A text that no chat template contains."""


def load_model(path: str | Path, *, dtype: torch.dtype = torch.float32, own: bool = False) -> PreTrainedModel:
    """A causal language model in evaluation mode, on the CPU.

    own: this package has made the folder; any other is read in a process with limits before.

    Raises FileNotFoundError if there is no such model, OSError if its files are damaged or do not belong together; both
    with what to do.
    """
    folder = fetched(path, weights=True, own=own)
    try:
        # Lightning builds under another one.
        with quiet_transformers(), torch.device("cpu"):
            model, read = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, ignore_mismatched_sizes=True, output_loading_info=True, **NO_CODE
            )
    except Exception as error:
        # Transformers and safetensors raise kinds of their own.
        raise damage(folder, "model", error) from error
    # transformers would fill these with random numbers.
    # ignore_mismatched_sizes above, so that all faults are named here in one line.
    check_fit(path, lacking=sorted(read["missing_keys"]), reshaped=sorted(read["mismatched_keys"]))
    # Tied by config, untied in the file: transformers would drop the file's head without a word.
    ties = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if ties and head is not None and head.weight is not embedding.weight and not head.weight.equal(embedding.weight):
        raise OSError(
            f"policy.path={path}: config.json ties the head to the embedding, but the files have a head of its own; "
            "set tie_word_embeddings to false in the folder's config.json"
        )
    return model.eval()


def load_tokenizer(path: str | Path, *, own: bool = False) -> PreTrainedTokenizerBase:
    """The model's tokenizer. If it has no pad token, EOS is used: masks are made from lengths, never from pad ids.

    own: as in load_model.

    Raises FileNotFoundError and OSError like load_model.
    """
    folder = fetched(path, own=own)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
    except Exception as error:  # as in load_model
        raise damage(folder, "tokenizer", error) from error
    # Of the class, as each family has other files.
    files = set(tokenizer.vocab_files_names.values())
    if not any((folder / file).is_file() for file in files):
        # Transformers would make a tokenizer without a vocabulary.
        raise FileNotFoundError(
            f"policy.path={path}: the folder has no tokenizer: none of {', '.join(sorted(files))}; copy the tokenizer "
            "files of the model into it"
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise OSError(
            f"policy.path={path}: model_max_length in tokenizer_config.json is {short(tokenizer.model_max_length)}; it "
            "must be a number of tokens"
        )
    if tokenizer.pad_token is None:
        # For transformers' own checks; nothing here looks at it.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """All tokens that end a response, ascending: those of the generation config, the config and the tokenizer, and the
    one that closes an assistant's turn in the chat template. If one were missed, finished responses would count as
    truncated. Raises ValueError if there is none."""
    found: set[int] = set()
    for place, ids in {
        "generation_config.json": getattr(model.generation_config, "eos_token_id", None),
        "config.json": model.config.eos_token_id,
        "tokenizer_config.json": tokenizer.eos_token_id,
        "the chat template": end_of_turn(tokenizer),
    }.items():
        # A config has one id or a list of them.
        listed = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
        if not all(type(one) is int and one >= 0 for one in listed):
            raise ValueError(f"eos_token_id of {place} is {short(ids)}; it must be a token's id or a list of such")
        found.update(listed)
    if not found:
        raise ValueError("neither the model nor its tokenizer has an EOS token; responses could never end")
    return tuple(sorted(found))


def response_text(ids: Sequence[int], ends: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of a response, without special tokens and without the token that ended it, which need not be special.

    ends: tokens that end a response (`eos_ids`).
    """
    kept = list(ids[:-1] if len(ids) and int(ids[-1]) in ends else ids)
    return str(tokenizer.decode(kept, skip_special_tokens=True))


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that closes an assistant's message in the chat template: the first special one after its text, also one
    that only tokenizer.json calls special (as Llama 3 has `<|eot_id|>`), else the first that was added to the
    vocabulary."""
    # Without special tokens of its own, or the first would be the beginning of a text.
    ids = tokenizer.encode(turn_ending(tokenizer), add_special_tokens=False)
    added = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_ids, *(token for token, about in added.items() if about.special)}
    # Some vocabularies have added tokens for runs of spaces or line breaks, which close nothing.
    closing = {token for token, about in added.items() if about.content.strip()}
    return next((token for kind in (special, closing) for token in ids if token in kind), None)


def turn_ending(tokenizer: PreTrainedTokenizerBase) -> str:
    """What the chat template writes after an assistant's text; empty if there is no template, or it fails."""
    if not tokenizer.chat_template:
        return ""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _MARK}]
    try:
        return render_chats(tokenizer, [turns], add_generation_prompt=False)[0].rpartition(_MARK)[2]
    except ChatTemplateError:  # of no use here; a prompt that needs it fails by itself
        return ""


DESCRIBING = ["*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja"]
"""Files of a model on the hub that are no weights: config, tokenizer, templates, the index of the weights."""


def fetched(path: str | Path, *, weights: bool = False, own: bool = False) -> Path:
    """The folder of a model on this machine; another process has read it (`read_first`).

    Of a hub id, config and tokenizer are downloaded and read, and only then, if `weights`, the weights.

    own: this package has made the folder.

    Raises FileNotFoundError: there is no such model; OSError: it is of another kind (folders.py), or lacks weights;
    DamagedError as read_first does.
    """
    folder = Path(path).expanduser()
    if not own:
        _refuse_other(path, other_than_policy(folder))
    if not (folder / "config.json").is_file():
        # A path that looks like a folder is never asked of the hub.
        if folder.exists() or folder.is_absolute():
            raise _missing(path, f"no config.json in {folder}")
        _check_hub(path)
        folder = _downloaded(path, DESCRIBING)
        _refuse_other(path, other_than_policy(folder))
        if weights:
            read_first(folder)
            index = weight_map(folder)
            _downloaded(path, sorted({*index.values()}) if index else ["model.safetensors"])
    if not own:
        if weights:
            _refuse_other(path, without_weights(folder))
        read_first(folder)
    return folder


def _refuse_other(path: str | Path, found: str | None) -> None:
    if found is not None:
        raise OSError(f"policy.path={path} cannot be trained or sampled from: {found}")


def _downloaded(path: str | Path, files: list[str]) -> Path:
    try:
        return Path(snapshot_download(str(path), allow_patterns=files))
    except Exception as error:
        # From the HTTP client or the hub: the model is not there.
        raise _missing(path, error) from error


def _check_hub(path: str | Path) -> None:
    """Raises FileNotFoundError if neither the hub's local cache nor the hub has the model.

    Without a network this fails at once, whereas a download would retry for most of a minute.
    """
    try:
        if not isinstance(try_to_load_from_cache(str(path), "config.json"), str):
            # Ten seconds, and no retry.
            HfApi().model_info(str(path), timeout=10)
    except Exception as error:
        # From the HTTP client, the hub or an invalid id: the model is not there.
        raise _missing(path, error) from error


def _missing(path: str | Path, reason: object) -> FileNotFoundError:
    first_line = str(reason).strip().partition("\n")[0]
    return FileNotFoundError(
        f"policy.path: there is no model {str(path)!r}: no local HF folder has this name, and "
        f"the model hub could not provide it ({first_line}). Without a network, set policy.path to a local folder; "
        "`make model` puts SmolLM2-135M-Instruct into models/smollm2_135m."
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hides transformers' progress bars for reading and writing weights, and its report of tensors that do not fit."""
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def save_policy(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    notes: Mapping[str, Mapping[str, object]],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes config, safetensors, tokenizer, `notes` (file name -> JSON object) and other files.

    `folder` appears when it is complete.

    Raises FileExistsError if `folder` exists.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} already exists; move it away or choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A killed process must not leave a folder that loads and lacks a file.
    with replacing(folder) as draft:
        draft.mkdir()
        with quiet_transformers():
            model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        for name, note in notes.items():
            (draft / name).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
        for name, content in (files or {}).items():
            (draft / name).write_bytes(content)
