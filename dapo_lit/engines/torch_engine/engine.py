"""A batched sampler in plain torch: no server, no compilation, exact log-probs.

Requests enter the batch in submission order. Whenever an eighth of it has ended, the last rows fill the free places and
the next requests follow them (continuous refill); no other row is moved. A group's prompt is run once, and its samples
are computed together as long as their tokens are the same. Left out: CUDA graphs, speculative decoding, paging, tensor
parallelism.

A sample's noise depends only on its key and position, so any batch gives the same tokens. Log-probs then agree to
rounding (about 1e-6); a token can differ only where the uniform is that close to the boundary between two tokens.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig

from dapo_lit.engines.protocol import RolloutEngine, Sampling
from dapo_lit.engines.torch_engine.decoder import Decoder
from dapo_lit.engines.torch_engine.decoding_batch import DecodingBatch
from dapo_lit.engines.torch_engine.rows import Rows


class TorchEngine(RolloutEngine):
    """Samples with its own copy of the weights.

    config: of the policy; llama, mistral, qwen2 or qwen3, otherwise ValueError.
    eos_ids: every id that ends a response; it stays in the response, with its log-prob. Empty: none does.
    dtype: of weights, activations and cache; logits come from float32 products whatever it is.
    max_batch_size: sequences decoded at once.
    """

    reproducible = True
    """Noise is counter-based, and the same requests in the same order make the same batches."""

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        eos_ids: Sequence[int],
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        max_batch_size: int = 512,
    ) -> None:
        # An id outside would never be drawn, and every response would count as truncated.
        outside = [token for token in eos_ids if not 0 <= token < config.vocab_size]
        if outside:
            raise ValueError(f"eos_ids {outside} are outside the vocabulary of {config.vocab_size}")
        self._decoder = Decoder(config, torch.device(device), dtype)
        # A mask, because models have several tokens that end a response.
        self._is_eos = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
        self._is_eos[torch.tensor(list(eos_ids), dtype=torch.int64, device=device)] = True
        self.concurrency = max_batch_size

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copies the weights in.

        Raises ValueError naming missing, unexpected or wrongly shaped tensors; nothing can be sampled until a sync
        succeeds.
        """
        self.version = None
        self._decoder.weights.load(named_tensors)
        self.version = version

    def open(self, sampling: Sampling) -> DecodingBatch:
        if self.version is None:
            raise RuntimeError("sync_weights must be called before generate")
        # Anew for each stream, as a new version of the weights makes every cached key and value wrong.
        rows = Rows(self._decoder, self._is_eos)
        return DecodingBatch(self._decoder, rows, sampling, self.concurrency, self.version, lambda: self.version)

    def close(self) -> None:
        """Frees weights; the engine cannot be used any more."""
        del self._decoder
        self.version = None
