"""Whether finished runs of others are read without renaming a file: `python benchmarks/finished_logs.py FOLDER`.

FOLDER has a clone of each repository in `finished_logs_sets.json`, named `owner+name`; nothing of theirs is part of
this one. A set is several finished runs of two arms or more. Its files are put into a new folder as they lie in the
repository, and are read as `report --from csv FOLDER` and `decide --from csv FOLDER` read them. A set is answered if
the arms and runs are those that its columns and folders say, which were counted apart from the reader (`arms`, `runs`);
in part if runs are missing, each named with the reason; asked if a message in one line says what is missing; wrong if
other arms or runs are compared. `first` is the verdict of the reader as it was before anything was mended for the set,
for sets that were chosen and counted before it had read them.

    python benchmarks/finished_logs.py clones --json benchmarks/results/finished_logs.json
"""

import argparse
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ablations.read.foreign import runs_of_logs
from ablations.read.run import StudyError

SETS = Path(__file__).with_name("finished_logs_sets.json")


def files_of(clone: Path, commit: str, paths: list[str], into: Path) -> Path:
    """The files of a set, where they lie in their repository; and the folder or file that holds all of them."""
    packed = subprocess.run(["git", "-C", str(clone), "archive", commit, "--", *paths], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(into, filter="data")
    return into / os.path.commonpath(paths)


def judged(entry: dict[str, Any], clones: Path) -> dict[str, Any]:
    """What the reader says of a set."""
    with tempfile.TemporaryDirectory() as folder:
        clone = clones / entry["repository"].replace("/", "+")
        place = files_of(clone, entry["commit"], entry["paths"], Path(folder))
        try:
            runs, metric, notes, left_out = runs_of_logs("csv", [place], entry["metric"])
        except StudyError as reason:
            said = str(reason).replace(f"{folder}/", "")
            return entry | {"verdict": "asked", "said": said[:300]}
    found = Counter(run.arm for run in runs)
    lacking = entry["runs"] - len(runs)
    # Of what is left out, some may be no run, as a list of finished ones.
    is_right = len(found) == entry["arms"] and 0 <= lacking <= len(left_out)
    return entry | {
        "verdict": "wrong" if not is_right else "in part" if lacking else "answered",
        "found": {"arms": len(found), "runs": len(runs), "left out": len(left_out), "metric": metric},
        "said": " ".join(notes).replace(f"{folder}/", "")[:300],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the clones, each `owner+name`")
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    rows = []
    for entry in json.loads(SETS.read_text(encoding="utf-8")):
        rows.append(judged(entry, arguments.folder))
        print(
            *(rows[-1].get(key) for key in ("repository", "verdict", "found", "said")), rows[-1]["paths"][0], flush=True
        )
    print(Counter(row["verdict"] for row in rows))
    print("before mending:", Counter(row["first"] for row in rows if "first" in row))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
