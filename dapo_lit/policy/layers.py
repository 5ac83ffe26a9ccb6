"""The decoder layers of a model, whatever its family calls them."""

from torch import nn
from transformers import PreTrainedModel


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The layers in their order; `model` may be without its head.

    Raises:
        ValueError: the model has no list of as many modules as its config has layers.
    """
    config = model.config.get_text_config()
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
            return module
    raise ValueError(
        f"the layers of a policy of model type {config.model_type!r} are not found: it has no list of "
        f"{config.num_hidden_layers} modules; set policy.freeze_frac=0 trainer.activation_checkpointing=none "
        "trainer.sharding.dtype=null"
    )
