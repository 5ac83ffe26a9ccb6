"""A tokenizer whose tokens are single characters, for policies that are made from nothing."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD = "<|pad|>"
EOS = "<|endoftext|>"


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Ids: 0 pad, 1 EOS, then `characters` (ASCII) in order. An ordinary HF tokenizer with `save_pretrained`.

    Pad and EOS differ, so that no mask made from pad ids can hide the EOS token. Other characters are dropped.

    >>> tokenizer = character_tokenizer("0123456789+=")
    >>> tokenizer.encode("7+4="), tokenizer.decode([9, 12, 6, 1])
    ([9, 12, 6, 13], '7+4<|endoftext|>')
    """
    if len(set(characters)) != len(characters) or not characters.isascii():
        raise ValueError(f"need different ASCII characters, not {characters!r}")
    # transformers loads a folder with a Qwen2 model through its Qwen2 tokenizer class whatever the folder says. That
    # class is a byte-level BPE with the unknown token <|endoftext|>: being the same thing, without merges, we agree.
    # A byte-level vocabulary writes the space and the line break as these letters.
    vocabulary = {
        token: index for index, token in enumerate([PAD, EOS, *characters.replace(" ", "Ġ").replace("\n", "Ċ")])
    }
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
