"""Users walk their first ten minutes from the wheel, in empty folders without a checkout: `make test-wheel`.

    python tests/five_users.py              # all of them, two at a time; two minutes of processor time
    python tests/five_users.py trl lead     # some of them
    python tests/five_users.py --keep DIR   # leaves what they made there

Only the wheel is installed anew. The libraries are those of the environment that runs this, through a folder of links
to them without its own dapo_lit. Home and cache are empty, and no network is asked for. Exit code 1: a step failed; it
is printed with what it said.
"""

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import nbformat
from hatchling.builders.wheel import WheelBuilder
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "algorithm.num_prompts=4 algorithm.minibatch_prompts=2 algorithm.samples_per_prompt=4 evaluation.samples=1 "
    "task.num_heldout=16"
)
"""Makes a run of the first commands one of seconds; its checks before the first step stay."""


class PathError(Exception):
    """A step that did not do what a user was promised."""


def borrow_libraries(folder: Path) -> Path:
    """A folder of links to every installed package but this one, of which an editable installation leaves traces."""
    folder.mkdir()
    for path in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for entry in path.iterdir():
            if "dapo_lit" not in entry.name and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


def make_environment(folder: Path, libraries: Path) -> Path:
    """An environment with these libraries; its Python."""
    venv.create(folder, with_pip=False)
    (next(folder.glob("lib/python*/site-packages")) / "libraries.pth").write_text(str(libraries))
    return folder / "bin" / "python"


class Installed:
    """An environment with the wheel in it, and a home folder in which nothing is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries = borrow_libraries(folder / "libraries")
        python = make_environment(folder / "venv", self.libraries)
        self.bin = python.parent
        (self.wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", self.wheel], check=True)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name in ("LANG", "TMPDIR")},
            "HOME": str(folder / "home"), "PATH": f"{self.bin}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg", "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }  # fmt: skip
        (folder / "home").mkdir()
        self._model = Lock()

    def model(self) -> Path:
        """A small policy as a Hugging Face folder, made once: what users bring."""
        with self._model:
            made = Place(self, "model")
            if not (made.work / "model").is_dir():
                made(f"dapo-lit train +experiment=dapo +regime=joint {SMALL} budget.steps=1 preflight=false")
                made("dapo-lit export runs/dapo/dapo/seed_0 output=model license=apache-2.0")
                made.must_have("model/README.md", "model/config.json", "model/model.safetensors")
            return made.work / "model"


class Place:
    """An empty folder of one user, and what was done in it."""

    def __init__(self, installed: Installed, name: str) -> None:
        self.installed, self.lines = installed, [f"{name}:"]
        self.work = installed.folder / name
        self.work.mkdir(exist_ok=True)

    def __call__(self, line: str, code: int = 0) -> str:
        """Runs a command as a shell would, in the folder; what it printed."""
        return self._run(shlex.split(line), code)

    def python(self, text: str) -> str:
        """What a script in the folder prints, run by the environment's Python."""
        return self._run([str(self.installed.bin / "python"), "-c", text], 0)

    def _run(self, words: list[str], code: int) -> str:
        started = time.perf_counter()
        done = subprocess.run(
            words,
            cwd=self.work,
            env=self.installed.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        shown = "python -c ..." if words[1] == "-c" else shlex.join(words)
        self.lines.append(f"  {time.perf_counter() - started:5.1f} s  {shown[:120]}")
        if done.returncode != code:
            raise PathError(f"exit code {done.returncode}, not {code}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout + done.stderr

    def must_have(self, *files: str | Path) -> None:
        missing = [file for file in files if not (self.work / file).is_file()]
        if missing:
            raise PathError(f"{missing} were not written")


def must_say(text: str, *parts: str) -> None:
    missing = [part for part in parts if part not in text]
    if missing:
        raise PathError(f"{missing} is not in:\n{text[-3000:]}")


def curious(place: Place) -> None:
    """README from the top: train, look, play with a step, ask the run, ablate."""
    must_say(place("dapo-lit doctor"), "A run on this machine can work.")
    listed = place("dapo-lit docs")
    must_say(listed, "tutorials/ablate", str(place.installed.folder / "venv"))
    played = [line.split()[1] for line in listed.splitlines() if line.startswith("play ")]
    if len(played) < 2 or not all(Path(file).is_file() for file in played):
        raise PathError(f"{played}: the pages to play with are not there")
    must_say(place("dapo-lit docs docs/tutorials/cluster.md#one-study-many-jobs"), "## One study, many jobs")
    said = place(
        f"dapo-lit train +experiment=dapo +regime=joint {SMALL} budget.steps=2 replay.record=[2] "
        "logger.rollouts_every=1"
    )
    must_say(said, "run.html")
    run = "runs/dapo/dapo/seed_0"
    place.must_have(f"{run}/run.html", f"{run}/metrics.jsonl", f"{run}/rollouts/step_000002.parquet")
    must_say(place(f"dapo-lit advise {run}"), "can act")
    place(f"dapo-lit replay {run} step=2 algorithm.clip.high=0.5")
    place.must_have(f"{run}/replay/step_000002/summary.csv")
    must_say(place("dapo-lit trian", code=2), "train")
    must_say(place("dapo-lit train +experiment=dapo algorithm.clip.hihg=0.3", code=2), "algorithm.clip.high")
    said = place(
        f"dapo-lit train -m +experiment=add_soft_punishment {SMALL} budget.steps=1 seed=0 "
        "study.underpowered=true evaluation.final_samples=1 preflight=false"
    )
    place.must_have("runs/add_soft_punishment/report/report.html")
    # Every page that a message of the package names is one that the package brings.
    package = place.python("import dapo_lit; print(dapo_lit.__file__)").strip()
    texts = [file.read_text(encoding="utf-8") for file in Path(package).parents[1].glob("dapo_lit*/**/*.py")]
    for name in sorted({name for text in texts for name in re.findall(r"\bdocs/[a-z_/]+\.md\b", text)}):
        place.must_have(Path(package).parent / "pages" / name.removeprefix("docs/"))


def own_task(place: Place) -> None:
    """A model folder and a file of problems: columns, checks, probe, plan."""
    rows = [{"question": f"{a}+{b}+1=", "solution": a + b + 1} for a in range(1, 9) for b in range(1, 9)]
    (place.work / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = place(
        f"dapo-lit ablate dynamic_sampling --model {place.installed.model()} --data sums.jsonl task.template=plain "
        "reward.extraction=hash task.max_response_tokens=24 task.max_prompt_tokens=24 algorithm.num_prompts=8 "
        "algorithm.minibatch_prompts=4 algorithm.samples_per_prompt=4 algorithm.overlong.cache_tokens=6 budget.steps=2 "
        "--plan"
    )
    must_say(said, "problem from `question`, answer from `solution`", "pairs")


def trl(place: Place) -> None:
    """A script of TRL's: what becomes of it, and a function and rows of one's own in Python."""
    (place.work / "train.py").write_text(
        "import my_rewards\nfrom trl import GRPOConfig, GRPOTrainer\n"
        "GRPOTrainer(model='model', reward_funcs=my_rewards.correct, args=GRPOConfig(num_generations=8, max_steps=20,\n"
        "    per_device_train_batch_size=16, gradient_accumulation_steps=2, epsilon_high=0.28)).train()\n"
    )
    must_say(place("dapo-lit convert train.py"), "dapo-lit train", "budget.steps=20", "task.path")
    (place.work / "my_rewards.py").write_text(
        "def correct(prompts, completions, answer, **columns):\n"
        "    return [1.0 if str(right) in text else 0.0 for text, right in zip(completions, answer)]\n"
    )
    script = f"""
import my_rewards
from dapo_lit import train

rows = [{{"problem": f"{{a}}+{{b}}+1=", "answer": str(a + b + 1)}} for a in range(1, 6) for b in range(1, 6)]
settings = {{
    "algorithm.samples_per_prompt": 4, "algorithm.num_prompts": 8, "algorithm.minibatch_prompts": 4,
    "task.max_response_tokens": 24, "task.max_prompt_tokens": 24, "task.template": "plain", "logger.rollouts_every": 1,
}}
run = train("hf", model="{place.installed.model()}", data=rows, reward=my_rewards.correct, steps=1, settings=settings)
print(len(run.metrics), len(run.completions(1)), run.page)
run.plot("rollout/accuracy")
"""
    must_say(place.python(script), "run.html")


OWN_PARTS = """
import torch

from dapo_lit.objective.needs import Needs
from dapo_lit.techniques import Condition, Technique


@Needs(options={"width": (0.01, 1)}, source="a note")
def soft_clip(logprobs, old_logprobs, advantages, *, width: float):
    return -advantages * (((logprobs - old_logprobs).exp() - 1) / width).tanh() * width


def light(advantages, completions):
    return advantages.where(advantages <= 0, 0.1 * advantages)


LIGHT = Technique(
    "light", section="a note", equation="", on="positive advantages weigh a tenth", off="they weigh the same",
    label="light", short="light", colour="#9c9ca1",
    condition=Condition("rollout/groups_mixed_frac", "groups mixed", 0.01), advantages=light,
)
"""


def own_algorithm(place: Place) -> None:
    """An advantage that is refused, and then ablated next to a loss with an option and a technique, in two files.

    What is refused with which words has tests of its own (test_own_parts.py, test_new_loss.py).
    """
    source = (ROOT / "docs/examples/algorithms/maxrl.py").read_text(encoding="utf-8")
    if len(source.splitlines()) > 30:
        raise PathError("maxrl.py is longer than 30 lines")
    (place.work / "maxrl.py").write_text(source)
    (place.work / "parts.py").write_text(OWN_PARTS)
    must_say(place("dapo-lit ablate maxrl.maxrl", code=2), "reward.wrong_value=-1", "2602.02710")
    said = place(
        f"python -m dapo_lit.ablate maxrl.maxrl --on dapo-soft_overlong_punishment reward.wrong_value=0 {SMALL} "
        "algorithm.loss=parts.soft_clip ++algorithm.loss_options={width:0.2} algorithm.own_techniques=[parts.LIGHT] "
        "budget.steps=1 evaluation.every=0 evaluation.final_samples=1 "
        "study.until=null study.seeds=[0] study.underpowered=true study.pilot=true"
    )
    must_say(said, "Decided: nothing", "maxrl.maxrl")
    place.must_have("runs/ablate_maxrl/report/report.html")


def lightning(place: Place) -> None:
    """docs/library.md: a Trainer of one's own with callbacks and loggers of Lightning's."""
    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    script = page.split('```python title="own_trainer.py"\n')[1].split("```")[0]
    (place.work / "own_trainer.py").write_text(script.replace("budget.steps=20", "budget.steps=2"))
    must_say(place("python own_trainer.py"), "eval/four_sums/avg@2")
    place.must_have("logs/lightning_logs/version_0/metrics.csv")


def notebook(place: Place) -> None:
    """The tour in a hosted notebook, where nothing is installed: its first cells install the wheel and import it."""
    python = make_environment(place.work / "bare", place.installed.libraries)
    shutil.copy(place.installed.wheel, place.work)
    tour = nbformat.read(ROOT / "notebooks/tour.ipynb", as_version=4)
    code = [cell for cell in tour.cells if cell.cell_type == "code"]
    end = next(place for place, cell in enumerate(code) if "from dapo_lit import" in cell.source) + 1
    tour.cells = [*code[:end], nbformat.v4.new_code_cell("import dapo_lit\ndapo_lit.__file__")]
    started = time.perf_counter()
    manager = KernelManager()
    # Of the specification of a kernel only its command counts, which is the bare environment's.
    manager.kernel_spec.argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.kernel_spec.env = {}
    client = NotebookClient(tour, km=manager, timeout=300, resources={"metadata": {"path": str(place.work)}})
    try:
        client.execute(env={**place.installed.environment, "PATH": f"{python.parent}:{os.environ['PATH']}"})
    except CellExecutionError as error:
        raise PathError(str(error)[-3000:]) from None
    place.lines.append(f"  {time.perf_counter() - started:5.1f} s  {end + 1} cells of notebooks/tour.ipynb")
    must_say(tour.cells[-1].outputs[0]["data"]["text/plain"], str(python.parents[1]))


def lead(place: Place) -> None:
    """A cluster to be rented: what fits, what it costs, and the config under an editor's eyes."""
    said = place("dapo-lit plan +experiment=qwen2_5_7b_dapo_math hardware=h100 price_per_hour=3 quick=true")
    must_say(said, "GPU-hours")
    recipe = ROOT / "tests/scripts_elsewhere/verl_dapo_qwen2_5_32b.sh"
    must_say(place(f"dapo-lit convert {recipe}"), "trainer.num_nodes=16", "No counterpart here:")
    place("dapo-lit schema output=schemas")
    place.must_have("schemas/experiment.json")
    must_say(place("dapo-lit train +experiment=qwen2_5_0_5b_gsm8k", code=2), "GPU")
    must_say(place("dapo-lit train --cfg job +experiment=paper_qwen2_5_32b"), "num_prompts: 512")


USERS: dict[str, Callable[[Place], None]] = {
    user.__name__: user for user in (curious, own_task, own_algorithm, trl, lightning, notebook, lead)
}  # fmt: skip


def walk(installed: Installed, name: str) -> bool:
    """One user's path, printed as a whole; whether it went to its end."""
    place, failed = Place(installed, name), ""
    try:
        USERS[name](place)
    except PathError as reason:
        failed = f"\nFAILED: {reason}"
    print("\n".join(place.lines) + failed, flush=True)
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("users", nargs="*", help=f"default: all ({', '.join(USERS)})")
    parser.add_argument("--keep", type=Path, help="a new folder for what they make")
    options = parser.parse_args()
    if unknown := set(options.users) - set(USERS):
        parser.error(f"{', '.join(unknown)}: the users are {', '.join(USERS)}")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="five_users_") as temporary, ThreadPoolExecutor(2) as pool:
        folder = options.keep.absolute() if options.keep else Path(temporary)
        folder.mkdir(exist_ok=True)
        installed = Installed(folder)
        origin = Place(installed, "origin").python("import dapo_lit; print(dapo_lit.__file__)").strip()
        if not Path(origin).is_relative_to(folder):
            print(f"the package comes from {origin}, not from the wheel")
            return 1
        chosen = options.users or list(USERS)
        good = dict(zip(chosen, pool.map(lambda name: walk(installed, name), chosen), strict=True))
    failed = [name for name, went in good.items() if not went]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = f"{time.perf_counter() - started:.0f} s, processor {used.ru_utime + used.ru_stime:.0f} s"
    print(f"{spent}; {'failed: ' + ', '.join(failed) if failed else 'all good'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
