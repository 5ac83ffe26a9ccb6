// DAPO (arXiv 2503.14476): rewards, dynamic sampling and the updates of a step, after docs/examples/dapo_in_one_file.py.

import { minibatches, permutation, rowKey } from "./noise.js";
import { decode, encode, EOS, isCorrect, problemOf, writesSteps } from "./task.js";

/** Eq. 7 and 13, and without the soft punishment what section 3.4 replaces: a truncated answer is a wrong one. */
function shapedReward(correct, length, truncated, s) {
  const reward = correct ? 1 : -1;
  if (!s.soft_overlong_punishment) return truncated ? -1 : reward;
  const start = s.max_response_tokens - s.cache_tokens;
  return length > start ? reward + s.penalty_factor * ((start - length) / s.cache_tokens) : reward;
}

/** Eq. 9 with the deviation over G - 1 and 1e-6 added to it, as in verl. */
export function advantages(rewards) {
  const least = Math.min(...rewards);
  const most = Math.max(...rewards);
  if (most - least <= 4 * 2 ** -23 * Math.max(Math.abs(most), Math.abs(least))) return rewards.map(() => 0);
  const mean = rewards.reduce((a, b) => a + b) / rewards.length;
  const variance = rewards.reduce((sum, r) => sum + (r - mean) ** 2, 0) / (rewards.length - 1);
  return rewards.map((r) => (r - mean) / (Math.sqrt(variance) + 1e-6));
}

export class Trainer {
  /**
   * `prompts`: the training problems in their order; `watched`: prompts that are answered at every step, for the reader;
   * `s`: settings by their names in the package.
   */
  constructor(policy, prompts, watched, s) {
    Object.assign(this, { policy, s, problems: prompts.map(problemOf), position: 0, steps: 0, tokens: 0 });
    // The noise of step 0, at every step: what changes in an answer is then due to the policy.
    this.watched = watched.map(problemOf).map((problem) => {
      const key = rowKey(s.noise_seed, 0, 0, 0, problem.id);
      return { problem, prompt: encode(problem.prompt), key };
    });
    this.orders = new Map();
  }

  #problem(position) {
    const epoch = Math.floor(position / this.problems.length);
    if (!this.orders.has(epoch)) this.orders.set(epoch, permutation(this.problems.length, this.s.seed, epoch));
    return this.problems[this.orders.get(epoch)[position % this.problems.length]];
  }

  /** The groups of one step in the order of their problems, those with `kept` are trained on; and the watched answers. */
  async #collect(step, progress) {
    const { s } = this;
    const groups = [];
    let answers = [];
    const visits = new Map(); // a problem may come several times in a step, with other noise each time
    const most = s.dynamic_sampling ? s.max_rounds * s.num_prompts : s.num_prompts;
    let kept = 0;
    while (kept < s.num_prompts && groups.length < most) {
      // As many as are missing: if all are kept the last of them ends the step, so none is sampled in vain.
      const round = Array.from({ length: Math.min(s.num_prompts - kept, most - groups.length) }, () => {
        const problem = this.#problem(this.position++);
        const visit = (visits.get(problem.id) ?? -1) + 1;
        visits.set(problem.id, visit);
        return { problem, visit, prompt: encode(problem.prompt) };
      });
      const requests = round.flatMap(({ problem, visit, prompt }) =>
        Array.from({ length: s.samples_per_prompt }, (_, i) => ({ prompt, key: rowKey(s.noise_seed, step, visit, i, problem.id) })),
      );
      const own = requests.length;
      if (groups.length === 0) requests.push(...this.watched);
      const sampled = await this.policy.sample(requests, (share) =>
        progress({ doing: "sampling", share: (kept + share * (s.num_prompts - kept)) / s.num_prompts }),
      );
      if (groups.length === 0) {
        answers = this.watched.map(({ problem, prompt }, i) => this.#judged(problem, prompt, [sampled[own + i]]));
      }
      round.forEach(({ problem, prompt }, index) => {
        const rows = sampled.slice(index * s.samples_per_prompt, (index + 1) * s.samples_per_prompt);
        const group = this.#judged(problem, prompt, rows);
        groups.push(group);
        kept += group.kept;
      });
    }
    return [groups, answers];
  }

  #judged(problem, prompt, rows) {
    const { s } = this;
    const responses = rows.map(({ tokens, logProbs }) => {
      const finished = tokens.at(-1) === EOS;
      const text = decode(tokens);
      const correct = isCorrect(text, problem.answer);
      const reward = shapedReward(correct, tokens.length, !finished, s);
      return { tokens, logProbs, text, correct, truncated: !finished, reward };
    });
    const right = responses.filter((r) => r.correct).length;
    const all = advantages(responses.map((r) => r.reward));
    responses.forEach((r, i) => { r.advantage = all[i]; });
    // Eq. 11: 0 < right answers < G. Correctness counts, not the shaped reward.
    return { problem, prompt, responses, right, kept: !s.dynamic_sampling || (right > 0 && right < rows.length) };
  }

  /** The loss's weight of each token of each response (Eq. 12, or Eq. 5 without the token-level loss). */
  #weights(responses) {
    const { s } = this;
    const lengths = responses.map((r) => (s.overlong_filtering && r.truncated ? 0 : r.tokens.length));
    const tokens = lengths.reduce((a, b) => a + b, 0);
    const rows = lengths.filter((n) => n > 0).length;
    return lengths.map((n) => (n === 0 ? 0 : s.token_level_loss ? 1 / tokens : 1 / (n * rows)));
  }

  /** One rollout step: groups for the page, and metrics by their names in the package. */
  async step(progress = () => {}) {
    const { s } = this;
    const step = ++this.steps;
    const [groups, watched] = await this.#collect(step, progress);
    const trained = groups.filter((group) => group.kept);
    const rate = s.lr * Math.min(1, step / s.warmup_steps);
    const bounds = { low: s.clip_low, high: s.clip_higher ? s.clip_high : s.clip_low };
    const losses = [];
    const norms = [];
    const token = { entropy: 0, high: 0, low: 0, count: 0 };
    for (let epoch = 0; epoch < s.epochs && trained.length > 0; epoch++) {
      const parts = minibatches(trained.length, s.minibatch_prompts, s.seed, step, epoch);
      for (const [index, part] of parts.entries()) {
        progress({ doing: "updating", share: (epoch * parts.length + index) / (s.epochs * parts.length) });
        const rows = part.flatMap((g) => trained[g].responses.map((r) => ({ ...r, prompt: trained[g].prompt })));
        const weights = this.#weights(rows);
        if (weights.every((weight) => weight === 0)) continue;
        rows.forEach((row, i) => { row.weight = weights[i]; });
        const { loss, norm, logProbs, entropies } = await this.policy.learn(rows, rate, bounds);
        losses.push(loss);
        norms.push(norm);
        if (epoch > 0) continue; // metrics of single tokens are those of the first epoch
        let at = 0;
        for (const row of rows) {
          for (const old of row.logProbs) {
            const ratio = Math.exp(logProbs[at] - old);
            token.high += row.advantage > 0 && ratio > 1 + bounds.high;
            token.low += row.advantage < 0 && ratio < 1 - bounds.low;
            token.entropy += entropies[at++];
            token.count++;
          }
        }
      }
    }
    return { step, groups, watched: watched.map((group) => group.responses[0]), metrics: this.#metrics(groups, trained, losses, norms, token) };
  }

  #metrics(groups, trained, losses, norms, token) {
    const mean = (values) => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
    const all = groups.flatMap((group) => group.responses);
    const batch = trained.flatMap((group) => group.responses);
    const sampled = all.reduce((sum, r) => sum + r.tokens.length, 0);
    this.tokens += sampled;
    return {
      "rollout/accuracy": mean(all.map((r) => Number(r.correct))),
      "rollout/length_mean": mean(all.map((r) => r.tokens.length)),
      "rollout/truncated_frac": mean(all.map((r) => Number(r.truncated))),
      "task/steps_frac": mean(all.map((r) => Number(writesSteps(r.text)))),
      "batch/accuracy": mean(batch.map((r) => Number(r.correct))),
      "batch/length_mean": mean(batch.map((r) => r.tokens.length)),
      "policy/entropy": token.entropy / Math.max(1, token.count),
      "clip/high_frac": token.high / Math.max(1, token.count),
      "clip/low_frac": token.low / Math.max(1, token.count),
      "loss/policy": mean(losses),
      "optim/grad_norm": mean(norms),
      "tokens/sampled": sampled,
      "tokens/total": this.tokens,
    };
  }
}
