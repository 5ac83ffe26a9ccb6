"""The training half of a rollout step. Knows nothing of Lightning, of the switches, or of how samples are made.

`DAPOModule.training_step` (lit/module.py) calls `score`, then the objective's `credit`, then `StepUpdates.run`. Read
the files in this order; each imports only files below it:

    step_row          the metrics of the step: samples, updates, times, memory
    rollout_step      what arrives: the collected step and its tensors
    before_updates    old and reference log-probs, values: one TokenAxis
    updates           epochs, mini-batches, micro-batches: forward, loss, backward, statistics
    surrogate         losses that need a whole mini-batch, as a sum over tokens
    optimizer_steps   one optimiser step: gradient norm, clipping, skipped updates, learning rate
    counters          cumulative counts of a run
    forward           PolicyForward: log-probs, loss, values and divergence of a micro-batch
    objective         Objective: loss, weights, credit and corrections as plain functions (recipe/switches.py makes it)
    token_axis        TokenAxis: what is known about each response token
    packing           TokenBatch, mini-batches and micro-batches: flat tensors without padding
    balance           shares of equal cost between ranks

The arithmetic is in dapo_lit/objective/: losses.py first, then diagnostics.py.
"""
