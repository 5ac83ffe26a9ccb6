"""Saves a policy as an HF folder, atomically."""

import json
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.files import replacing
from dapo_lit.policy.load import quiet_transformers


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
    with replacing(folder) as draft:
        draft.mkdir()
        with quiet_transformers():
            model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        for name, note in notes.items():
            (draft / name).write_text(json.dumps(note, indent=2) + "\n")
        for name, content in (files or {}).items():
            (draft / name).write_bytes(content)
