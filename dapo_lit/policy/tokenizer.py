"""A character tokenizer, for policies that are trained from scratch."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
    tokens = [PAD, EOS, *characters.replace(" ", "Ġ").replace("\n", "Ċ")]  # byte-level names of space and line break
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
