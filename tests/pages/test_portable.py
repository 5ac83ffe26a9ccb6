"""Which arithmetic another processor repeats to the bit: digests of its parts, against the committed rows."""

import json
import sys
from pathlib import Path

import pytest

from dapo_lit.runs.run_folder import processor

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from portable import SETTINGS, measured  # noqa: E402

ROWS = json.loads((BENCHMARKS / "results" / "portable.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("setting", ["native", "avx2"])
def test_arithmetic_is_that_of_the_rows_of_this_processor(setting: str) -> None:
    """On a processor without a row, the parts that differ from each row are named."""
    here = measured(setting)["digests"]
    if processor() in ROWS:
        assert here == ROWS[processor()][setting]["digests"]
        return
    assert isinstance(here, dict)
    differing = {
        name: [part for part, digest in row[setting]["digests"].items() if here.get(part) != digest]
        for name, row in ROWS.items()
    }
    pytest.skip(f"{processor()}: python benchmarks/portable.py adds its row; other parts than on {differing}")


def test_a_setting_changes_what_it_is_for() -> None:
    """Else the rows would say that all parts are portable because a variable came too late to act."""
    assert {*SETTINGS} == {"native", "avx2", "compatible"}
    for row in ROWS.values():
        assert len({json.dumps(row[setting]["digests"]) for setting in SETTINGS}) > 1
