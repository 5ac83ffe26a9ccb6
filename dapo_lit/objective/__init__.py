"""The paper's equations as pure functions of tensors. Imports torch and jaxtyping, and nothing else.

Shapes are in the signatures, as `Float[Tensor, "P G"]`: float32 or another width, one row for each of P prompts. They
are annotations and cost nothing; tests/test_shapes.py checks them on real calls. The axes, here and in the other rooms:

    P  prompts                     G  completions of one prompt
    B  completions                 N  response tokens of B completions, one completion after the other
    n  some response tokens: of a mini-batch, a micro-batch or a chunk
    c  response tokens whose logits exist at once
    T  packed tokens of a micro-batch, prompts included
    V  vocabulary                  H  hidden size
"""
