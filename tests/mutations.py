"""Seeds one fault at a time into a copy of the code; the tests named with it must fail. Run by `make test-mutations`.
The test that failed is then run on an unchanged copy, where it must pass.

    python tests/mutations.py                # all faults; minutes on one core
    python tests/mutations.py clip eos       # those with a word in their name
    python tests/mutations.py --draw 30 7    # thirty that a generator draws from the code with seed 7 (drawn_faults.py)

Exit code 1: a fault survived, its text is not in its file exactly once, or the tests cannot run.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from drawn_faults import drawn, reason_to_survive

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "dapo_lit", "dapo_lit_tools", "ablations", "math_answers", "conf", "tests", "docs", "benchmarks", "pyproject.toml",
)  # fmt: skip
READ_ONLY = "experiments"
LIBRARIES = ("torch", "lightning.pytorch", "transformers", "pandas", "hypothesis", "hydra")
"""Imported once, before the tests are forked: that takes longer than most of the tests."""


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    """Below dapo_lit."""
    old: str
    """Must be there exactly once."""
    new: str
    tests: tuple[str, ...]
    """Arguments of pytest."""


def against_one_file(toggled: str | None = None, of: str = "four_sums") -> tuple[str, ...]:
    """The independent implementation of docs/examples, with a switch in its other position."""
    return (f"tests/test_one_file.py::test_{of}_with_every_switch_toggled[{toggled}]",)


def wired(key: str) -> tuple[str, ...]:
    return (f"tests/test_wiring.py::test_another_value_of_a_key_moves_what_it_is_meant_to_change[{key}]",)


def in_the_matrix(cell: str) -> tuple[str, ...]:
    """The reference of tests/reference.py, on one cell of the equivalence matrix."""
    return (f"tests/lit/test_equivalence_matrix.py::test_losses_and_gradients_are_those_of_the_papers[{cell}]",)


SKIPPED = ("tests/step/test_optimizer.py", "-k", "skipped")
ALL_SAMPLES = ("tests/evaluation/test_evaluation.py", "-k", "more_samples_than_k")
AT_TEMPERATURE = ("tests/lit/test_algorithms.py", "-k", "sampling_temperature")
BASES = ("tests/build/test_base_policy.py", "-k", "not makefile")
FITTING = ("tests/test_fitting.py", "-k")
FAULTS = (
    Fault("the folder of base policies ignored", "build/base_policy.py",
        "if policy.base_from is not None:", "if False:", BASES),
    Fault("a base policy that is not as it was shipped", "build/base_policy.py",
        'or weights_of(folder) != shipped["weights"]', "", BASES),
    Fault("a base policy learns what its environment says", "policy/pretrain.py", "if observed:", "if False:",
        ("tests/policy/test_pretrain.py", "-k", "an_environment_says")),
    Fault("what an environment says in the denominator of pre-training", "policy/pretrain.py",
        "len(self.response) - len(self.observed)", "len(self.response)",
        ("tests/policy/test_pretrain.py", "-k", "an_environment_says")),
    Fault("a turn of a demonstration without its end", "policy/base.py", "            response += end\n", "",
        ("tests/policy/test_base.py", "-k", "turns_become_one_row")),
    Fault("products are no longer done first in steps", "tasks/sums_with_calculator.py",
        'at = parts.index("*") if "*" in parts else 1', "at = 1",
        ("tests/tasks/test_sums_with_calculator.py", "-k", "by_hand")),
    Fault("wrong is said to a right answer", "tasks/second_try.py",
        "while last.ends and not _is_right(last.response, terms) and", "while last.ends and",
        ("tests/tasks/test_second_try.py", "-k", "wrong_is_said")),
    Fault("a resumed run with another reference", "runs/resume.py",
        "and before != weights:", "and before == weights:", BASES),
    Fault("runs from other weights repeat each other", "../ablations/trainer.py",
        "if len(weights) > 1:", "if len(weights) > 2:", ("tests/config/test_identity.py", "-k", "other_weights")),
    Fault("a cell from other weights than its seed's", "cli/study_plan.py",
        "if base_recipe(identity(tree)) == recipe:", "if False:",
        ("tests/test_study_launch.py", "-k", "other_weights")),
    Fault("the time left at the rate of what is left", "../ablations/screen.py",
        "(total - done) / done", "(total - done) / total", ("tests/test_screen.py",)),
    Fault("weight decay ignored", "lit/module.py", "weight_decay=settings.weight_decay,", "weight_decay=0.0,",
        wired("algorithm.optimizer.weight_decay")),
    Fault("betas ignored", "lit/module.py", "betas=settings.betas,", "", wired("algorithm.optimizer.betas")),
    Fault("evaluation at the training temperature", "lit/datamodule.py",
        "limit, settings.temperature,", "limit, self.config.rollout.temperature,",
        wired("evaluation.temperature")),
    Fault("evaluation ignores top_p", "lit/datamodule.py", ", settings.top_p, seed=", ", seed=",
        wired("evaluation.top_p")),
    Fault("evaluation.max_response_tokens ignored", "lit/datamodule.py",
        "settings.max_response_tokens or task", "task", wired("evaluation.max_response_tokens")),
    Fault("final_samples ignored", "lit/datamodule.py", "settings.final_samples if final else None", "None",
        wired("evaluation.final_samples")),
    Fault("every evaluation draws other noise", "lit/datamodule.py",
        "settings.top_p, seed=self.config.seed)", "settings.top_p, seed=self.config.seed + self.next_step)",
        ("tests/test_wiring.py", "-k", "same_weights")),
    Fault("the engine samples training rollouts at temperature 1", "lit/datamodule.py",
        "                temperature=config.rollout.temperature,\n", "", wired("rollout.temperature")),
    Fault("avg@k over the first k samples only", "evaluation/sampled.py",
        "fmean(average(b) for b in votes)", "fmean(average(b) for b in self.first_votes if b.num_samples)",
        ALL_SAMPLES),
    Fault("avg@k over all verdicts, not over problems", "evaluation/sampled.py",
        "fmean(average(b) for b in votes)", "sum(b.right for b in votes) / sum(b.num_samples for b in votes)",
        ("tests/evaluation/test_evaluation.py", "-k", "missing_verdicts")),
    Fault("cons@k over all samples", "evaluation/sampled.py", "b in self.first_votes", "b in votes", ALL_SAMPLES),
    Fault("gradients of a skipped update are kept", "step/optimizer.py",
        "            self.optimizer.zero_grad()\n            self.bad_updates += 1",
        "            self.bad_updates += 1", SKIPPED),
    Fault("bad updates in a row are never reset", "step/optimizer.py", "self.bad_updates_in_a_row = 0\n", "pass\n",
        SKIPPED),
    Fault("reference log-probs at temperature 1", "step/scoring.py",
        "micro.targets,\n            temperature=self.temperature,",
        "micro.targets,\n            temperature=self.temperature if model is None else 1.0,",
        AT_TEMPERATURE),
    Fault("correction.band ignored", "switches/parts.py",
        "return {} if band is None else", "return {} if True else",
        wired("algorithm.correction.band")),
    Fault("the rewards that an estimator needs are not looked at", "switches/parts.py",
        "if not low <= wrong_value <= high:", "if False:",
        ("tests/test_own_parts.py", "-k", "refused_by_its_declaration")),
    Fault("the group that an estimator needs is not looked at", "switches/parts.py",
        "if algorithm.samples_per_prompt < part.needs.group:", "if False:",
        ("tests/test_own_parts.py", "-k", "needs_of_the_algorithm")),
    Fault("options of a part are dropped", "switches/parts.py", "    filled |= options\n", "",
        ("tests/test_own_parts.py", "-k", "fill_the_parameters")),
    Fault("a setting that a part names counts as unread", "switches/parts.py",
        "read = {key for name, key in slot.settings.items() if name in reads}", "read = set()",
        ("tests/test_own_parts.py", "-k", "no_unread_one")),
    Fault("an edited estimator is the same experiment", "build/inputs.py",
        "for key, value in flatten(config.model_dump()).items() for path in named_code(key, value)",
        "for path in named_code('algorithm.loss', config.algorithm.loss)",
        ("tests/test_own_parts.py", "-k", "identity_of_a_run")),
    Fault("a technique of the user's changes no advantages", "switches/algorithm.py",
        "advantages = change(advantages, batch.completion_of_token)", "change(advantages, batch.completion_of_token)",
        ("tests/test_own_parts.py", "-k", "changes_advantages")),
    Fault("the geometric mean is the product", "objective/correction.py",
        'sums / counts if level == "geometric" else sums', "sums",
        ("tests/objective/test_correction.py", "-k", "each_correction")),
    Fault("the policy is left in training mode", "lit/module.py", "self.policy.eval()", "self.policy.train()",
        ("tests/lit/test_module.py", "-k", "dropout")),
    Fault("the entropy bonus has no gradient", "step/loss.py",
        "entropy_gradient=objective.entropy_bonus > 0,", "entropy_gradient=False,",
        wired("algorithm.entropy.bonus")),
    Fault("clip-cov draws the same permutation in every mini-batch", "step/updates.py",
        "loss_seed(self.config.seed, self.step, epoch, minibatch)", "loss_seed(self.config.seed, 0, 0, [])",
        ("tests/lit/test_module.py", "-k", "two_passes and clip_cov")),
    Fault("the entropy threshold counts masked tokens", "objective/covariance.py",
        "candidates = entropy[mask].detach()", "candidates = entropy.detach()",
        ("tests/objective/test_covariance.py", "-k", "highest_entropy")),
    Fault("the hard punishment is -1 whatever reward.wrong_value", "switches/algorithm.py",
        "outcome = config.reward.wrong_value if hard", "outcome = -1 if hard",
        ("tests/switches/test_switches.py", "-k", "punished")),
    Fault("filter_on ignored", "switches/algorithm.py", "filter_on=sampling.filter_on,", "",
        ("tests/switches/test_switches.py", "-k", "rules_of_a_step")),
    Fault("request_groups ignored", "switches/algorithm.py",
        "request_groups=sampling.request_groups if algorithm.techniques.dynamic_sampling else None,", "",
        ("tests/switches/test_switches.py", "-k", "rules_of_a_step")),
    Fault("a group's age is that of its newest tokens", "rollout/records.py",
        "min((versions[0][0] for versions", "max((versions[-1][0] for versions",
        ("tests/rollout/test_carry_over.py", "-k", "oldest_token")),
    Fault("earlier returned problems are lost", "rollout/collect.py",
        "not g.finished]\n        self.returned = again + self.returned",
        "not g.finished]\n        self.returned = again", ("tests/rollout/test_carry_over.py", "-k", "returned")),
    Fault("a missing verdict counts as wrong", "rollout/step_collection.py",
        "[c for c in ended if not c.score.missing]", "ended",
        ("tests/rollout/test_missing_verdicts.py", "-k", "compared_without")),
    Fault("a relation without a left side is its right side", "../math_answers/splitting.py",
        " and signs[0] in _EQUALITIES", "", ("tests/answers/test_different_answers.py", "-k", "bare_value")),
    Fault("what a worker has started survives it", "rewards/supervisor_process.py",
        "        _kill_children(self.workers)\n        worker.writer", "        worker.writer",
        ("tests/rewards/test_supervisor.py", "-k", "dies_with_it")),
    Fault("whitening over all tokens, not those with loss", "switches/algorithm.py",
        "whiten(advantages, tokens.loss_mask)", "whiten(advantages, torch.ones_like(tokens.loss_mask))",
        ("tests/step/test_loss_mask.py", "-k", "whitening")),
    Fault("no temperature in the loss", "step/scoring.py",
        "first_update=first_update,\n            temperature=self.temperature,\n",
        "first_update=first_update,\n            temperature=1.0,\n",
        ("tests/lit/test_module.py", "-k", "scores_its_own_mini_batch")),
    Fault("the length penalty does not count EOS", "switches/algorithm.py",
        "penalties[length]", "penalties[length - (not completion.truncated)]",
        ("tests/switches/test_switches.py", "-k", "length_penalty")),
    Fault("every epoch has the same mini-batches", "step/updates.py",
        "seed = minibatch_seed(self.config.seed, self.step, epoch)\n",
        "seed = minibatch_seed(self.config.seed, self.step, 0)\n",
        against_one_file(of="joint")),
    Fault("diagnostics over all epochs", "step/updates.py",
        "if counts and epoch == 0:\n            self._measure(measured)",
        "if counts:\n            self._measure(measured)", ("tests/lit/test_measured.py", "-k", "diagnostics")),
    Fault("acceptance by shaped rewards", "rollout/dynamic_sampling.py",
        'if rules.filter_on == "shaped_reward":', "if True:",
        ("tests/rollout/test_collect.py", "-k", "correctness")),
    Fault("the gradient is not clipped", "step/optimizer.py",
        "torch.nn.utils.clip_grads_with_norm_(self.policy_parameters, grad_clip, norm)", "pass",
        ("tests/step/test_optimizer.py", "-k", "clipped")),
    Fault("the switch of clip-higher is ignored", "switches/algorithm.py",
        "clip_high = clip.high if algorithm.techniques.clip_higher else clip.low", "clip_high = clip.high",
        ("tests/switches/test_switches.py", "-k", "clip_higher")),
    Fault("max for min in the clip", "objective/tokens.py",
        "(advantages < 0) & (ratio < 1 - bounds.low),\n        (advantages > 0) & (ratio > 1 + bounds.high),",
        "(advantages > 0) & (ratio < 1 - bounds.low),\n        (advantages < 0) & (ratio > 1 + bounds.high),",
        ("tests/objective/test_losses.py",)),
    Fault("EOS carries no loss", "switches/algorithm.py",
        'return kept.repeat_interleave(torch.tensor([c.num_tokens for c in completions], device="cpu"))',
        "lengths = torch.tensor([c.num_tokens for c in completions])\n"
        "        found = kept.repeat_interleave(lengths)\n"
        "        found[lengths.cumsum(0) - 1] &= truncated\n"
        "        return found",
        against_one_file()),
    Fault("the token-level denominator is the micro-batch's", "objective/losses.py",
        "denominator = tokens.sum().expand_as(tokens)",
        "denominator = _sums(tokens, micro_batch) * num_completions / _sums(has_loss.double(), micro_batch)",
        ("tests/lit/test_module.py", "-k", "any_micro_batch_size and switches0")),
    Fault("a token without advantage is past the dual bound", "objective/tokens.py",
        "(advantages < 0) & (ratio > (torch.inf", "(advantages <= 0) & (ratio > (torch.inf",
        ("tests/objective/test_losses.py", "-k", "without_advantage")),
    Fault("paired arms of foreign logs are tested as unpaired", "../ablations/read/foreign.py",
        "values[control].keys() or min(", "values[control].keys() and min(",
        ("tests/ablations/test_foreign.py", "-k", "seed_in_common")),
    Fault("a log has a seed that packed cells cannot hold", "../ablations/read/logs.py",
        '"seed", place, LARGEST_WHOLE)', '"seed", place, 2**63 - 1)',
        ("tests/ablations/test_foreign.py", "-k", "largest_seed")),
    Fault("groups are under way although none is missing", "rollout/dynamic_sampling.py",
        "    if missing <= 0:\n        return 0\n    spread", "    if missing < 0:\n        return 0\n    spread",
        ("tests/rollout/test_collect.py", "-k", "follows_the_keep_rate")),
    Fault("groups are accepted in the order in which they end", "rollout/dynamic_sampling.py",
        "return self.cut is not None and self.front > self.cut", "return self.cut is not None",
        ("tests/rollout/test_streaming.py", "-k", "neither_timing or favoured")),
    Fault("overlong filtering takes truncated answers out of their group's baseline", "switches/algorithm.py",
        "batch.completion_of_token, rewards)\n    sizes",
        "batch.completion_of_token, rewards)\n"
        "    kept, groups = (batch.loss_tokens > 0).to(totals.dtype), batch.group_index\n"
        "    sums, counts = (torch.zeros_like(totals).index_add_(0, groups, x) for x in (totals * kept, kept))\n"
        "    totals = torch.where(kept.bool(), totals, (sums / counts.clamp(min=1))[groups])\n"
        "    sizes",
        against_one_file("overlong_filtering")),
    Fault("the sampling noise ignores the attempt", "seeds.py",
        'f"{seed}|{key.step}|{key.attempt}|{key.sample_index}|{key.problem_id}"',
        'f"{seed}|{key.step}|{key.sample_index}|{key.problem_id}"', ("tests/test_seeds.py",)),
    Fault("the tokens of an environment count in a denominator", "step/batch.py",
        "return torch.zeros_like(self.response_lengths).index_add_(0, self.completion_of_token, self.loss_mask.long())",
        'return torch.tensor(self._lengths[1], device="cpu")', in_the_matrix("single:turns and prefixes:all five")),
    Fault("the noise of a token is that of its place in the episode", "engines/torch_engine/engine.py",
        "noise = uniforms(self._noise_keys, np.maximum(self._slot - self._firsts, 0))",
        "seen = np.array([len(r.partial.observations) for r in self._row_requests])\n"
        "        noise = uniforms(self._noise_keys, np.maximum(self._slot - self._firsts + seen, 0))",
        ("tests/rollout/test_episodes.py", "-k", "drawn_with_the_noise")),
    Fault("an episode that waits for an answer is interrupted without its observations", "rollout/episodes.py",
        "turn.versions,\n                turn.observations,\n", "turn.versions,\n",
        ("tests/rollout/test_episodes.py", "-k", "as_if_it_never_was")),
    Fault("of ranks that share an engine each asks the environment", "rollout/episodes.py",
        "        if not engine.ranks.leads_engine:\n            return\n", "",
        ("tests/rollout/test_episodes.py", "-k", "the_first_asks")),
    Fault("pass@k is 1 - (1 - p)^k", "evaluation/voting.py",
        "return 1 - comb(num_samples - num_correct, k) / comb(num_samples, k)",
        "return 1 - (1 - num_correct / num_samples) ** k", ("tests/evaluation/test_evaluation.py", "-k", "pass_at_k")),
    Fault("a resumed run forgets the keep rate", "rollout/collect.py",
        'self.keep_rate = KeepRate(*state["keep_rate"])', "self.keep_rate = KeepRate()",
        ("tests/rollout/test_collect.py", "-k", "continues_from_its_state")),
    Fault("adapters stay on in the reference", "policy/reference.py",
        "            with without_adapters(self.model):\n                yield self.model\n",
        "            yield self.model\n", in_the_matrix("fsdp 2:lora:grpo")),
    Fault("several ranks and epochs: the first update fills in pi_old", "step/scoring.py",
        "needed_elsewhere = algorithm.epochs > 1 and num_ranks > 1", "needed_elsewhere = False",
        in_the_matrix("fsdp 2:lora:grpo")),
    Fault("KL in the reward from the engine's log-probs", "switches/algorithm.py",
        "kl_penalty(tokens.old_logprobs, tokens.ref_logprobs, kl.estimator)",
        "kl_penalty(tokens.rollout_logprobs, tokens.ref_logprobs, kl.estimator)",
        in_the_matrix("single:plain:reinforce++")),
    Fault("a fork's sign is not turned for a switch that the run has off", "cli/fork.py",
        "(own, arm) if technique in own.on else (arm, own)", "(own, arm) if technique else (arm, own)",
        ("tests/cli/test_fork_plan.py", "-k", "whichever")),
    Fault("an arm of a fork may change the group size", "cli/fork.py", '"algorithm.samples_per_prompt", ', "",
        ("tests/cli/test_fork_plan.py", "-k", "no_arm")),
    Fault("several states of a run are continued as one cell", "cli/fork.py",
        '{"-m", "--multirun"} & set(arguments)', '{"-m", "--multirun"} | set(arguments)',
        ("tests/cli/test_fork_plan.py", "-k", "several_states")),
    Fault("a fork inherits budget.tokens_generated", "cli/fork.py",
        '    found["budget"]["tokens_generated"] = None\n', "",
        ("tests/cli/test_fork_plan.py", "-k", "differs_from_its_run")),
    Fault("forks of two states name one base", "runs/resume.py", '{"base_weights": digest,',
        '{"base_weights": str(run),', ("tests/cli/test_fork_plan.py", "-k", "base_of_its_own")),
    Fault("max_staleness ignored", "switches/algorithm.py", "        max_staleness=sampling.max_staleness,\n", "",
        ("tests/switches/test_switches.py", "-k", "rules_of_a_step")),
    Fault("a step ahead is planned for the present version", "lit/datamodule.py",
        "ahead.start(step + steps, version + steps, weights)", "ahead.start(step + steps, version, weights)",
        ("tests/lit/test_steps_ahead.py", "-k", "weights_that_old")),
    Fault("staleness is not measured anew after an empty step", "lit/datamodule.py",
        "            collected.metrics |= staleness(collected.accepted, version)\n", "",
        ("tests/lit/test_steps_ahead.py", "-k", "fresher_than_planned")),
    Fault("replayed groups ignore the steps ahead", "rollout/collect.py", "step - g.step + ahead <", "step - g.step <",
        ("tests/rollout/test_collect.py", "-k", "no_replayed_group")),
    Fault("carried groups use up max_rounds", "rollout/dynamic_sampling.py", "self._submitted += not carried",
        "self._submitted += 1", ("tests/rollout/test_carry_over.py", "-k", "do_not_use_up")),
    Fault("top_up takes groups with fewer than two verdicts", "rollout/collect.py",
        "if g.comparable and not g.passes(rules)]", "if not g.passes(rules)]",
        ("tests/rollout/test_missing_verdicts.py", "-k", "top_up")),
    Fault("a fork or a replay keeps the run's shaped rewards", "lit/datamodule.py",
        "self.collector.setup.shape([*group.completions, *group.missing])", "pass",
        ("tests/lit/test_state.py",)),
    Fault("a resumed run forgets its empty steps", "lit/callbacks.py",
        'self.empty_steps_in_a_row, self.empty_steps = state["empty_steps_in_a_row"], state["empty_steps"]',
        "self.empty_steps_in_a_row, self.empty_steps = 0, 0", ("tests/lit/test_state.py",)),
    Fault("a resumed run forgets its bad updates in a row", "lit/module.py",
        'self.bad_updates_in_a_row = state["bad_updates_in_a_row"]', "pass", ("tests/lit/test_state.py",)),
    Fault("gradient noise from the squared mean norm", "step/optimizer.py", "sum(n**2 for n in self.norms)",
        "sum(self.norms) ** 2 / max(1, len(self.norms))", ("tests/step/test_optimizer.py", "-k", "noise")),
    Fault("an evaluation's entropy by response", "evaluation/sampled.py",
        "-sum(s.logprob for s in self.samples) / sum(lengths)",
        "-fmean(s.logprob / s.num_tokens for s in self.samples)",
        ("tests/evaluation/test_evaluation.py", "-k", "means_over_problems")),
    Fault("every rank samples all held-out problems", "evaluation/sampled.py",
        "[prompts[position] for position in ranks.own(prompts)]", "list(prompts)",
        ("tests/evaluation/test_evaluation.py", "-k", "ranks_share")),
    Fault("equivalence at the family's whole alpha", "../ablations/compare/effects.py",
        "2 * family.alpha / len(family.contrasts)", "2 * family.alpha",
        ("tests/ablations/test_study_report.py", "-k", "equivalence")),
    Fault("the last evaluation is averaged with small ones", "../ablations/read/outcomes.py",
        "        return float(values[-1]) if steps[-1]", "        0 if steps[-1]",
        ("tests/ablations/test_study_contrasts.py", "-k", "last_evaluation")),
    Fault("auto on a card: the engine's share is given to training", "forecast/fitting.py",
        "room - _engine(config, of) - (given if awake else 0.0)", "room", (*FITTING, "leaves_and_more")),
    Fault("auto on a card: layers are always recomputed", "forecast/fitting.py",
        '["none", "full"] if recomputes == "auto"', '["full"] if recomputes == "auto"', (*FITTING, "asks_for_it")),
    Fault("auto on a card: the cache ignores training", "forecast/fitting.py",
        "trainer = _training(memory) if awake else memory.state", "trainer = memory.state",
        (*FITTING, "leaves_and_more")),
    Fault("plan on a card: advice that is set already", "../dapo_lit_tools/planning/plan.py",
        'capacity and config.trainer.activation_checkpointing == "none":', "capacity:",
        (*FITTING, "names_nothing")),
    Fault("plan on a card: attention of a CPU is simulated", "forecast/memory.py", "with as_on_gpu(on_gpu), tracker:",
        "with tracker:", ("tests/test_plan.py", "-k", "that_of_the_simulation")),
    Fault("plan on a card: recomputation moves no bytes", "../dapo_lit_tools/planning/duration.py",
        "(3 + recomputes) * layers.moved", "3 * layers.moved", ("tests/test_plan.py", "-k", "not_held_out")),
    Fault("plan on a card: frozen matrices have gradients", "../dapo_lit_tools/planning/duration.py",
        "if work.adapters else 0.0  # their", "if False else 0.0  # their",
        ("tests/test_plan.py", "-k", "frozen_matrices")),
    Fault("before the first update a ratio is rounding", "step/updates.py",
        "if not self.has_updated and", "if False and",
        ("tests/lit/test_module.py", "-k", "sign_of_rounding")),
    Fault("TF32 whatever the key says", "train.py", '"high" if config.trainer.tf32 else "highest"', '"high"',
        (*FITTING, "as_the_key_says")),
)  # fmt: skip


def copy_tree(folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    (folder / READ_ONLY).symlink_to(ROOT / READ_ONLY)  # too large to copy for each fault


def seed(fault: Fault, folder: Path) -> None:
    """Raises ValueError where the fault's text is not in its file exactly once."""
    file = folder / "dapo_lit" / fault.file
    text = file.read_text()
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"the text to replace is {count} times in dapo_lit/{fault.file}")
    file.write_text(text.replace(fault.old, fault.new))


def run_tests(tests: tuple[str, ...], folder: Path) -> tuple[int, str | None, str]:
    """pytest's exit code in the copy, the test or file that failed, and the last line of the output."""
    output = folder / "output.txt"
    if (child := os.fork()) == 0:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os.chdir(folder)
            os.environ |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
            sys.path[0] = str(folder)  # instead of the folder of this script
            code = pytest.main(["-n", "0", "-x", "-q", "-rfE", "-W", "ignore", *tests])
            sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = output.read_text()
    failed = re.search(r"^(?:FAILED|ERROR) (\S+\.py(?:::.+?)?)(?: - .*)?$", text, flags=re.MULTILINE)
    return code, failed and failed[1], (text.strip().splitlines() or [""])[-1]


def verdict(fault: Fault, unchanged: Path) -> tuple[str, str]:
    """(found, survived or error, what says so). A test that fails without the fault too finds nothing."""
    with tempfile.TemporaryDirectory(prefix="mutation_") as name:
        folder = Path(name)
        copy_tree(folder)
        try:
            seed(fault, folder)
        except ValueError as error:
            return "error", str(error)
        code, failed, said = run_tests(fault.tests, folder)
    if failed is None:
        return ("survived" if code == 0 else "error"), said
    return ("found", failed.rpartition("::")[2]) if passes(failed, unchanged) else ("error", f"fails anyway: {failed}")


@cache
def passes(test: str, unchanged: Path) -> bool:
    """Tried twice: where other processes share the cores, a test of timing may need it."""
    return any(run_tests((test,), unchanged)[0] == 0 for _ in range(2))


def main(faults: Sequence[Fault] = FAULTS) -> None:
    words = sys.argv[1:]
    if words[:1] == ["--draw"]:
        count, number = map(int, words[1:3])
        words, faults = words[3:], [Fault(*parts) for parts in drawn(ROOT / "dapo_lit", count, number)]
    chosen = [fault for fault in faults if not words or any(word.lower() in fault.name.lower() for word in words)]
    for library in LIBRARIES:
        import_module(library)
    found = 0
    with tempfile.TemporaryDirectory(prefix="unchanged_") as unchanged:
        copy_tree(Path(unchanged))
        for fault in chosen:
            result, said = verdict(fault, Path(unchanged))
            if result == "survived" and (reason := reason_to_survive(fault.name)):
                result, said = "listed", reason
            found += result in ("found", "listed")
            print(f"{result:<9} {fault.name:<74} {said}", flush=True)
    print(f"{found} of {len(chosen)} faults found, or listed with the reason why no test should see them")
    sys.exit(found < len(chosen))


if __name__ == "__main__":
    main()
