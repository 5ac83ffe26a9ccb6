"""Python runs this at its start where the folder is in PYTHONPATH: torch gets kernels for a card without one."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class AfterTorch:
    """Installs the kernels as soon as torch is imported, and not before: many processes never import it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            sys.path.append(str(Path(__file__).parents[1]))
            try:
                import host_kernels
            finally:
                sys.path.pop()
            host_kernels.install()

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, AfterTorch())
