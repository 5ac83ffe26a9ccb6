"""The training half of a rollout step. Knows nothing of Lightning, of the switches, or of how samples are made.

`DAPOModule.training_step` (lit/module.py) calls `score`, then the objective's `credit`, then `StepUpdates.run`. Read
the files in this order; each imports only files below it:

    updates           epochs, mini-batches, micro-batches: loss, backward, statistics; the row of the step
    optimizer         one optimiser step: gradient norm, clipping, skipped updates, learning rate; counters of a run
    scoring           the models' forward passes; old and reference log-probs and values before the updates
    loss              TokenData, Objective, and each token's part of the loss of a mini-batch: Eq. 8
    batch             RolloutStep, TokenBatch, micro-batches: flat tensors without padding
    balance           shares of equal cost between ranks

The arithmetic is in dapo_lit/objective/: tokens.py and losses.py first, then diagnostics.py.
"""
