"""Builds the fake CUDA of fake_cuda.c for the torch and vLLM of an environment: python libraries.py FOLDER

Every name that they ask of CUDA's libraries and that fake_cuda.c does not define becomes an empty function.
FOLDER has one library, and a link to it under the name of each that is asked for; with FOLDER in LD_LIBRARY_PATH the
environment's torch, built for CUDA, finds one GPU.
"""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_cuda.c")
FAKED = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn|cufft|cufile|cupti|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|"
    r"nvJitLink|nvshmem_host|nvToolsExt)\.so\.\d+$"
)
LOADED = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvrtc.so.13", "libcudart.so.13", "libnccl.so.2")
"""Opened by name in a run; no binary asks for the first two at its start."""
PREFIXES = re.compile(
    r"(__cuda|cu[A-Z]|cuda|cublas|cudnn|cufft|cupti|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink|nvshmem|nvtx)"
)


def asked(binary: Path) -> tuple[set[str], set[str]]:
    """The libraries and the names (`NAME@VERSION` where there is one) that a binary asks of CUDA."""
    said = subprocess.run(["readelf", "-W", "-d", "--dyn-syms", binary], capture_output=True, text=True, check=True)
    libraries = {name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", said.stdout) if FAKED.match(name)}
    names = set(re.findall(r" UND (\S+)", said.stdout)) if libraries else set()
    return libraries, {name for name in names if PREFIXES.match(name)}


def build(folder: Path) -> None:
    packages = Path(sysconfig.get_paths()["purelib"])
    libraries, names = set(LOADED), set()
    own = (packages / folder for folder in ("vllm", "torchvision"))
    for binary in [*(packages / "torch/lib").glob("*.so*"), *(file for folder in own for file in folder.rglob("*.so"))]:
        found = asked(binary)
        libraries |= found[0]
        names |= found[1]
    by_ctypes = packages / "vllm/distributed/device_communicators/cuda_wrapper.py"
    names |= set(re.findall(r'Function\(\s*"(\w+)"', by_ctypes.read_text(encoding="utf-8")))
    versions: dict[str, set[str]] = {}
    for name in names:
        plain, _, version = name.partition("@")
        if version:
            versions.setdefault(version.lstrip("@"), set()).add(plain)
    defined = set(re.findall(r"^[a-z].*?\b(\w+)\([^;]*\{", SOURCE.read_text(encoding="utf-8"), re.MULTILINE))
    empty = sorted({name.partition("@")[0] for name in names} - defined)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "empty.c").write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in empty), encoding="utf-8")
    script = "".join(
        f"{version} {{ {' '.join(f'{n};' for n in sorted(of))} }};\n" for version, of in sorted(versions.items())
    )
    (folder / "versions").write_text(script, encoding="utf-8")
    library = folder / "libfake_cuda.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-w", SOURCE, folder / "empty.c", "-o", library,
         f"-Wl,--version-script={folder / 'versions'}", "-ldl", "-lpthread"],
        check=True,
    )  # fmt: skip
    # The wheel of torchvision has a real one in it, which vLLM would take for the one that is loaded.
    bundled = (packages / "torchvision.libs").glob("libcudart.*")
    for link in (*(folder / name for name in libraries), *bundled):
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    print(f"{folder}: {len(libraries)} libraries, {len(empty)} of their functions empty")


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute())
