"""Damage to each kind of file of killed runs, finished runs and packed cells, and what the commands make of it."""

import shutil
from collections.abc import Callable
from pathlib import Path

from command_line import run_cli
from disturbances import PATIENCE_S, RUN, Case, difference

from dapo_lit.manifest import read_manifest, sum_of, write_manifest
from dapo_lit.runs.checkpoint_files import complete

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "cut in half": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),  # as a power loss leaves it
    "a bit flipped": lambda content: (
        content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 4]) + content[len(content) // 2 + 1 :]
    ),
    "removed": lambda content: None,
}

COMMANDS = {
    "status": ("dapo_lit.status", str(RUN.parents[2])),
    "report": ("dapo_lit.report", str(RUN.parents[2]), "output=report"),
    "pack": ("dapo_lit.status", str(RUN.parents[2]), "pack=packed"),
    "export": ("dapo_lit.export", str(RUN), "output=exported"),
    "replay": ("dapo_lit.replay", str(RUN), "step=3"),
}
"""What reads a finished run, each without its output's folder."""
READ_BY = {
    "config.yaml": tuple(COMMANDS),
    "run.json": ("status", "report", "pack", "export"),
    "manifest.json": tuple(COMMANDS),
    "metrics.jsonl": ("status", "report", "pack", "export"),
    "overrides.txt": ("status", "report"),
    "DONE.json": ("status", "report"),
    "checkpoints": ("status", "export"),
    "replay": ("status", "replay"),
    "rollouts": ("status", "replay"),
    "eval": ("status", "report", "pack"),
}
"""By the file's first part below the run."""
PACKED = {"status": ("dapo_lit.status", "packed"), "report": ("dapo_lit.report", "packed", "output=report")}


def resealed(run: Path) -> None:
    """Makes the manifest of a run fit its files, as someone does who alters them on purpose."""
    manifest = read_manifest(run)
    assert manifest is not None
    present = [name for name in manifest["files"] if (run / name).is_file()]
    write_manifest(run, manifest | {"files": {name: sum_of(run / name) for name in present}})


def damage(file: Path, how: str) -> None:
    content = DAMAGES[how](file.read_bytes())
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


def resume_case(
    folder: Path, killed: Path, whole: Path, arguments: tuple[str, ...], file: Path, how: str
) -> list[Case]:
    """Resumes a copy of a killed run in which one file is damaged.

    The file itself is not compared: rows, rollouts and evaluations of earlier steps are never written again.
    """
    shutil.copytree(killed, folder)
    damage(folder / file, how)
    resumed = run_cli(*arguments, "resume=true", cwd=folder, timeout=PATIENCE_S)
    named = file.name in resumed.stdout + resumed.stderr
    if "Traceback" in resumed.stderr or resumed.returncode not in (0, 2):
        outcome = f"traceback: {resumed.stderr.strip()[-300:]}"
    elif resumed.returncode == 0:
        differs = difference(folder, whole, ignored=file)
        equal = f"{differs} differs" if differs else "all else equal"
        outcome = f"{'named in a warning' if named else 'resumed'}, {equal}"
    else:
        outcome = "refused, the file is named" if named else f"refused: {resumed.stderr.strip()}"
    shutil.rmtree(folder)
    return [Case("damage", f"killed run, {file.relative_to(RUN)} {how}", "", outcome)]


def read_case(
    folder: Path, sound: Path, file: Path, how: str, commands: dict[str, tuple[str, ...]], printed: dict[str, str]
) -> list[Case]:
    """Commands that read a finished run, or packed cells, in which one file is damaged.

    printed: what the commands print of the sound files.
    """
    found: list[Case] = []
    for name, (module, *arguments) in commands.items():
        shutil.copytree(sound, folder)
        damage(folder / file, how)
        done = run_cli(*arguments, cwd=folder, module=module, timeout=PATIENCE_S)
        if "Traceback" in done.stderr or done.returncode not in (0, 2, 3):
            outcome = f"traceback: {done.stderr.strip()[-300:]}"
        elif file.name in done.stdout + done.stderr or "unverified" in done.stderr:
            outcome = "the file is named"
        else:
            outcome = (
                "not needed" if done.stdout == printed[name] else f"not named: {done.stdout[-200:]}{done.stderr[-200:]}"
            )
        found.append(Case("damage", f"{name}, {file} {how}", "", outcome))
        shutil.rmtree(folder)
    return found


def prints(folder: Path, sound: Path, commands: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """What the commands print of sound files."""
    printed = {}
    for name, (module, *arguments) in commands.items():
        shutil.copytree(sound, folder)
        done = run_cli(*arguments, cwd=folder, module=module, timeout=PATIENCE_S)
        assert done.returncode == 0, (name, done.stderr)
        printed[name] = done.stdout
        shutil.rmtree(folder)
    return printed


def files_of(sound: Path) -> list[Path]:
    """Files of a run: one of each kind, the newest of checkpoints and tables."""
    run = sound / RUN
    chosen = [run / name for name in ("config.yaml", "run.json", "manifest.json", "overrides.txt", "metrics.jsonl")]
    chosen += [*complete(run / "checkpoints"), *run.glob("DONE.json"), *run.glob("replay/*.ckpt")]
    chosen += [max(run.glob("eval/*/*.parquet")), min(run.glob("rollouts/*.parquet"))]
    return [file.relative_to(sound) for file in chosen]
