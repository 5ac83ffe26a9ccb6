"""Base policies: small models pre-trained here on demonstrations and cached as HF folders.

A base policy is a function of its spec, up to rounding on another CPU or torch version: architecture and seed fix the
initial weights, each stage adds a fixed number of supervised updates. Every stage is cached, so base policies with the
same first stages share that work.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from filelock import FileLock
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from ablations.errors import UserError, suggestion
from ablations.screen import StatusLine
from dapo_lit.policy.load import load_model, save_policy
from dapo_lit.seeds import pretraining_seed

if TYPE_CHECKING:
    from dapo_lit.policy.pretrain import Example

Report = Callable[[int, float], None]
"""Called with the number of a stage's updates so far and the loss of the last one."""
_UNDECLARED = ("head_dim", "rope_theta", "rope_scaling")
"""Settings that models take though their configuration does not declare them."""
_BUILD = 1
"""Increase it when the same spec gives another model, so that cached base policies are rebuilt."""


class Demonstration(Protocol):
    @property
    def prompt(self) -> str: ...
    @property
    def response(self) -> str: ...
    @property
    def ends(self) -> bool:
        """True if the EOS token follows the last turn."""

    @property
    def then(self) -> Sequence[tuple[str, str]]:
        """After the response, which is the first turn: what an environment says and the next turn, in order."""


class Demonstrations(Protocol):
    """A seeded source of demonstrations, such as dapo_lit.tasks.chain_sum.Mixture."""

    def recipe(self) -> Mapping[str, object]:
        """Everything except the seed that determines what `stream` yields, as JSON values."""

    def stream(self, seed: int) -> Iterator[Demonstration]: ...


@dataclass(frozen=True)
class Stage:
    demonstrations: Demonstrations
    updates: int
    learning_rate: float
    batch_size: int
    """updates x batch_size demonstrations are drawn, each seen once."""

    def recipe(self) -> dict[str, object]:
        numbers = {name: value for name, value in vars(self).items() if name != "demonstrations"}
        return {**numbers, "demonstrations": dict(self.demonstrations.recipe())}


@dataclass(frozen=True)
class BaseSpec:
    """The ingredients of a base policy. Without stages it is a random initialisation."""

    name: str
    """Label of the progress lines; not part of the cache key."""
    architecture: Mapping[str, object]
    """Arguments of an HF config, including `model_type`; vocabulary size and token ids are filled in."""
    characters: str
    """The vocabulary, in addition to pad and EOS."""
    seed: int = 0
    stages: tuple[Stage, ...] = ()

    def recipe(self) -> dict[str, object]:
        return {
            "build": _BUILD,
            "architecture": dict(self.architecture),
            "characters": self.characters,
            "seed": self.seed,
            "stages": [stage.recipe() for stage in self.stages],
        }

    def folder_name(self) -> str:
        # The recipe is the name: a policy of another recipe is never taken from the cache for this one.
        digest = hashlib.sha256(json.dumps(self.recipe(), sort_keys=True).encode()).hexdigest()
        return f"base-{digest[:16]}"


def default_cache() -> Path:
    """DAPO_LIT_CACHE, or ~/.cache/dapo_lit."""
    return Path(os.environ.get("DAPO_LIT_CACHE") or Path.home() / ".cache" / "dapo_lit")


def prepare_base(spec: BaseSpec, cache: Path | None = None) -> Path:
    """The HF folder of the base policy (config, safetensors, tokenizer, generation config), built if it is not cached.

    Weights are float32 with values that bfloat16 can represent, unless there is no stage.

    The folder is written under a temporary name and renamed when complete. A file lock makes a second process with the
    same spec wait for the first.
    """
    cache = cache or default_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{cache}: the folder of base policies cannot be made ({error.strerror}); DAPO_LIT_CACHE=DIR names another"
        ) from None
    missing = _missing(spec, cache)
    sizes = [each.stages[-1].updates * each.stages[-1].batch_size if each.stages else 0 for each in missing]
    with StatusLine(f"pre-training base policy {spec.name}") as line:
        for each, before in zip(missing, accumulate(sizes, initial=0), strict=False):

            def report(updates: int, loss: float, each: BaseSpec = each, before: int = before) -> None:
                done = before + updates * each.stages[-1].batch_size
                line.update(done, sum(sizes), f"{done / sum(sizes):.0%}, loss {loss:.3f}")

            _prepare(each, cache, report)
    return cache / spec.folder_name()


def _missing(spec: BaseSpec, cache: Path) -> list[BaseSpec]:
    """The base policies to be made, each a stage longer than the one before: those after the longest that is cached."""
    found: list[BaseSpec] = []
    # From the longest: stages build on each other, and what is cached is not made again.
    for length in reversed(range(len(spec.stages) + 1)):
        each = replace(spec, stages=spec.stages[:length])
        if (cache / each.folder_name()).is_dir():
            break
        found.insert(0, each)
    return found


def _prepare(spec: BaseSpec, cache: Path, report: Report) -> None:
    """Adds the last stage to the base policy before it, which is cached."""
    folder = cache / spec.folder_name()
    with FileLock(cache / f"{spec.folder_name()}.lock"):
        if folder.is_dir():  # another process has made it meanwhile
            return
        tokenizer = character_tokenizer(spec.characters)
        if spec.stages:
            model = load_model(cache / replace(spec, stages=spec.stages[:-1]).folder_name())
            _train_stage(model, tokenizer, spec, report)
        else:
            model = random_model(spec.architecture, tokenizer, spec.seed)
        save_policy(folder, model, tokenizer, {"base.json": spec.recipe()})


def random_model(architecture: Mapping[str, object], tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A float32 model with random weights, determined by the seed. Torch's global generator is not changed.

    Weights are drawn with standard deviation 1/sqrt(hidden_size) unless the architecture gives `initializer_range`:
    the 0.02 of transformers suits models some thousand wide and makes tiny ones learn slowly.

    Raises UserError for values that make no model, and for a name that the model's configuration does not have.
    """
    values = dict(architecture)
    try:
        # 1/sqrt(width) keeps the first logits of order 1 at any width.
        values.setdefault("initializer_range", float(values["hidden_size"]) ** -0.5)  # type: ignore[arg-type]
        config = AutoConfig.for_model(
            values.pop("model_type"),
            vocab_size=len(tokenizer),
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **values,
        )
        # transformers keeps a name that it does not know, and nothing reads it.
        known = [*(field.name for field in fields(config)), *config.attribute_map, *_UNDECLARED]
        for name in values.keys() - {*known}:
            raise UserError(
                f"policy.architecture.{name}: {config.model_type} has no such setting; {suggestion(name, known)}"
            )
        # A GPU's generator would draw other weights, and Lightning builds under its device.
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            # A first pass here, where a size that does not fit is an error of the config.
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device="cpu"))
    except UserError:
        raise
    except Exception as error:
        # A size that is missing, negative, or does not divide another.
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(
            f"policy.architecture: no model has these sizes ({type(error).__name__}: {reason}); sizes are positive, "
            "num_attention_heads divides hidden_size, and num_key_value_heads divides num_attention_heads"
        ) from error
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def _train_stage(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, spec: BaseSpec, report: Report) -> None:

    from dapo_lit.policy.pretrain import train_supervised  # the shipped base policies need none of it

    stage = spec.stages[-1]
    seed = pretraining_seed(spec.seed, len(spec.stages))
    # All drawn first: the length of a stage, and nothing else, decides how far its generator goes.
    drawn = list(islice(stage.demonstrations.stream(seed), stage.updates * stage.batch_size))
    threads = torch.get_num_threads()
    # As fast as more for a tiny model, and the same rounding everywhere.
    torch.set_num_threads(1)
    try:
        train_supervised(
            model,
            _rows(tokenizer, drawn),
            updates=stage.updates,
            batch_size=stage.batch_size,
            learning_rate=stage.learning_rate,
            seed=seed,
            report=report,
        )
    finally:
        torch.set_num_threads(threads)
    # Studies keep their base policies in git: float32 whose lower half is zero packs to half the size.
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(weights.bfloat16())


def _rows(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> "list[Example]":
    from dapo_lit.policy.pretrain import Example

    # All texts at once, which is many times faster, then taken from the list again in the order in which they went in.
    texts = [text for d in demonstrations for text in (d.prompt, d.response, *chain.from_iterable(d.then))]
    ids = iter(tokenizer(texts, return_attention_mask=False)["input_ids"])
    end = [tokenizer.eos_token_id]
    rows = []
    for demonstration in demonstrations:
        prompt, response = next(ids), [*next(ids)]
        observed: list[int] = []
        for _ in demonstration.then:
            # As in a run (rollout/episodes.py): the turn's EOS token, what the environment says, the next turn.
            response += end
            said = next(ids)
            observed += range(len(response), len(response) + len(said))
            response += [*said, *next(ids)]
        # A demonstration that does not end teaches the policy to run into the limit, which some studies need.
        rows.append(Example(prompt, response + end if demonstration.ends else response, observed))
    return rows


PAD = "<|pad|>"
EOS = "<|endoftext|>"


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Ids: 0 pad, 1 EOS, then `characters` (ASCII) in order. An ordinary HF tokenizer with `save_pretrained`.

    Pad and EOS differ, so that a mask made from pad ids cannot hide the EOS token. Other characters are dropped.

    >>> tokenizer = character_tokenizer("0123456789+=")
    >>> tokenizer.encode("7+4="), tokenizer.decode([9, 12, 6, 1])
    ([9, 12, 6, 13], '7+4<|endoftext|>')
    """
    if len(set(characters)) != len(characters) or not characters.isascii():
        raise ValueError(f"need different ASCII characters, not {characters!r}")
    # For a folder with a Qwen2 model, transformers always uses its Qwen2 tokenizer class, a byte-level BPE with the
    # unknown token <|endoftext|>. This tokenizer is the same, without merges, so it survives saving and loading.
    # Byte-level names of space and line break.
    tokens = [PAD, EOS, *characters.replace(" ", "Ġ").replace("\n", "Ċ")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
