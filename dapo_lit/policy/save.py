"""Saves a policy as an HF folder, atomically."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

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
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".building-{folder.name}-"))
    try:
        with quiet_transformers():
            model.save_pretrained(building)
        tokenizer.save_pretrained(building)
        for name, note in notes.items():
            (building / name).write_text(json.dumps(note, indent=2) + "\n")
        for name, content in (files or {}).items():
            (building / name).write_bytes(content)
        building.chmod(0o755)  # mkdtemp's 0700 would lock out other users
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
