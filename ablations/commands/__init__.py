"""The commands: `ablations NAME`, and NAME of a trainer that hands itself over."""
