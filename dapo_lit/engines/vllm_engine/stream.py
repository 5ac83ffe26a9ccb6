"""The requests of one vLLM engine under one version of the weights."""

from collections.abc import Collection, Sequence
from typing import Any

from dapo_lit.engines.protocol import SampleRequest, Sampling
from dapo_lit.engines.samples import Begun, Sample, SampleKey


class VllmStream:
    """Requests by name; vLLM's scheduler runs all of them a token further with every step."""

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
            ids = list(request.prompt_ids + request.begun.response_ids)
            if not request.prompt_ids or len(request.prompt_ids) + limit > self._max_tokens:
                raise ValueError(
                    f"prompt of {request.key} has {len(request.prompt_ids)} tokens; with {limit} of the response it "
                    f"must fit into {self._max_tokens}: raise task.max_prompt_tokens, or leave the problem out"
                )
            params = SamplingParams(
                temperature=self._sampling.temperature,
                top_p=self._sampling.top_p,
                top_k=self._sampling.top_k or -1,
                max_tokens=limit - len(request.begun.response_ids),
                stop_token_ids=self._eos_ids,
                logprobs=0,  # of the sampled token
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            name = f"{self._version}-{id(self)}-{self._number}"
            self._number += 1
            self._pending[name] = request
            self._engine.add_request(name, {"prompt_token_ids": ids}, params)

    def step(self) -> list[Sample]:
        if not self._pending:
            return []
        samples = []
        for output in self._engine.step():
            if output.finished and output.request_id in self._pending:
                request = self._pending.pop(output.request_id)
                [ended] = output.outputs
                tokens = self._tokens(request, list(ended.token_ids), ended.logprobs)
                samples.append(
                    Sample(
                        request.key,
                        tokens.response_ids,
                        tokens.rollout_logprobs,
                        ended.finish_reason == "stop",
                        self._version,
                        request.begun.versions,
                    )
                )
        return samples

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, Begun]:
        wanted = frozenset(keys)
        names = [name for name, request in self._pending.items() if request.key in wanted]
        found = {}
        for name in names:
            request = self._pending.pop(name)
            found[request.key] = self._so_far(name, request)
        self._engine.abort_request(names)
        return found

    def _so_far(self, name: str, request: SampleRequest) -> Begun:
        """What the output processor has of a request that has not ended."""
        processor = self._engine.output_processor
        for internal in getattr(processor, "external_req_ids", {}).get(name, [name]):
            state = processor.request_states.get(internal)
            if state is not None and state.detokenizer is not None and state.logprobs_processor is not None:
                return self._tokens(
                    request, list(state.detokenizer.output_token_ids), state.logprobs_processor.logprobs
                )
        return request.begun

    def _tokens(self, request: SampleRequest, ids: list[int], logprobs: Any) -> Begun:
        """The tokens of a response, those that it went on from first."""
        before = request.begun
        values = tuple(place[token].logprob for token, place in zip(ids, logprobs or [], strict=False))
        ids = ids[: len(values)]
        return Begun(
            before.response_ids + tuple(ids),
            before.rollout_logprobs + values,
            before.versions + (self._version,) * len(ids),
        )
