"""The dtype of vLLM's engine, and which of its warnings are printed; vLLM is not needed."""

import logging

import pytest
import torch

from dapo_lit.engines.vllm_engine.engine import Warnings
from dapo_lit.preflight.training import engine_warnings


@pytest.mark.parametrize(
    ("options", "on_gpu", "expected"),
    [
        (("rollout=vllm",), True, "bfloat16"),
        (("rollout=vllm",), False, "float32"),
        (("rollout=torch",), True, "float32"),
        (("rollout=torch", "rollout.vllm.dtype=float16"), True, "float32"),
        (("rollout=vllm", "rollout.vllm.dtype=float32"), True, "float32"),
        (("rollout=vllm", "rollout.vllm.dtype=bfloat16"), False, "bfloat16"),
        (("rollout=vllm", "trainer.sharding.dtype=bfloat16"), False, "bfloat16"),
    ],
)
def test_the_engine_computes_in_the_trainers_dtype_but_vllm_never_in_float32_on_a_gpu_unless_asked(
    compose, options, on_gpu, expected
):
    assert compose(*options).engine_dtype(on_gpu) == expected


def test_float32_on_a_gpu_is_said_to_be_untested():
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    (warning,) = engine_warnings("vllm", torch.float32, gpu)
    assert "rollout.vllm.dtype=float32" in warning
    assert not engine_warnings("vllm", torch.bfloat16, gpu)
    assert not engine_warnings("vllm", torch.float32, cpu)
    assert not engine_warnings("torch", torch.float32, gpu)


@pytest.mark.parametrize(
    ("tied", "printed"), [(True, ""), (False, "vLLM warning: ParallelLMHead: Failed to load weights\n")]
)
def test_a_tied_head_that_vllm_skips_is_silent_and_one_of_its_own_is_not(monkeypatch, capsys, tied, printed):
    monkeypatch.setattr(Warnings, "printed", set())
    logger = logging.Logger("vllm")
    logger.addHandler(Warnings(logging.WARNING, tied=tied))
    for _ in range(2):  # two syncs
        logger.warning("%s: Failed to load weights", "ParallelLMHead")
    assert capsys.readouterr().out == printed
