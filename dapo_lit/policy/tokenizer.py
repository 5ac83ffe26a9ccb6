"""A tokenizer whose tokens are single characters, for policies that are made from nothing."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD = "<pad>"
EOS = "<eos>"


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Ids: 0 pad, 1 EOS, then `characters` in order. An ordinary HF tokenizer: `save_pretrained` makes it a folder.

    Pad and EOS differ, so that no mask made from pad ids can hide the EOS token. Encoding any other character raises.

    >>> tokenizer = character_tokenizer("0123456789+=")
    >>> tokenizer.encode("7+4="), tokenizer.decode([9, 12, 6, 1])
    ([9, 12, 6, 13], '7+4<eos>')
    """
    if len(set(characters)) != len(characters):
        raise ValueError(f"a character stands twice in {characters!r}")
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
