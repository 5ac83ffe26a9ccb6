"""What vLLM is given on every rank of a node, checked with the classes of the installed vLLM; no engine starts."""

import inspect
import os
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock, patch

import pytest
import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from tiny_config import CONFIG

from dapo_lit.engines.vllm_engine import engine as module
from dapo_lit.engines.vllm_engine.engine import VllmEngine
from dapo_lit.engines.vllm_engine.options import Host, VllmSettings, llm_options

vllm = pytest.importorskip("vllm", reason="make test-gpu-contracts runs these")
REAL_LLM = vllm.LLM
GIB = 2**30
SETTINGS = VllmSettings(max_model_tokens=2048, max_batch_size=16, kv_cache_gb=20.0)
SEVEN_B = int(14.2 * GIB)
"""Bytes of the weights of a 7B policy in bfloat16."""


def process_state() -> tuple[str, str, dict[str, str]]:
    """Precision of products and environment, without vLLM's own variables."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    return torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.fp32_precision, variables


class RecordingLLM:
    """Takes what the installed `LLM` takes, and says what its executor would do."""

    made: ClassVar[list["RecordingLLM"]] = []

    def __init__(self, **given):
        from vllm.engine.arg_utils import EngineArgs

        accepted = inspect.signature(REAL_LLM.__init__).parameters
        names = {field.name for field in fields(EngineArgs)}
        unknown = set(given) - set(accepted) - names
        assert not unknown, f"this vLLM does not know {sorted(unknown)}"
        self.given = given
        self.llm_engine = MagicMock()
        if vllm.envs.VLLM_BATCH_INVARIANT:
            self.change_process()
        self.process = process_state()
        self.arguments = EngineArgs(**{name: value for name, value in given.items() if name in names})
        self.made.append(self)

    def change_process(self) -> None:
        """As vLLM's worker and its batch-invariant mode do on a GPU."""
        from vllm.model_executor.determinism.batch_invariant import override_envs_for_invariance

        override_envs_for_invariance()
        os.environ.pop("NCCL_ASYNC_ERROR_HANDLING", None)
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.set_float32_matmul_precision(vllm.envs.VLLM_FLOAT32_MATMUL_PRECISION)

    def place(self, device: str) -> tuple[int, int]:
        """Global and local rank of the worker, by vLLM's own executor."""
        from vllm.v1.executor.abstract import Executor

        backend = self.arguments.distributed_executor_backend or "uni"  # as ParallelConfig has it for one GPU
        parallel = SimpleNamespace(distributed_executor_backend=backend)
        kind = Executor.get_class(SimpleNamespace(parallel_config=parallel))
        executor = object.__new__(kind)
        executor.vllm_config = SimpleNamespace(device_config=SimpleNamespace(device=torch.device(device)))
        _, rank, local_rank = executor._distributed_args()
        return rank, local_rank


def start(monkeypatch: pytest.MonkeyPatch, settings: VllmSettings, host: Host, local_rank: int | None) -> RecordingLLM:
    """VllmEngine on a host, with `LLM` recorded."""
    monkeypatch.setattr(vllm, "LLM", RecordingLLM)
    monkeypatch.setattr(Host, "here", lambda: host)
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: host.gpu_bytes > 0)
    monkeypatch.setattr(module.torch.cuda, "empty_cache", lambda: None)
    for call in ("get_rng_state", "set_rng_state"):
        monkeypatch.setattr(module.torch.cuda, call, lambda *state: torch.get_rng_state())
    if local_rank is not None:
        monkeypatch.setenv("RANK", str(host.rank))
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    RecordingLLM.made = []
    VllmEngine(CONFIG, eos_ids=[1], dtype=torch.bfloat16, settings=settings).close()
    [made] = RecordingLLM.made
    return made


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
@pytest.mark.parametrize("rank", [0, 5, 15])
def test_every_rank_of_two_nodes_takes_its_own_gpu_and_the_ranks_of_an_engine_one_seed(
    tensor_parallel, rank, monkeypatch
):
    host = Host(gpu_bytes=80 * GIB, grouped=True, rank=rank)
    made = start(monkeypatch, replace(SETTINGS, tensor_parallel=tensor_parallel), host, local_rank=rank % 8)
    assert made.place("cuda") == (rank, rank % 8)
    assert made.arguments.tensor_parallel_size == tensor_parallel
    assert made.arguments.seed == rank // tensor_parallel


def test_a_group_without_a_local_rank_is_refused(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match="LOCAL_RANK"):
        start(monkeypatch, SETTINGS, Host(gpu_bytes=80 * GIB, grouped=True), local_rank=None)


@pytest.mark.parametrize("gpu_bytes", [0, 80 * GIB])
@pytest.mark.parametrize(
    "changes", [{}, {"sleep": True}, {"fp32_head": True}, {"kv_cache_gb": 1.0}, {"enforce_eager": True}]
)
def test_the_settings_arrive_under_the_names_of_the_installed_version(changes, gpu_bytes, monkeypatch):
    settings = replace(SETTINGS, **changes)
    found = start(monkeypatch, settings, Host(gpu_bytes=gpu_bytes), local_rank=None).arguments
    assert found.max_model_len == 2048
    assert found.max_num_seqs == 16
    assert found.kv_cache_memory_bytes == settings.kv_cache_gb * GIB
    assert found.enforce_eager == (not gpu_bytes or settings.enforce_eager)
    assert found.enable_sleep_mode == settings.sleep
    assert found.enable_prefix_caching
    assert found.async_scheduling is False
    assert vllm.envs.VLLM_USE_V2_MODEL_RUNNER is False
    assert (found.dtype, found.load_format, found.logprobs_mode) == ("bfloat16", "dummy", "processed_logprobs")
    assert found.hf_overrides == ({"head_dtype": "float32"} if settings.fp32_head else {})
    if gpu_bytes == 0:
        assert found.block_size == 32


def free_enough(options: dict, total: int, used_by_trainer: int) -> bool:
    """vLLM's own check when a worker starts."""
    from vllm.v1.worker.utils import request_memory

    snapshot = SimpleNamespace(total_memory=total, free_memory=total - used_by_trainer, device_="cuda:0")
    default = 0.92
    wanted = options.get("gpu_memory_utilization", default)
    try:
        request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=wanted))
    except ValueError:
        return False
    return True


def test_an_engine_restarts_beside_a_trainer_that_leaves_room_for_weights_cache_and_a_reserve():
    total = 80 * GIB
    shared = replace(SETTINGS, tensor_parallel=4)
    options = llm_options(Path("m"), torch.bfloat16, shared, Host(total), 4 * SEVEN_B)
    assert options["gpu_memory_utilization"] == pytest.approx((SEVEN_B + 24 * GIB) / total)
    trainer = 31 * GIB
    assert free_enough(options, total, trainer)
    assert not free_enough({}, total, trainer)  # as vLLM's default has it
    assert not free_enough(options, total, total - SEVEN_B - 20 * GIB)  # nothing left for activations
    with pytest.raises(ValueError, match=r"rollout.vllm.kv_cache_gb.*rollout.vllm.tensor_parallel"):
        llm_options(Path("m"), torch.bfloat16, SETTINGS, Host(24 * GIB), SEVEN_B)


def test_lightning_frees_the_workspaces_that_cuda_graphs_point_to_only_when_the_engine_is_closed(monkeypatch):
    freed = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: freed.append(1), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    sets_up, accelerator = SimpleNamespace(local_rank=0), CUDAAccelerator()
    accelerator.setup(sets_up)
    assert len(freed) == 1  # Lightning still does, or this test and its cause are gone
    monkeypatch.setattr(vllm, "LLM", RecordingLLM)
    RecordingLLM.made = []
    engine = VllmEngine(CONFIG, eos_ids=[1], dtype=torch.float32, settings=SETTINGS)
    accelerator.setup(sets_up)
    accelerator.teardown()
    assert len(freed) == 1
    engine.close()
    engine.close()
    accelerator.teardown()
    assert len(freed) == 2


@pytest.fixture
def precision_of_a_trainer():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@patch.dict(os.environ, {"NCCL_ALGO": "Ring", "NCCL_ASYNC_ERROR_HANDLING": "1", "VLLM_BATCH_INVARIANT": "0"})
@pytest.mark.usefixtures("precision_of_a_trainer")
def test_deterministic_kernels_need_a_gpu_and_leave_environment_and_precision_of_the_trainer_alone(monkeypatch):
    settings, before = replace(SETTINGS, deterministic=True), process_state()
    made = start(monkeypatch, settings, Host(gpu_bytes=80 * GIB), local_rank=None)
    assert process_state() == before
    *precisions, variables = made.process  # of vLLM, which was asked for them before its import
    assert precisions == ["highest", "ieee"]
    assert (variables["NCCL_ALGO"] == "Ring", variables["NCCL_MAX_NCHANNELS"]) == (False, "1")
    assert "NCCL_ASYNC_ERROR_HANDLING" not in variables
    with pytest.raises(ValueError, match="GPU"):
        start(monkeypatch, settings, Host(), local_rank=None)
