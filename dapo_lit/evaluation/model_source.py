"""Opens a model to evaluate: from a run, a checkpoint, an HF folder, a GGUF file or a hub id."""

import hashlib
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ablations.errors import DamagedError
from ablations.files.layout import CHECKPOINTS, CONFIG, RECORD
from ablations.files.manifest import read_manifest
from ablations.files.record import read_config, read_record
from ablations.files.run_manifest import check_kept
from ablations.inputs import differing, in_words, recorded
from dapo_lit.build.base_policy import policy_folder
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.foreign import config_without_code
from dapo_lit.config.sections import Policy
from dapo_lit.policy.digests import local_folder, tokenizer_of
from dapo_lit.policy.load import eos_ids, load_model, load_tokenizer
from dapo_lit.policy.lora import fingerprint, merge
from dapo_lit.runs.checkpoint_files import complete, damage_reason
from dapo_lit.runs.checkpoint_weights import base_fingerprint, config_in, policy_weights

EDGE = 1024
"""Number of values at each end of a tensor that go into the digest, in addition to its sum."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model with its tokenizer."""

    label: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    tokenizer_digest: str = ""
    """Digest of the tokenizer's files and the tokens that end a response; empty: unknown."""
    day: date | None = None
    """The date in the prompts of the run that the model is from."""

    @property
    def digest(self) -> str:
        """8 hexadecimal digits of the weights; equal for a checkpoint and its exported folder."""
        digest = hashlib.blake2b(digest_size=4)
        for name, tensor in sorted(self.model.state_dict().items()):
            flat = tensor.detach().reshape(-1)
            ends = torch.cat([flat[:EDGE], flat[-EDGE:]]).float().cpu().numpy().tobytes()
            digest.update(f"{name}{tuple(tensor.shape)}{float(flat.double().sum())!r}".encode() + ends)
        return digest.hexdigest()


def _tokenizer_digest(path: str | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Empty for a base policy made here, whose files differ between versions of the libraries, and if it is unknown."""
    folder = local_folder(path) if path else None
    try:
        ends = eos_ids(model, tokenizer)
    except ValueError:  # which is reported before the first sample
        ends = ()
    return tokenizer_of(folder, ends) if folder else ""


def open_model(ckpt: str | None, policy: Policy, device: str) -> EvaluatedModel:
    """The model at `ckpt`, or the config's policy if that is None."""
    where = ckpt or policy.path
    if not where:
        raise ConfigError(
            f"policy={policy.name} has no weights of its own; give ckpt=runs/<study>/<arm>/seed_<n>, or policy.path"
        )
    place = Path(where)
    if is_of_run(place):
        evaluated = open_run_model(place)[0]
    else:
        try:
            model, tokenizer = load_model(where, dtype=getattr(torch, policy.dtype)), load_tokenizer(where)
        except FileNotFoundError as error:
            missing = (
                f"ckpt={ckpt}: there is no run, checkpoint or model of this name here or on a model hub; a run is "
                "evaluated by its folder, runs/<study>/<arm>/seed_<n>"
            )
            known = str(error) if ckpt else f"{error} ckpt= names a run or a model's folder to evaluate"
            raise ConfigError(missing if ckpt and not place.exists() else known) from None
        files = _tokenizer_digest(where, model, tokenizer)
        evaluated = EvaluatedModel(place.name if ckpt else policy.name, model, tokenizer, files)
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return replace(evaluated, model=evaluated.model.to(chosen))


def is_of_run(place: Path) -> bool:
    """True for a run folder and for a checkpoint of a run."""
    return (place / RECORD).is_file() or place.suffix == ".ckpt"


def run_of(place: Path) -> Path | None:
    """The run folder of a checkpoint file; a folder is returned unchanged.

    None: the file is in no run folder, because a Trainer of one's own wrote it, or because it was copied.
    """
    if place.suffix != ".ckpt":
        return place
    run = place.parent.parent
    return run if (run / RECORD).is_file() else None


def open_run_model(place: Path) -> tuple[EvaluatedModel, Config]:
    """The policy of a run's newest checkpoint, or of the given checkpoint, on the CPU, and the run's config.

    A checkpoint outside a run folder has the config in it.
    """
    run = run_of(place)
    config = config_without_code(read_config(run), run / CONFIG) if run else None
    if place == run and (manifest := read_manifest(run)):
        check_kept(run, f"checkpoints/step_{manifest['step']:06d}.ckpt")
    chosen = place if place.suffix == ".ckpt" else next(reversed(complete(place / CHECKPOINTS)), None)
    if chosen is None or not chosen.exists():
        raise ConfigError(f"{place}: no checkpoint there; a run writes one every trainer.checkpoint_every steps")
    config = config or config_without_code(config_in(chosen), chosen)
    if reason := damage_reason(chosen):
        raise DamagedError(f"{chosen} is damaged ({reason}); choose another checkpoint in {chosen.parent}")
    folder = policy_folder(config.policy, config.task)
    own = config.policy.path is None
    model = load_model(folder, dtype=getattr(torch, config.policy.dtype), own=own)
    tokenizer = load_tokenizer(folder, own=own)
    saved = policy_weights(chosen)
    if config.policy.lora is None:
        try:
            model.load_state_dict(saved)
        except RuntimeError as error:  # it lists every tensor
            first, _, more = str(error).partition("\n\t")
            raise DamagedError(
                f"{chosen} does not fit the policy {folder} ({more.partition(chr(10))[0][:200] or first}); choose "
                "another checkpoint, or restore the policy that the run was started with"
            ) from None
    else:
        base, here = base_fingerprint(chosen), fingerprint(model)
        if base != here:
            raise DamagedError(
                f"{chosen} holds adapters for another base than {folder} (fingerprint {base}, not {here}); restore the "
                "policy that the run was started with"
            )
        try:
            merge(model, saved, config.policy.lora.alpha / config.policy.lora.rank)
        except KeyError as error:
            raise DamagedError(f"{chosen} holds adapters without {error}; choose another checkpoint") from None
    label = f"{run.parent.name}-{run.name}-{chosen.stem}" if run else f"{chosen.absolute().parent.name}-{chosen.stem}"
    record = read_record(run) if run else {}
    files = _tokenizer_digest(config.policy.path, model, tokenizer)
    if changed := differing(recorded(record), {"tokenizer": files} if files else {}):
        raise ConfigError(
            f"{in_words(changed, config.model_dump())} has changed since {place} was trained with it; restore its files"
        )
    day = date.fromisoformat(record["prompt_date"]) if record.get("prompt_date") else None
    return EvaluatedModel(label, model, tokenizer, files, day), config
