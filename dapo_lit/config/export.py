"""The config of the export of a checkpoint."""

from dapo_lit.config.sections import Section


class ExportConfig(Section):
    ckpt: str
    """A run's folder (its newest checkpoint), or one checkpoint of it."""
    output: str
    """The folder to write; it must not exist yet."""
    push: str | None
    """owner/name of a repository on the Hugging Face hub that gets the folder; created as private if there is none."""
    license: str | None
    """Identifier of the weights' licence for the model card, such as apache-2.0; null: none was stated."""
