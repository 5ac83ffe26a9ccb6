"""The requests of one step at the servers of vLLM, under one version of the weights.

As many are under way as the servers decode at once, each over a connection of its own; the others wait here. The
requests of a server that fails start anew at another one: the weights that drew their first tokens are known only at
the end of a response.
"""

import asyncio
import queue
import time
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from dapo_lit.engines.protocol import PartialSample, Sample, SampleKey, SampleRequest, SampleStream, Sampling
from dapo_lit.engines.vllm_engine.stream import sampling_params
from dapo_lit.engines.vllm_server import client
from dapo_lit.engines.vllm_server.client import ServerError
from dapo_lit.engines.vllm_server.servers import Servers
from dapo_lit.log import log

GENERATE = "/inference/v1/generate"
"""Token ids in, token ids out, as a stream (vLLM 0.32)."""
WEIGHTS = "/weight_info"
"""The label of the weights that a server has (with VLLM_SERVER_DEV_MODE)."""
TOKENS_AN_EVENT = 32
"""Sending single tokens would cost the server more than sampling them; a withdrawn response loses at most this many."""
WAIT_S = 0.05
"""Seconds that `step` waits for the first sample to end."""


@dataclass
class UnderWay:
    request: SampleRequest
    server: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    work: Future[None] | None = None


class VllmServerStream(SampleStream):
    """Sends samples to the servers group by group, always to the one with the fewest under way."""

    def __init__(
        self,
        servers: Servers,
        eos_ids: Sequence[int],
        max_model_tokens: int,
        sampling: Sampling,
        version: int,
        label: str,
        places: int,
    ) -> None:
        """places: requests of this rank that are under way at once."""
        self._servers = servers
        self._client = servers.client
        self._eos_ids = list(eos_ids)
        self._max_tokens = max_model_tokens
        self._sampling = sampling
        self._version = version
        self._label = label  # of the weights, as the servers know them
        self._places = places
        self._waiting: deque[SampleRequest] = deque()
        self._pending: dict[SampleKey, UnderWay] = {}
        self._ended: queue.SimpleQueue[tuple[UnderWay, Exception | None]] = queue.SimpleQueue()
        self._load = [0] * len(servers.client.urls)
        self._heard = [0.0] * len(servers.client.urls)
        self._group: tuple[int, str, int] | None = None
        self._server = 0
        self._homes: dict[SampleKey, int] = {}  # the server that each sample was sent to last

    @property
    def pending(self) -> int:
        return len(self._pending) + len(self._waiting)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Raises ValueError for a prompt that is empty or leaves no room for the response."""
        limit = self._sampling.max_response_tokens
        for request in requests:
            request.check_length(limit, self._max_tokens)
            self._waiting.append(request)
        self._fill()

    def _fill(self) -> None:
        """Sends what waits to the places that are free. Raises ServerError if every server is lost."""
        while self._waiting and len(self._pending) < self._places:
            self._send(self._waiting.popleft())

    def _send(self, request: SampleRequest) -> None:
        """Raises ServerError if every server is lost."""
        server = self._homes[request.key] = self._choose(request.key)
        under_way = UnderWay(request, server)
        if not self._load[server]:
            self._heard[server] = time.monotonic()
        self._load[server] += 1
        self._pending[request.key] = under_way
        under_way.work = self._client.start(self._sample(under_way))

    def _choose(self, key: SampleKey) -> int:
        """The server whose prefix cache has most of a request. Raises ServerError if every server is lost."""
        usable, home = self._servers.usable, self._homes.get(key)
        if not usable:
            raise self._servers.none_left()
        # An episode goes on where its turns so far are.
        if home is not None and home in usable:
            return home
        group = (key.step, key.problem_id, key.attempt)
        # By group: the prefix cache computes the prompt once where all samples of a group are at one server.
        if group != self._group or self._server not in usable:
            self._group, self._server = group, min(usable, key=lambda index: self._load[index])
        return self._server

    def _check_label(self, url: str, label: str) -> None:
        """Raises ServerError for weights that are not those of this step, by the server's own word."""
        # After a restart it has dummy weights, and answers as if nothing had happened.
        if label != self._label:
            raise ServerError(
                f"{url} samples with weights {label!r} instead of {self._label!r}: it was restarted, or another run "
                "trains with it"
            )

    async def _sample(self, under_way: UnderWay) -> None:
        """In the client's thread: takes in one response, and hands it over when it has ended."""

        def take(event: dict[str, Any]) -> None:
            self._heard[under_way.server] = time.monotonic()
            for choice in event["choices"]:
                for span in choice.get("weight_versions") or ():
                    self._check_label(url, span["version"])
                if reason := choice["finish_reason"]:
                    if reason not in ("stop", "length"):
                        raise ServerError(f"{url} ended a response with {reason!r}")
                    under_way.finish_reason = reason
                if choice["token_ids"]:
                    # Log-probs first: `withdraw` reads in another thread and cuts both lists at the number of ids.
                    under_way.logprobs += [place["logprob"] for place in choice["logprobs"]["content"]]
                    under_way.ids += choice["token_ids"]

        url, request = self._client.urls[under_way.server], under_way.request
        # The same parameters as in process, so that the same request has the same seed.
        params = sampling_params(request, self._sampling, self._eos_ids) | {"stream_interval": TOKENS_AN_EVENT}
        body = {"token_ids": request.input_ids.tolist(), "stream": True, "sampling_params": params}
        try:
            await self._client.events(url, GENERATE, body, take)
        except Exception as error:
            self._ended.put((under_way, error))
        else:
            self._ended.put((under_way, None))

    def step(self) -> list[Sample]:
        """Raises ServerError where the last server failed, ValueError where one refused a request."""
        samples: list[Sample] = []
        while self._pending:
            try:
                # Waits for the first, then takes what is there: the caller has verdicts to collect meanwhile.
                ended, error = self._ended.get(timeout=0 if samples else WAIT_S)
            except queue.Empty:
                self._break_off_silent()
                break
            # Withdrawn while it ended.
            if self._pending.get(ended.request.key) is not ended:
                continue
            if error is not None:
                self._send_again(ended, error)
                continue
            del self._pending[ended.request.key]
            self._load[ended.server] -= 1
            request, finished = ended.request, ended.finish_reason == "stop"
            samples.append(
                request.partial.ended(request.key, ended.ids, ended.logprobs, finished=finished, version=self._version)
            )
        self._fill()
        return samples

    def _break_off_silent(self) -> None:
        """Fails the requests of a server that sends nothing of any: its process is stopped, or its engine hangs."""
        for index, url in enumerate(self._client.urls):
            # Per server and not per request: a request may wait in the queue for hours while others are served.
            if not self._load[index] or time.monotonic() - self._heard[index] <= client.ANSWER_S:
                continue
            here = [under_way for under_way in self._pending.values() if under_way.server == index]
            # Those of other ranks may be before all of this rank's in the queue.
            if not any(under_way.ids for under_way in here) and self._servers.has_generated(index):
                self._heard[index] = time.monotonic()
                continue
            for under_way in here:
                assert under_way.work is not None
                under_way.work.cancel()
                self._ended.put((under_way, ServerError(f"{url} has sent no token for {client.ANSWER_S:g} s")))

    def _send_again(self, failed: UnderWay, error: Exception) -> None:
        """Raises the error unless it is the failure of a server and another one is left."""
        if not isinstance(error, ServerError):
            raise error
        # Its requests start again with the same seed: elsewhere the same tokens come, up to rounding.
        self._servers.lose(failed.server, error)
        if not self._servers.usable:
            raise error
        self._load[failed.server] -= 1
        self._send(failed.request)

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        """Dropping the connection ends a request at its server."""
        chosen = {key: self._pending.pop(key) for key in keys if key in self._pending}
        for under_way in chosen.values():
            assert under_way.work is not None
            under_way.work.cancel()
        # Behind the cancellations: nothing is added to the chosen from here on.
        self._client.run(asyncio.sleep(0))
        partial = {request.key: request.partial for request in self._waiting if request.key in keys}
        self._waiting = deque(request for request in self._waiting if request.key not in partial)
        kept = self._of_these_weights({under_way.server for under_way in chosen.values() if under_way.ids})
        for key, under_way in chosen.items():
            self._load[under_way.server] -= 1
            # The last token of a response that ended without being handed out is sampled again.
            # Or a continued response would start after its own end.
            count = len(under_way.ids) - (under_way.finish_reason is not None) if under_way.server in kept else 0
            partial[key] = under_way.request.partial.extended(
                under_way.ids[:count], under_way.logprobs[:count], self._version
            )
        return partial

    def _of_these_weights(self, servers: Collection[int]) -> set[int]:
        """Those of the servers that have this step's weights now, so that what they have sent was drawn by them."""
        # A response names its weights when it ends, and these did not end.
        asked = [(index, self._client.urls[index]) for index in servers]
        answers = self._client.at_once(self._client.ask("GET", url, WEIGHTS) for _, url in asked)
        found = set()
        for (index, url), answer in zip(asked, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                self._check_label(url, answer["weight_version"])
                found.add(index)
            except ServerError as error:
                log.warning(f"unfinished responses of this step are thrown away ({error})")
        return found
