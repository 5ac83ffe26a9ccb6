"""How many files a reader opens, and how many lines say why.

Files: those that run in one rollout step, and those on the way from the updates to the clip.

The first counts every file of the package with a function that is called between the request for a step's batch and the
end of its updates, on one rank with the torch engine. The second counts the files of the calls that are open when the
clipped loss is computed: what someone opens who follows the calls downwards.

Lines that say why: comments on a line of their own, as a share of the lines that are not blank, for each room.
A docstring is not one: it says what, to a reader who has not come to a line yet.

    python benchmarks/reading.py            # with --files: which files run, longest first
    python benchmarks/reading.py --comments # only these, in a second
"""

import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import dapo_lit
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.module import DAPOModule
from dapo_lit.train import main as train

ROOT = Path(dapo_lit.__file__).parent.parent
ROOMS = tuple(str(ROOT / package) for package in ("dapo_lit", "ablations", "math_answers"))
STEP = ("+experiment=four_sums", "budget.steps=1", "evaluation.samples=1", "logger.progress=none")


class Reading:
    """The files that ran, and those on the way to the clip, of the first step."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.to_the_clip: list[str] = []

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(ROOMS):
            return
        self.ran.add(frame.f_code.co_filename)
        if frame.f_code.co_name == "clipped_tokens" and not self.to_the_clip:
            while frame.f_code.co_name != "make_updates":
                self.to_the_clip.append(frame.f_code.co_filename)
                assert frame.f_back is not None
                frame = frame.f_back
            self.to_the_clip.append(frame.f_code.co_filename)

    def during(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def seen(*args: Any, **kwargs: Any) -> Any:
            with self.watching():
                return method(*args, **kwargs)

        return seen

    @contextmanager
    def watching(self) -> Any:
        sys.setprofile(self.see)
        threading.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def comment_lines(file: Path) -> tuple[int, int]:
    """(comments on a line of their own, lines that are not blank); a `#` inside a string is no comment."""
    lines = file.read_text(encoding="utf-8").splitlines()
    with file.open("rb") as source:
        tokens = [token for token in tokenize.tokenize(source.readline) if token.type == tokenize.COMMENT]
    own = sum(lines[token.start[0] - 1].lstrip().startswith("#") for token in tokens)
    return own, sum(bool(line.strip()) for line in lines)


def print_comments() -> None:
    rooms: dict[str, list[Path]] = {}
    for package in ("dapo_lit", "ablations"):
        for file in sorted((ROOT / package).rglob("*.py")):
            room, *below = file.relative_to(ROOT / package).parts
            rooms.setdefault(room if below else package, []).append(file)
    total_own = total_lines = 0
    for room, files in sorted(rooms.items()):
        own, lines = (sum(counts) for counts in zip(*map(comment_lines, files), strict=True))
        total_own, total_lines = total_own + own, total_lines + lines
        print(f"comment lines in {room:<12} {own:4} of {lines:5}, {own / lines:5.1%}")
    print(f"comment lines in all          {total_own:4} of {total_lines:5}, {total_own / total_lines:5.1%}")


def main() -> None:
    asked = set(sys.argv[1:])
    print_comments()
    if "--comments" in asked:
        return
    reading = Reading()
    RolloutDataModule.collect = reading.during(RolloutDataModule.collect)  # type: ignore[method-assign]
    DAPOModule.make_updates = reading.during(DAPOModule.make_updates)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["train", *STEP, f"runs_dir={folder}"]
        with suppress(SystemExit):
            train()
    way = list(dict.fromkeys(str(Path(file).relative_to(ROOT)) for file in reversed(reading.to_the_clip)))
    print(f"files that run in a rollout step: {len(reading.ran)}")
    if "--files" in asked:
        lines = {file: len(Path(file).read_text(encoding="utf-8").splitlines()) for file in reading.ran}
        for file in sorted(lines, key=lambda file: -lines[file]):
            print(f"  {lines[file]:4} {Path(file).relative_to(ROOT)}")
    print(f"files from the updates to the clip: {len(way)}: {', '.join(way)}")


if __name__ == "__main__":
    main()
