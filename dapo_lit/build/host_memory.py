"""The C library's treatment of memory that a step has freed: it is kept, because the next step asks for as much again.

By default glibc returns large blocks to the system at once, and the first use of each page of a new block costs more
than the arithmetic on it. Left out: other C libraries, and GPUs, whose memory torch keeps by itself.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
_LARGE = 1 << 30
"""Bytes of a block that is still returned at once; twice as much may be free at the end of the heap."""


def keep_freed_memory() -> None:
    """Has an effect on Linux with glibc only. Peak memory stays what it was, memory between peaks does not fall."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE - 1)
