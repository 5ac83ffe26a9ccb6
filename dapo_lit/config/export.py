"""The config of the export of a checkpoint."""

from pydantic import field_validator

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

    @field_validator("push")
    @classmethod
    def _names_owner_and_repository(cls, push: str | None) -> str | None:
        if push is not None and len([part for part in push.split("/") if part]) != 2:
            raise ValueError(f"{push} is not owner/name, such as me/dapo")
        return push
