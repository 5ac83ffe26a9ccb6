"""The commands of the tools: `dapo-lit NAME`, and `python -m dapo_lit.NAME`."""
