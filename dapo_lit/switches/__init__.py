"""From config to the plain values and functions of a training step. The only room that reads a switch."""
