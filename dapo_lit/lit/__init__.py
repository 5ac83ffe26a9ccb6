"""Lightning: the module with policy and loss, the data module with rollouts, callbacks and loggers."""
