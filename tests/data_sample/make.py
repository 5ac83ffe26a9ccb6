"""Makes the sample from the folder of data sets: python tests/data_sample/make.py $DAPO_LIT_DATA

Only sets whose licence allows passing rows on. The problems of AIME and AMC do not: their tests need the folder.
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROWS = {"math500": 40, "math_train": 12, "gsm8k_train": 24, "gsm8k_test": 12, "gsm8k_responses": 16, "equivalence": 60}


SPREAD = ("math500", "gsm8k_responses", "equivalence")
"""Rows from the whole file; of the others the first ones."""


def chosen(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if name in ROWS:
        step = len(rows) // ROWS[name] if name in SPREAD else 1
        return rows[::step][: ROWS[name]]
    # Of DAPO-Math: the first rows, all that conflict, some that are repeated, and the rows that those repeat.
    wanted = [row for row in rows if row["conflict"]] + [row for row in rows if row["dup_of"]][:8] + rows[:12]
    names = {row["id"] for row in wanted} | {row["dup_of"] for row in wanted}
    return [row for row in rows if row["id"] in names]


def main(source: Path) -> None:
    described = {entry["file"]: entry for entry in json.loads((source / "MANIFEST.json").read_text())}
    manifest = []
    for name in [*ROWS, "dapo_math_17k"]:
        lines = (source / f"{name}.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        rows = chosen(name, [json.loads(line) for line in lines])
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")
        entry = described.get(f"{name}.jsonl", {})
        licence = entry.get("licence", "Apache-2.0, MIT or BSD-3-Clause: the field `licence` of each row")
        sources = [
            " ".join(str(found.get(key, "")) for key in ("repo", "commit", "path"))
            for found in entry.get("sources", [])
        ]
        manifest.append(
            {"file": f"{name}.jsonl", "rows": len(rows), "of": len(lines), "licence": licence, "sources": sources}
        )
    reference = json.loads((source / "dapo_reference" / "reference.json").read_text(encoding="utf-8"))
    (HERE / "dapo_reference").mkdir(exist_ok=True)
    shown = {key: reference[key] for key in ("source", "prompt_template")}
    (HERE / "dapo_reference" / "reference.json").write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    (HERE / "MANIFEST.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
