"""math_answers and its tests run where torch is not installed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_of_answers_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('raise ImportError("not installed")\n', encoding="utf-8")
    tests = [str(ROOT / "tests" / "answers" / name) for name in ("test_extraction.py", "test_quantity.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
