"""The pages say what is: every key a run writes, every key of the config, links and commands that work."""

import re
import shlex
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest
import tables
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from small_runs import rows

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.cli.overrides import check_overrides, written_out
from dapo_lit.config import config_folder, parse
from dapo_lit.config.identity import kinds
from dapo_lit.config.parsing import NONE, key_for
from dapo_lit.config.shipped import known_choices
from dapo_lit.rollout.collect import ExhaustedError
from dapo_lit.train import train

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "experiments").rglob("README.md")),
]
MARKER = r"^<!-- table: (\w+) -->$"
FIRST_CELL = re.compile(r"^\| *`([^`]+)`", re.MULTILINE)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.fixture(scope="module")
def metric_rows(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Rows of small runs: one that learns, one with turns and a controller of the entropy bonus, one of a task with a
    metric of its own that gets no mixed group."""
    small = ["algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "evaluation.samples=2", "logger.progress=none"]
    learns = ["+experiment=four_sums", "budget.steps=2", *small]
    empty = [
        "policy=micro", "policy.architecture.max_position_embeddings=128", "task.base=null",
        "algorithm.samples_per_prompt=2", "budget.steps=1", "task.num_heldout=2", "reward.extraction=boxed", *small,
    ]  # fmt: skip
    found = []
    turns = [*learns, "budget.steps=1", "turns.environment=calculator", "turns.max_observation_tokens=8"]
    turns += ["algorithm.entropy.control=target", "+algorithm.entropy.options.target=1"]
    for name, overrides in (("learns", learns), ("turns", turns), ("empty", empty)):
        runs = tmp_path_factory.mktemp(name)
        with pytest.raises(ExhaustedError) if name == "empty" else nullcontext():
            train(parse(resolved(composed_tree([*overrides, f"runs_dir={runs}"]))), [])
        found += rows(next(runs.rglob("metrics.jsonl")).parent)
    return found


def general(key: str) -> str:
    """A key as the page names it: any benchmark, any number of samples."""
    return re.sub(r"@\d+$", "@k", re.sub(r"^eval/[^/]+/", "eval/<benchmark>/", key))


def test_the_metrics_page_names_every_key_that_a_run_writes_and_no_other(metric_rows):
    named = FIRST_CELL.findall(page("metrics.md"))
    assert len(named) == len(set(named))
    written = {general(key) for row in metric_rows for key in row}
    assert set(named) == written


def made(file: Path) -> str:
    """A page as the site has it."""
    return re.sub(MARKER, lambda marker: tables.table(marker[1]), file.read_text(), flags=re.MULTILINE)


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def page_id(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", PAGES, ids=page_id)
def test_every_relative_link_leads_to_a_file_and_to_a_heading_in_it(file):
    for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (file.parent / path) if path else file
        assert linked.exists(), f"{file.name} links to {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(made(linked)), f"{file.name} links to {target}"


@pytest.mark.parametrize("file", PAGES, ids=page_id)
def test_every_source_file_that_a_page_names_exists(file):
    """`tests/lit/test_module.py` counts from the top, `step/packing.py` from the package."""
    for name in re.findall(r"`([\w/]+/[\w.]+\.py)`", file.read_text()):
        tops = [top for top in (ROOT, ROOT / "dapo_lit") if (top / name.split("/")[0]).is_dir()]
        assert not tops or "NAME" in name or any((top / name).is_file() for top in tops), f"{file.name} names {name}"


def quoted_commands() -> list[tuple[str, str]]:
    """(page, command) of every `python -m dapo_lit...` in the pages, lines joined, variables written out."""
    found = []
    for file in (file for file in PAGES if "examples" not in file.parts):  # those run from a folder of their own
        text = re.sub(r"\\\n\s*", "", file.read_text())
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):  # titled ones too
            for name, value in re.findall(r'^(\w+)="([^"]*)"$', block, re.MULTILINE):
                block = block.replace(f"${name}", value)
            found += [(file.name, line) for line in re.findall(r"(?:^|\s)(python -m dapo_lit\.[^\n]*)", block)]
        inline = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        found += [(file.name, command) for command in re.findall(r"`(python -m dapo_lit\.[^`]*)`", inline)]
    return found


POSITIONAL = {"evaluate": "ckpt", "export": "ckpt"}
"""The key of a command's argument without a name."""


@pytest.mark.parametrize(("name", "command"), quoted_commands())
def test_every_quoted_command_composes(name, command):
    module, *arguments = shlex.split(re.split(r"\s{2,}#|\s#\s", command)[0])[2:]
    assert find_spec(module)  # of the tools too, whose commands dapo_lit finds on its path
    config_name = "config" if module == "dapo_lit.train" else module.removeprefix("dapo_lit.")
    if not (config_folder() / f"{config_name}.yaml").is_file() or "--config-dir" in arguments:
        return  # a command with arguments of its own; configs of a reader's own (tests/test_new_loss.py)
    if module == "dapo_lit.train":
        check_overrides(arguments)
    overrides = [argument for argument in arguments if not argument.startswith("-") and argument != "job"]
    overrides = written_out(overrides, POSITIONAL.get(config_name))
    single = []
    for override in OverridesParser.create().parse_overrides(overrides):
        assert override.type in (OverrideType.CHANGE, OverrideType.ADD), command
        key = ("+" if override.is_add() else "") + override.key_or_group
        if override.is_sweep_override():
            assert arguments[0] in ("-m", "--multirun"), f"{command} sweeps without -m"
            single += [f"{key}={value}" for value in list(override.sweep_string_iterator())[:1]]
        else:
            single.append(override.input_line or "")
    tree = composed_tree(single, config_name)
    if module == "dapo_lit.train":
        parse(resolved(tree))


def test_the_page_of_studies_lists_every_study():
    table = (ROOT / "docs/studies.md").read_text(encoding="utf-8").split("| `+study=` |")[1].split("\n\n")[0]
    listed = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert set(known_choices("study")) <= listed


def test_the_page_for_other_trainers_and_the_hints_on_their_keys_agree():
    """The hint on each word of theirs, unless it is one of ours too, names a key in one of the word's rows."""
    here: dict[str, set[str]] = {}
    for line in page("coming_from.md").splitlines():
        cells = line.split(" | ")
        if len(cells) < 2 or not line.startswith("| `"):
            continue
        theirs, ours = (re.findall(r"`([\w.]+)", cell) for cell in cells[:2])
        if "no counterpart" in cells[1]:
            assert [word for word in theirs if not str(key_for(word, kinds())).startswith(NONE)] == []
            continue
        for word in theirs:
            here.setdefault(word, set()).update(ours)
    assert len(here) > 60
    for word, ours in here.items():
        own = [key for key in kinds() if key.rpartition(".")[2] == word.rpartition(".")[2]]
        meant = key_for(word, kinds()) or next(iter(own), None)
        assert meant, word
        assert any(meant == key or meant.endswith(f".{key}") or meant.startswith(f"{key}.") for key in ours), word


def test_the_port_of_a_trl_script_is_the_experiment_of_the_script():
    """The script's own values, and TRL's defaults where it names none, in each key that decides what is learned."""
    command = next(line for name, line in quoted_commands() if name == "coming_from.md" and "naive_grpo" in line)
    config = parse(resolved(composed_tree(shlex.split(command)[3:])))
    algorithm, optimizer = config.algorithm, config.algorithm.optimizer
    on = {switch for switch, value in algorithm.techniques.model_dump().items() if value}
    assert on == {"clip_higher", "token_level_loss"}  # epsilon_high; loss_type="dapo"
    assert not algorithm.overlong.hard_punishment
    assert (algorithm.clip.low, algorithm.clip.high, algorithm.clip.dual) == (0.2, 0.28, None)
    assert algorithm.num_prompts * algorithm.samples_per_prompt == 16 * 8  # one update a step
    assert (algorithm.minibatch_prompts, algorithm.samples_per_prompt, algorithm.epochs) == (8, 16, 1)
    assert (algorithm.kl.beta, algorithm.entropy.bonus, algorithm.correction.kind) == (0, 0, "none")
    assert (algorithm.advantage.epsilon, algorithm.advantage.scale_by_std) == (1e-4, True)
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.schedule, optimizer.grad_clip) == (1e-6, 0, "linear", 1)
    assert (optimizer.betas, optimizer.eps, optimizer.weight_decay) == ((0.9, 0.999), 1e-8, 0)
    assert (config.budget.steps, config.task.max_response_tokens, config.task.template) == (200, 512, "chat")
    assert (config.reward.wrong_value, config.rollout.temperature) == (0, 1)
