"""A technique for tests to register beside the five: a mask on tokens of low entropy. Nothing implements it."""

from ablations.techniques import Condition, Technique

MASK = Technique(
    "low_entropy_mask",
    section="arXiv 2506.01939",
    equation="Eq. 5",
    on="tokens of low entropy carry no loss",
    off="all tokens do",
    label="low-entropy mask",
    short="mask",
    colour="#9c9ca1",
    condition=Condition("policy/entropy", "mean entropy of tokens", 0.1, share=False),
    never_acted=("loss/masked_frac", "it masked no token"),
)
