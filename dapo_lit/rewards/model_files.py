"""What a worker does with the files of a model: reads them as the trainer will, and renders its chat template.

A chat template is code, and a tokenizer, a config or the header of a weights file may stand for more than a machine
holds. What ends here, within a clock and a limit of memory, ends in the trainer too. What transformers refuses is
refused there, in its words. The supervisor has loaded transformers without torch, which takes a third of the time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils.chat_template_utils import render_jinja_template

from dapo_lit.rewards.work import Reading, Rendering

LONGEST_CHAT = 1_000_000
"""Characters of a rendered chat; that of 100,000 tokens has some 400,000."""
SAMPLE = "".join(map(chr, range(32, 127))) * 10
"""A text that every tokenizer has to encode."""
SIZES = ("vocab_size", "intermediate_size")
"""Sizes in config.json that no tensor is smaller than in every direction."""
NARROW = ("F4", "F6", "F8", "I4", "I8", "U4", "U8")
"""Beginnings of the types of numbers in safetensors that have less than 16 bits."""


def rendered(work: Rendering) -> list[str]:
    """The text of each chat. Raises what the template raises, and ValueError: a text is too long for any prompt."""
    settings = dict(work.settings)
    moment = datetime.combine(date.fromisoformat(work.day), time())
    found = render_jinja_template(
        conversations=[[*map(dict, chat)] for chat in work.chats],
        chat_template=work.template,
        add_generation_prompt=work.add_generation_prompt,
        **settings | {work.clock: moment.strftime},
    )
    texts = list(found[0] if isinstance(found, tuple) else found)
    if (longest := max(map(len, texts), default=0)) > LONGEST_CHAT:
        raise ValueError(f"it writes {longest:,} characters; a chat has at most {LONGEST_CHAT:,}")
    return texts


def read_once(work: Reading) -> str | None:
    """Reads config, tokenizer and headers of a model's folder; returns what is wrong with its numbers or its sizes, and
    what to do, if anything is."""
    folder, config, shapes, narrow = Path(work.folder), None, list[list[int]](), dict[str, str]()
    with _said_by_the_trainer():
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False)(SAMPLE)
    with _said_by_the_trainer():
        GenerationConfig.from_pretrained(folder)
    with _said_by_the_trainer():
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    part = tensors.get_slice(name)
                    shapes.append(part.get_shape())
                    if (kind := str(part.get_dtype())).startswith(NARROW) and name.endswith(".weight"):
                        narrow[name] = kind
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    if narrow:
        name, kind = next(iter(narrow.items()))
        return (
            f"{len(narrow)} of its weights are quantised, such as {name} ({kind}), and such weights are not supported; "
            "take the model in float32, bfloat16 or float16 that it was made from"
        )
    fault = _wrong_sizes(config, shapes) if config is not None and shapes else None
    return fault and f"{fault}; put the config.json of these weights there"


@contextmanager
def _said_by_the_trainer() -> Iterator[None]:
    """Passes over what transformers refuses here: the trainer will meet it too, and names the files."""
    try:
        yield
    except MemoryError:
        raise
    except Exception:
        pass


def _wrong_sizes(config: Any, shapes: list[list[int]]) -> str | None:
    """A size in config.json that the files have no tensors for; transformers would make as many random numbers."""
    largest = max((size for shape in shapes for size in shape), default=0)
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > len(shapes):
        return f"config.json has num_hidden_layers {layers:,}, and the files have {len(shapes):,} tensors"
    # Mixtures of experts may have a size of dense layers, and no such layer.
    for name in SIZES[: 1 if hasattr(config, "moe_intermediate_size") else None]:
        size = getattr(config, name, 0)
        if isinstance(size, int) and size > largest:
            return f"config.json has {name} {size:,}, and the largest tensor of the files has {largest:,}"
    width = getattr(config, "hidden_size", None)
    if isinstance(width, int) and not any(width in shape for shape in shapes):
        return f"config.json has hidden_size {width:,}, and no tensor of the files has that size"
    return None
