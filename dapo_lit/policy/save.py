"""Saves a policy as an HF folder, atomically."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.policy.load import quiet_transformers


def save_policy(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, notes: Mapping[str, Mapping[str, object]]
) -> None:
    """Writes config, safetensors, tokenizer and `notes` (file name -> JSON object); `folder` appears when complete.

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
        for name, content in notes.items():
            (building / name).write_text(json.dumps(content, indent=2) + "\n")
        building.chmod(0o755)  # mkdtemp's 0700 would lock out other users
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
