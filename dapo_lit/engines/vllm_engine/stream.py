"""The requests of one vLLM engine under one version of the weights."""

from collections.abc import Collection, Sequence
from typing import Any

from dapo_lit.engines.protocol import PartialSample, Sample, SampleKey, SampleRequest, SampleStream, Sampling
from dapo_lit.seeds import request_seed


def sampling_params(request: SampleRequest, sampling: Sampling, eos_ids: list[int]) -> dict[str, Any]:
    """The parameters of vLLM's sampling for one request."""
    # What is there already counts towards the limit, wherever it was sampled.
    num_tokens = len(request.partial.response_ids)
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": request.limit(sampling) - num_tokens,
        "seed": request_seed(sampling.seed, request.key, num_tokens),
        "stop_token_ids": eos_ids,
        "logprobs": 0,  # of the sampled token
        "detokenize": False,
    }


class VllmStream(SampleStream):
    """Requests by name; every step of vLLM's scheduler adds a token to each."""

    def __init__(
        self, engine: Any, max_model_tokens: int, eos_ids: list[int], sampling: Sampling, version: int
    ) -> None:
        self._engine = engine
        self._max_tokens = max_model_tokens
        self._eos_ids = eos_ids
        self._sampling = sampling
        self._version = version
        self._pending: dict[str, SampleRequest] = {}
        self._number = 0

    @property
    def pending(self) -> int:
        return len(self._pending)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Raises ValueError for a prompt that is empty or leaves no room for the response."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        limit = self._sampling.max_response_tokens
        for request in requests:
            request.check_length(limit, self._max_tokens)
            given = sampling_params(request, self._sampling, self._eos_ids)
            # Final only: a Python object for each token would cost more than its sampling.
            params = SamplingParams(**given, output_kind=RequestOutputKind.FINAL_ONLY)
            # Unique over streams: vLLM may still hold a request that an earlier one dropped.
            name = f"{self._version}-{id(self)}-{self._number}"
            self._number += 1
            # One request a sample and not n=G: vLLM returns a group only when its longest sample has ended.
            self._pending[name] = request
            self._engine.add_request(name, {"prompt_token_ids": request.input_ids.tolist()}, params)

    def step(self) -> list[Sample]:
        if not self._pending:
            return []
        samples = []
        for output in self._engine.step():
            # vLLM may finish a request in the step in which it was withdrawn.
            if output.finished and output.request_id in self._pending:
                request = self._pending.pop(output.request_id)
                [ended] = output.outputs
                ids, logprobs = _sampled(ended.token_ids, ended.logprobs)
                # "length" is a truncation: no token ended the response.
                finished = ended.finish_reason == "stop"
                samples.append(
                    request.partial.ended(request.key, ids, logprobs, finished=finished, version=self._version)
                )
        return samples

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        wanted = frozenset(keys)
        names = [name for name, request in self._pending.items() if request.key in wanted]
        found = {}
        for name in names:
            request = self._pending.pop(name)
            found[request.key] = self._so_far(name, request)
        self._engine.abort_request(names)
        return found

    def _so_far(self, name: str, request: SampleRequest) -> PartialSample:
        """The tokens that the output processor has of a request that has not ended."""
        # Not public: an aborted request returns nothing, and its tokens would be lost.
        processor = self._engine.output_processor
        for internal in getattr(processor, "external_req_ids", {}).get(name, [name]):
            state = processor.request_states.get(internal)
            if state is not None and state.detokenizer is not None and state.logprobs_processor is not None:
                ids, logprobs = _sampled(state.detokenizer.output_token_ids, state.logprobs_processor.logprobs)
                return request.partial.extended(ids, logprobs, self._version)
        return request.partial


def _sampled(token_ids: Sequence[int], logprobs: Any) -> tuple[list[int], list[float]]:
    """Token ids and their log-probs, as far as there are log-probs."""
    # Log-probs may lag a token behind; a token without its log-prob is of no use.
    values = [place[token].logprob for token, place in zip(token_ids, logprobs or [], strict=False)]
    return list(token_ids)[: len(values)], values
