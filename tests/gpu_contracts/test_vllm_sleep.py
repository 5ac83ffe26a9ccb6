"""Sleep and waking in vLLM's own core, executor and allocator; only the calls of CUDA are replaced."""

from types import SimpleNamespace

import pytest
import torch
from tiny_config import CONFIG

from dapo_lit.engines.protocol import Sampling
from dapo_lit.engines.vllm_engine.engine import VllmEngine
from dapo_lit.engines.vllm_engine.options import VllmSettings

pytest.importorskip("vllm.entrypoints", reason="make test-gpu-contracts runs these")
cumem = pytest.importorskip("vllm.device_allocator.cumem")


class FakeGpu:
    """The allocations of an engine, tagged as vLLM tags them, and what an engine does with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.v1.core.sched.interface import PauseState
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        self.events: list[str] = []
        self.mapped = {"weights", "kv_cache", "cudagraph", "runtime"}
        tags = sorted(self.mapped)
        monkeypatch.setattr(cumem, "unmap_and_release", lambda handle: self.mapped.discard(tags[handle[0]]))
        monkeypatch.setattr(cumem, "create_and_map", lambda handle: self.mapped.add(tags[handle[0]]))
        monkeypatch.setattr(cumem, "libcudart", SimpleNamespace(cudaMemcpy=lambda *a: None), raising=False)
        monkeypatch.setattr(cumem, "PIN_MEMORY", False, raising=False)
        monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
        self.allocator = object.__new__(cumem.CuMemAllocator)
        self.allocator.pointer_to_data = {
            index: cumem.AllocationData((index, 8, index, 0), tag) for index, tag in enumerate(tags)
        }
        monkeypatch.setattr("vllm.device_allocator.get_mem_allocator_instance", lambda: self.allocator)
        executor = object.__new__(UniProcExecutor)
        executor.sleeping_tags = set()
        executor.collective_rpc = self.collective_rpc
        self.core = object.__new__(EngineCore)
        self.core.model_executor = executor
        self.core._finish_pause = lambda clear_cache: None
        self.core.scheduler = SimpleNamespace(
            pause_state=PauseState.UNPAUSED,
            finish_requests=lambda *a: [],
            set_pause_state=lambda state: setattr(self.core.scheduler, "pause_state", state),
        )
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: None))

    def collective_rpc(self, method: str, kwargs: dict) -> None:
        from vllm.device_allocator.sleep_mode_backend import CuMemBackend

        match method:
            case "sleep":
                CuMemBackend().suspend(kwargs["level"])
            case "wake_up":
                CuMemBackend().resume(kwargs["tags"])
            case "reload_weights":
                assert "weights" in self.mapped, "weights are written into memory that is given back"
                list(kwargs["weights_iterator"])
        self.events.append(f"{method}: {', '.join(sorted(self.mapped & {'weights', 'kv_cache'}))}")

    # What else dapo_lit calls of LLM.

    def sleep(self, level: int) -> None:
        self.core.sleep(level)

    def wake_up(self, tags: list[str]) -> None:
        self.core.wake_up(tags)

    def reset_prefix_cache(self) -> bool:
        assert "kv_cache" in self.mapped, "a cache that is given back is emptied"
        return True


@pytest.fixture
def gpu(monkeypatch):
    made = FakeGpu(monkeypatch)
    monkeypatch.setattr(VllmEngine, "_start", lambda self: made)
    return made


def test_weights_are_loaded_before_the_cache_takes_its_memory_and_the_scheduler_goes_on(gpu):
    settings = VllmSettings(max_model_tokens=64, max_batch_size=4, kv_cache_gb=1.0, sleep=True)
    made = VllmEngine(CONFIG, eos_ids=[1], dtype=torch.bfloat16, settings=settings)
    weights = [(name, torch.zeros(1)) for name in sorted(made._model._names)]
    made.sync_weights(weights, 0)
    made.open(Sampling(max_response_tokens=4))
    made.release_memory()
    made.release_memory()
    assert gpu.mapped == set()
    assert gpu.core.is_scheduler_paused()
    copied = {data.tag for data in gpu.allocator.pointer_to_data.values() if data.cpu_backup_tensor is not None}
    assert copied == {"cudagraph", "runtime"}  # to host memory, not the weights: those that come are others
    with pytest.raises(RuntimeError):
        made.open(Sampling(max_response_tokens=4))
    gpu.events.clear()
    made.sync_weights(weights, 1)
    # The old weights, the new ones and the cache never exist at once.
    assert gpu.events == ["wake_up: weights", "reload_weights: weights", "wake_up: kv_cache, weights"]
    assert gpu.mapped == {"weights", "kv_cache", "cudagraph", "runtime"}
    assert not gpu.core.is_scheduler_paused()
    assert made.version == 1
