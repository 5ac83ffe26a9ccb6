"""From config to the plain values and functions that a run is made of. The only room that reads a switch."""
