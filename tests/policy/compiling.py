"""`torch.compile` by another backend, for the length of a test.

`aot_eager` traces and generates no code; `inductor` generates code for this CPU and needs a compiler.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest
import torch
import torch._inductor.config
from torch._dynamo.utils import counters

from dapo_lit.policy import softmax

WHOLE = bool(os.environ.get("DAPO_LIT_MATRIX"))
BACKENDS = ["aot_eager", "inductor"] if WHOLE else ["aot_eager"]


@contextmanager
def compiling(backend: str) -> Iterator[None]:
    """Nothing that was compiled before is used inside, nor what is compiled inside afterwards."""
    if backend == "inductor" and shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("inductor generates C++ on a CPU, and there is no compiler")
    softmax.compiled.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    # Neither a pool of processes nor a trial of the instructions in another process, each of which imports torch.
    plain = torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": True})
    with mock.patch.object(torch, "compile", partial(torch.compile, backend=backend)), plain:
        yield
    softmax.compiled.cache_clear()
