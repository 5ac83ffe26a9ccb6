"""vLLM in a process without a trainer, sampled three times with the same CUDA graphs: python graph_probe.py FOLDER

FOLDER is one of random_policy.py. A sample is compared with the policy's own log-probs: after the engine has captured
its graphs; after the call that Lightning makes when it sets a GPU up, which the engine blocks; after the real one, with
what it freed overwritten. probe.json has the nats of each phase, or null of a phase that has not ended: a wrong address
ends the process. `conclusion` says what follows for why a run of 0.5B crashed under Lightning.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from g_vllm import largest_difference, requests
from part import DEVICE, ON_GPU

CAPTURED, BLOCKED, FREED = "after_capture", "after_blocked_clear", "after_real_clear"
PHASES = (CAPTURED, BLOCKED, FREED)
AGREES = 0.05
"""Nats. Engine and trainer were 0.008 apart in bfloat16, and 0.33 where an engine read what was freed."""
CLEAR = "_cuda_clearCublasWorkspaces"


def conclusion(found: dict[str, Any]) -> tuple[str, bool]:
    """What follows from a probe's phases, and whether a run had better do without CUDA graphs."""
    fine = {phase: found[phase] is not None and found[phase] < AGREES for phase in PHASES if phase in found}
    if CAPTURED not in fine:
        return "nothing: the engine did not start", False
    if not fine[CAPTURED]:
        return "CUDA graphs fail without a trainer: workspaces are not the cause", True
    if BLOCKED in fine and not fine[BLOCKED]:
        return "workspaces are freed by a call that is not blocked: the fix is incomplete", True
    if FREED not in fine:
        return "nothing: it was ended before the workspaces were freed", False
    if not fine[FREED]:
        return "graphs use what the clear frees: the diagnosis is right, and the block holds", False
    return "graphs survive the clear: the crash has another cause", False


def measured(
    phases: dict[str, Callable[[], None]], sampled: Callable[[], float], write: Callable[[dict[str, Any]], None]
) -> None:
    """Samples after each phase; what is known is written before and after each."""
    found: dict[str, Any] = {}
    for phase, prepare in phases.items():
        write(found | {phase: None})
        prepare()
        found[phase] = sampled()
        write(found)


def overwrite() -> None:
    """Gives freed memory back to the card and fills what is there then, as a trainer's tensors would."""
    gc.collect()
    torch.cuda.empty_cache()
    filled = [torch.full((2**26,), float("nan"), device=DEVICE) for _ in range(16)]  # 4 GB
    torch.cuda.synchronize()
    del filled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    from dapo_lit.engines.protocol import Sampling
    from dapo_lit.engines.vllm_engine.engine import VllmEngine
    from dapo_lit.engines.vllm_engine.options import VllmSettings
    from dapo_lit.policy.load import eos_ids, load_model, load_tokenizer

    began = time.monotonic()
    # The binding itself, before the engine puts its own in place.
    clear: Callable[[], None] = getattr(torch._C, CLEAR, lambda: None)
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    model = load_model(folder / "policy", dtype=dtype).to(DEVICE).eval()
    settings = VllmSettings(max_model_tokens=128, max_batch_size=32, kv_cache_gb=1.0 if ON_GPU else 0.25)
    ids = eos_ids(model, load_tokenizer(folder / "policy"))
    engine = VllmEngine(model.config, eos_ids=ids, dtype=dtype, settings=settings)
    try:
        engine.sync_weights(model.state_dict().items(), 0)
        start_s = round(time.monotonic() - began, 1)

        def write(found: dict[str, Any]) -> None:
            Path("probe.json").write_text(json.dumps({"start_s": start_s} | found), encoding="utf-8")

        def blocked() -> None:
            getattr(torch._C, CLEAR, lambda: None)()
            if ON_GPU:
                overwrite()

        def freed() -> None:
            clear()
            if ON_GPU:
                overwrite()

        measured(
            {CAPTURED: lambda: None, BLOCKED: blocked, FREED: freed},
            lambda: largest_difference(list(engine.generate(requests(4), Sampling(32))), model),
            write,
        )
    finally:
        engine.close()


if __name__ == "__main__":
    main()
