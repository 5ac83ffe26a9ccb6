"""`make soak` sees what is lost: a row, or a file of a cell that was done."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import soak


@pytest.fixture
def place(tmp_path: Path) -> soak.Place:
    """A folder with one cell that is done and one that is not."""
    made = soak.Place(tmp_path / "place")
    for seed in (0, 1):
        run = made.folder / f"runs/study/dapo/seed_{seed}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text('{"step": 0, "x": 1.5}\n{"step": 1, "x": 2.5, "wall_s": 3}\n{"step": 2, "to')
        (run / "config.yaml").write_text("seed: 0\n")
    (made.folder / "runs/study/dapo/seed_0/DONE.json").write_text("{}")
    return made


def lost(place: soak.Place, change) -> list[str]:
    result, before = soak.Result(), soak.kept(place)
    change(place.folder / "runs/study/dapo")
    soak.ask_for(result, before)
    assert result.tried == len(before) == 4  # rows of both, DONE.json and config.yaml of the one that is done
    return result.lost


def test_rows_that_follow_are_no_loss(place):
    assert lost(place, lambda arm: (arm / "seed_1/metrics.jsonl").open("a").write('\n{"step": 3}\n')) == []
    assert lost(place, lambda arm: (arm / "seed_1/config.yaml").write_text("seed: 1\n")) == []  # it is not done


@pytest.mark.parametrize("seed", [0, 1])
def test_a_row_that_is_gone_or_changed_is_a_loss(place, seed):
    file = f"seed_{seed}/metrics.jsonl"
    assert "rows are gone" in lost(place, lambda arm: (arm / file).write_text('{"step": 0, "x": 1.5}\n'))[0]
    (found,) = lost(place, lambda arm: (arm / file).write_text('{"step": 0, "x": 1.50000001}\n{"step": 1}\n'))
    assert file in found


def test_a_file_of_a_cell_that_is_done_may_not_change(place):
    (found,) = lost(place, lambda arm: (arm / "seed_0/config.yaml").write_text("seed: 1\n"))
    assert "a cell that was done" in found


def test_rows_are_compared_without_the_clock_by_their_last_branch(place):
    run = place.folder / "runs/study/dapo/seed_1"
    (run / "metrics.jsonl").write_text('{"step": 0, "x": 1}\n{"step": 0, "x": 2, "wall_s": 9, "time/train_s": 1}\n{"st')
    assert soak.rows(run) == {0: {"step": 0, "x": 2}}


def test_what_a_machine_cannot_do_is_not_run_and_a_loss_is_an_exit_code(tmp_path, monkeypatch, capsys):
    def without(place, share, draw):
        raise soak.NotRunError("no mount namespace")

    def losing(place: soak.Place, share: float, draw: random.Random) -> soak.Result:
        return soak.Result(3, ["a row"], {"share": share})

    monkeypatch.setattr(soak, "CASES", {"shm": without, "study": losing})
    monkeypatch.setattr(
        sys, "argv", ["soak", "--seconds", "36", "--keep", str(tmp_path / "kept"), "--out", str(tmp_path)]
    )
    assert soak.main() == 1
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["cases"]["shm"]["not run"] == "no mount namespace"
    assert {"tried": 3, "lost": ["a row"], "share": 0.01}.items() <= found["cases"]["study"].items()
    assert "kept    " in capsys.readouterr().out


def test_a_command_without_room_writes_no_file_beyond_it_and_says_what_it_says(tmp_path):
    command = [
        *soak.with_room(1),
        sys.executable,
        "-c",
        "print('x' * 5000); __import__('pathlib').Path('file').write_text('y' * 5000)",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "x" * 5000 in done.stdout
    assert "File too large" in done.stdout
    assert (tmp_path / "file").stat().st_size <= 1024
