"""The config of the export of a checkpoint."""

from dapo_lit.config.sections import Section


class ExportConfig(Section):
    ckpt: str
    """A run's folder (its newest checkpoint), or one checkpoint of it."""
    output: str
    """The folder to write; it must not exist yet."""
