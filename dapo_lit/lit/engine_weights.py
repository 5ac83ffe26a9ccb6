"""The policy's weights in the engine: which it has, when it gets newer ones, and a probe of what it samples from."""

import time

import torch

from dapo_lit.build.components import RunComponents
from dapo_lit.lit.module import DAPOModule
from dapo_lit.log import log
from dapo_lit.policy.sharding import PolicyTensors
from dapo_lit.preflight.engine import probe_engine, trainer_score
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.rank_sampling import CollectionSetup
from dapo_lit.rollout.steps_ahead import Snapshot


class EngineWeights:
    """Keeps the engine of one call of the trainer at the policy's weights."""

    def __init__(self, parts: RunComponents, setup: CollectionSetup, ranks: Ranks) -> None:
        self._parts, self._setup, self._ranks = parts, setup, ranks
        self._given: int | None = None
        """Version of the weights that the engine has, or will have once the steps of the queue are sampled."""
        self._probed = False

    def sync(self, module: DAPOModule) -> float:
        """Gives the engine the policy's weights, unless it has them; returns seconds. No step may be under way."""
        engine = self._setup.engine
        # A skipped update leaves the weights as they are; sending them again would empty the prefix cache for nothing.
        if engine.version == module.policy_version == self._given:
            return 0.0
        started = time.perf_counter()
        engine.sync_weights(PolicyTensors(module.policy), module.policy_version)
        self._given = module.policy_version
        seconds = time.perf_counter() - started
        if self.is_unprobed:
            self._probe(module)
        return seconds

    def snapshot(self, module: DAPOModule) -> Snapshot | None:
        """The policy's weights for an engine that may be sampling now; None if it has them, or will have."""
        if self._given == module.policy_version:
            return None
        self._given = module.policy_version
        return PolicyTensors(module.policy).copied(self._setup.engine.takes_weights), module.policy_version

    def forget(self) -> None:
        """The policy's weights may have changed, or change now, without a new version: the next samples get them."""
        self._given = None

    @property
    def is_unprobed(self) -> bool:
        """True until the engine has been probed, where there is one that draws."""
        return self._parts.config.preflight and self._setup.engine.draws and not self._probed

    def _probe(self, module: DAPOModule) -> None:
        """Once a process, so in every run and every resumed one: compares the engine's samples with the policy."""
        self._probed = True
        config, setup = self._parts.config, self._setup
        found = probe_engine(
            setup.engine.sampler,
            setup.prompts[0].ids,
            setup.sampling,
            trainer_score(module.policy_forward),
            narrow=config.compute_dtype != "float32" or self._parts.engine_dtype != torch.float32,
            device=module.device,
            ranks=self._ranks,
        )
        if self._ranks.rank == 0:
            log.info(f"engine: {found.words}")
