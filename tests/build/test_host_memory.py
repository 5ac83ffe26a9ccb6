"""Freed memory is used again without a page fault; in processes of their own, as the setting is the process's."""

import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from dapo_lit.build.models import keep_freed_memory
if {keeps}: keep_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def use():
    block = c.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    c.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4): use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keeps: bool) -> int:
    run = [sys.executable, "-c", FAULTS.format(keeps=keeps)]
    return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_used_again_without_page_faults():
    pages = 4 * (64 << 20) // 4096
    assert faults(keeps=False) > pages / 2
    assert faults(keeps=True) < pages / 100
