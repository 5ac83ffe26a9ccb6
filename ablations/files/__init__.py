"""The files of a run folder: how each is written and read, by whoever does it. layout.py lists them."""
