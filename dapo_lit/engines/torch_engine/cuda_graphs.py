"""CUDA graphs: what the host launches for a step, recorded once and then launched as a whole.

A graph repeats kernels, shapes and addresses. What changes between two steps must be written into tensors that stay
where they are, memory that a graph reads must not be freed while there is the graph, and nothing in it may need the
host. Left out: torch.compile(mode="reduce-overhead"), which compiles every shape for tens of seconds first.
"""

from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch


def can_capture(device: torch.device) -> bool:
    return device.type == "cuda"


def has_fixed_shapes(cuda_graphs: Literal["auto"] | bool, device: torch.device) -> bool:
    """Whether a decode step rounds its rows and slots up. `auto`: only where graphs can be captured."""
    return can_capture(device) if cuda_graphs == "auto" else cuda_graphs


class CudaGraphs:
    """Runs functions, from the second call of each on as a graph. One memory pool serves all graphs.

    captures: False: all calls run the functions themselves.
    falls_back: whether a failure to capture is printed, and no graph made from then on, instead of raised.
    """

    def __init__(self, *, captures: bool, falls_back: bool) -> None:
        self.failed = False
        """Whether a capture has failed; functions are run themselves from then on."""
        self._captures = captures
        self._falls_back = falls_back
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Runs `step`, which must be the same for the same key until `clear`, or replays its graph.

        Raises RuntimeError if it cannot be captured and there is no falling back.
        """
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        step()  # the first call chooses kernels and takes workspaces, which a capture cannot
        if self._captures and not self.failed:
            self._capture(key, step)

    def _capture(self, key: Hashable, step: Callable[[], None]) -> None:
        """Records `step` without running it."""
        try:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # After an error, torch.cuda.graph leaves its own stream as the current one; the outer context does not.
            # thread_local: other threads, such as NCCL's watchdog, may do what would end this capture.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                step()
        except RuntimeError as error:
            if not self._falls_back:
                raise
            self.failed = True
            print(
                f"the sampler's steps cannot be captured as CUDA graphs ({error}); they are launched one by one, as "
                "with rollout.torch.cuda_graphs=false",
                flush=True,
            )
        else:
            self._graphs[key] = graph

    def clear(self) -> None:
        """Ends all graphs; afterwards the memory that they read may be freed."""
        if self._graphs:
            torch.cuda.current_stream().synchronize()  # the last one may still be running
        self._graphs.clear()
        self._pool = None


def graphs_for(cuda_graphs: Literal["auto"] | bool, device: torch.device) -> CudaGraphs | None:
    """The graphs that repeat an engine's decode steps; None if the steps have no fixed shapes."""
    if not has_fixed_shapes(cuda_graphs, device):
        return None
    return CudaGraphs(captures=can_capture(device), falls_back=cuda_graphs == "auto")
