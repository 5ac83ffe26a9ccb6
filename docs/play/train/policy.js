// The policy: a Qwen2-shaped transformer on jax-js, its sampler, and the update of its weights.
//
// jax-js rather than TensorFlow.js, in processor seconds for forward and backward of 1,024 tokens in node 20: 0.1 against
// 0.3 for this policy, 0.3 against 1.8 for one of 0.5M parameters (jax-js 0.1.25, TensorFlow.js 4.22 with WebAssembly).
//
// Arrays of jax-js are owned: an argument is consumed, and `.ref` keeps it for a later use. Functions here follow that.

import { defaultDevice, init, jit, lax, nn, numpy as np, tree, valueAndGrad } from "@jax-js/jax";
import { uniform } from "./noise.js";
import { EOS, PAD } from "./task.js";

const SLOTS = 64; // responses that are sampled at the same time
const NEVER = -1e30; // added to the attention scores of places that a token must not see

/** Sets up a backend of jax-js: "wasm" or "webgpu". */
export async function prepare(backend) {
  const ready = await init(backend);
  if (!ready.includes(backend)) throw new Error(`${backend} can not be used here`);
}

/** float32 arrays by name, from the bytes of a safetensors file. */
export function readWeights(bytes) {
  const size = Number(new DataView(bytes).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, size)));
  delete header.__metadata__;
  const weights = {};
  for (const [name, { shape, data_offsets: [start, end] }] of Object.entries(header)) {
    weights[name] = np.array(new Float32Array(bytes.slice(8 + size + start, 8 + size + end))).reshape(shape);
  }
  return weights;
}

const linear = (x, weight) => np.matmul(x, np.transpose(weight));

function rmsNorm(x, weight, epsilon) {
  const scale = np.reciprocal(np.sqrt(np.mean(np.square(x.ref), -1, { keepdims: true }).add(epsilon)));
  return x.mul(scale).mul(weight);
}

/** Rotates pairs of `y` [..., size] by the angles of their positions. */
function rotate(y, cos, sin) {
  const [first, second] = np.split(y.ref, 2, -1);
  return y.mul(cos).add(np.concatenate([second.mul(-1), first], -1).mul(sin));
}

/** Cosines and sines [positions, size] of the rotary embedding, rounded to float32 where torch rounds. */
export function rotary(positions, size, theta) {
  const cos = new Float32Array(positions.length * size);
  const sin = new Float32Array(positions.length * size);
  positions.forEach((position, row) => {
    for (let i = 0; i < size; i++) {
      const frequency = Math.fround(theta ** -((2 * (i % (size / 2))) / size));
      const angle = Math.fround(position * frequency);
      cos[row * size + i] = Math.cos(angle);
      sin[row * size + i] = Math.sin(angle);
    }
  });
  return [cos, sin];
}

/**
 * Logits [N, V] after each of `ids` [N]. `attend(layer, q, k, v)` gets and returns [N, hidden]: the order of the rows,
 * and which of them see each other, is the caller's.
 */
function logitsOf(w, config, ids, attend) {
  const { rms_norm_eps: epsilon, num_hidden_layers: layers } = config;
  const embedding = w["model.embed_tokens.weight"];
  // As in transformers, the lookup of a pad token, which a policy may sample, has no gradient.
  const isPad = np.equal(np.arange(config.vocab_size), PAD).reshape([-1, 1]);
  const table = np.where(isPad, lax.stopGradient(embedding.ref), embedding.ref);
  let x = np.matmul(nn.oneHot(ids, config.vocab_size), table);
  for (let layer = 0; layer < layers; layer++) {
    const of = (name) => w[`model.layers.${layer}.${name}`];
    const h = rmsNorm(x.ref, of("input_layernorm.weight"), epsilon);
    const project = (part) => linear(h.ref, of(`self_attn.${part}_proj.weight`)).add(of(`self_attn.${part}_proj.bias`));
    const attended = attend(layer, project("q"), project("k"), project("v"));
    h.dispose();
    x = x.add(linear(attended, of("self_attn.o_proj.weight")));
    const m = rmsNorm(x.ref, of("post_attention_layernorm.weight"), epsilon);
    const gate = nn.silu(linear(m.ref, of("mlp.gate_proj.weight")));
    x = x.add(linear(gate.mul(linear(m, of("mlp.up_proj.weight"))), of("mlp.down_proj.weight")));
  }
  return linear(rmsNorm(x, w["model.norm.weight"], epsilon), embedding); // the head is tied
}

/** softmax(q k' / sqrt(size) + bias) v for q [B, H, T, size] and k, v [B, H, S, size]. */
function attention(q, k, v, bias) {
  const scores = np.matmul(q, np.transpose(k, [0, 1, 3, 2])).mul(1 / Math.sqrt(v.shape[3]));
  return np.matmul(nn.softmax(scores.add(bias), -1), v);
}

/**
 * Eq. 8 of a mini-batch with B rows of T tokens: `[loss, {logProb, entropy}]`, the last two [B * T].
 *
 * Per token, [B * T]: ids and next, the token that follows; old, its log-prob under pi_old; advantage; weight, which has
 * all normalisation and is 0 where no loss is due.
 */
function lossOf(w, config, batch, low, high) {
  const { num_attention_heads: heads, hidden_size: hidden } = config;
  const { ids, next, old, advantage, weight, cos, sin, bias } = batch;
  const [length, size] = cos.shape;
  const split = (y) => np.transpose(y.reshape([-1, length, heads, size]), [0, 2, 1, 3]);
  const logits = logitsOf(w, config, ids, (_, q, k, v) => {
    const turned = (y) => rotate(split(y), cos.ref, sin.ref);
    const out = attention(turned(q), turned(k), split(v), bias.ref);
    return np.transpose(out, [0, 2, 1, 3]).reshape([-1, hidden]);
  });
  for (const constant of [cos, sin, bias]) constant.dispose();
  const all = nn.logSoftmax(logits, -1);
  const logProb = all.ref.mul(nn.oneHot(next, config.vocab_size)).sum(-1);
  const entropy = np.exp(all.ref).mul(all).sum(-1).mul(-1);
  const ratio = np.exp(np.clip(logProb.ref.sub(old), -20, 20)); // r of Eq. 9; the bound keeps it finite
  const clipped = np.clip(ratio.ref, low.mul(-1).add(1), high.add(1)).mul(advantage.ref); // Eq. 10: decoupled bounds
  const objective = ratio.mul(advantage);
  // The minimum of Eq. 8. Where it is the clipped term it is constant: no gradient.
  const bound = np.less(clipped.ref, objective.ref);
  const token = np.where(bound, lax.stopGradient(clipped), objective);
  return [token.mul(weight).sum().mul(-1), { logProb, entropy }];
}

/** AdamW without weight decay, after the gradient is clipped to a norm of `most`: `[w, m, v, norm]`. */
function adamw(w, m, v, gradient, rate, correction1, correction2, { beta1, beta2, epsilon, most }) {
  const squares = tree.leaves(tree.ref(gradient)).map((g) => np.square(g).sum());
  const norm = np.sqrt(squares.reduce((a, b) => a.add(b)));
  const scale = np.minimum(np.reciprocal(norm.ref.add(1e-6)).mul(most), 1);
  const next = { w: {}, m: {}, v: {} };
  for (const name of Object.keys(w)) {
    const g = gradient[name].mul(scale.ref);
    next.m[name] = m[name].mul(beta1).add(g.ref.mul(1 - beta1));
    next.v[name] = v[name].mul(beta2).add(np.square(g).mul(1 - beta2));
    const denominator = np.sqrt(next.v[name].ref).mul(correction2.ref).add(epsilon);
    next.w[name] = w[name].sub(next.m[name].ref.mul(rate.ref).mul(correction1.ref).mul(np.reciprocal(denominator)));
  }
  for (const used of [scale, rate, correction1, correction2]) used.dispose();
  return [next.w, next.m, next.v, norm];
}

export class Policy {
  /** Computes with `backend`, which is prepared. `longest`: the most tokens of a prompt. */
  constructor(backend, config, bytes, { longest, optimizer }) {
    Object.assign(this, { backend, config, bytes, longest, optimizer });
    this.size = config.hidden_size / config.num_attention_heads;
    this.step = jit((w, ids, cos, sin, at, bias, keys, values) => this.#next(w, ids, cos, sin, at, bias, keys, values));
    this.gradient = jit(valueAndGrad((w, batch, low, high) => lossOf(w, config, batch, low, high), { hasAux: true }));
    this.update = jit((w, m, v, g, rate, c1, c2) => adamw(w, m, v, g, rate, c1, c2, optimizer));
  }

  /** Back to the first weights, for responses of at most `limit` tokens. Programs that are compiled are kept. */
  reset(limit) {
    defaultDevice(this.backend); // of the arrays that are made from here on: a thread may have a policy on each
    if (this.w) tree.dispose([this.w, this.m, this.v]);
    Object.assign(this, { limit, places: this.longest + limit, updates: 0, w: readWeights(this.bytes) });
    const zeros = () => Object.fromEntries(Object.entries(this.w).map(([name, x]) => [name, np.zeros(x.shape)]));
    Object.assign(this, { m: zeros(), v: zeros() });
  }

  /** One token of each slot: logits [SLOTS, V], and the caches with its key and value at its place. */
  #next(w, ids, cos, sin, at, bias, keys, values) {
    const { num_attention_heads: heads, hidden_size: hidden } = this.config;
    const split = (y) => y.reshape([SLOTS, heads, 1, this.size]);
    const put = (cache, y) => np.where(at.ref, y, cache);
    const nextKeys = [];
    const nextValues = [];
    const logits = logitsOf(w, this.config, ids, (layer, q, k, v) => {
      nextKeys.push(put(keys[layer], rotate(split(k), cos.ref, sin.ref)));
      nextValues.push(put(values[layer], split(v)));
      const turned = rotate(split(q), cos.ref, sin.ref);
      return attention(turned, nextKeys[layer].ref, nextValues[layer].ref, bias.ref).reshape([SLOTS, hidden]);
    });
    for (const used of [cos, sin, at, bias]) used.dispose();
    return [logits, nextKeys, nextValues];
  }

  /**
   * The response to each of `requests` ({prompt: tokens, key: of its noise}): `{tokens, logProbs}`.
   *
   * A slot reads its prompt and then what it samples, one token a call; when its response ends, the next request takes
   * the slot. What stands next to a response has no effect on it: its noise is its own.
   */
  async sample(requests, progress = () => {}) {
    const { config, size, places, limit } = this;
    defaultDevice(this.backend);
    const [cosines, sines] = rotary([...Array(places).keys()], size, config.rope_parameters.rope_theta);
    const responses = requests.map(() => ({ tokens: [], logProbs: [] }));
    const slots = Array(SLOTS).fill(null);
    const empty = () => np.zeros([SLOTS, config.num_attention_heads, places, size]);
    let keys = Array.from({ length: config.num_hidden_layers }, empty);
    let values = Array.from({ length: config.num_hidden_layers }, empty);
    let waiting = 0;
    let ended = 0;
    while (ended < requests.length) {
      const ids = new Int32Array(SLOTS);
      const cos = new Float32Array(SLOTS * size);
      const sin = new Float32Array(SLOTS * size);
      const at = new Uint8Array(SLOTS * places);
      const bias = new Float32Array(SLOTS * places).fill(NEVER);
      for (let slot = 0; slot < SLOTS; slot++) {
        if (slots[slot] === null && waiting < requests.length) slots[slot] = { request: waiting++, place: 0 };
        const place = slots[slot]?.place ?? 0;
        if (slots[slot] !== null) {
          const { prompt } = requests[slots[slot].request];
          const { tokens } = responses[slots[slot].request];
          ids[slot] = place < prompt.length ? prompt[place] : tokens[place - prompt.length];
        }
        cos.set(cosines.subarray(place * size, (place + 1) * size), slot * size);
        sin.set(sines.subarray(place * size, (place + 1) * size), slot * size);
        at[slot * places + place] = 1;
        bias.fill(0, slot * places, slot * places + place + 1);
      }
      const rows = (data) => np.array(data).reshape([SLOTS, 1, 1, -1]);
      const here = np.array(Int32Array.from(at)).reshape([SLOTS, 1, places, 1]);
      let logits;
      [logits, keys, values] = this.step(
        tree.ref(this.w), np.array(ids), rows(cos), rows(sin), np.notEqual(here, 0), rows(bias), keys, values,
      );
      const read = await logits.data();
      for (let slot = 0; slot < SLOTS; slot++) {
        if (slots[slot] === null) continue;
        const { request } = slots[slot];
        const { prompt, key } = requests[request];
        const { tokens, logProbs } = responses[request];
        const place = slots[slot].place++;
        if (place < prompt.length - 1) continue;
        const [token, logProb] = draw(read, slot * config.vocab_size, config.vocab_size, uniform(key, tokens.length));
        tokens.push(token);
        logProbs.push(logProb);
        if (token === EOS || tokens.length === limit) {
          slots[slot] = null;
          ended++;
          progress(ended / requests.length);
        }
      }
    }
    tree.dispose([keys, values]);
    return responses;
  }

  /** Arrays of `lossOf` for rows {prompt, tokens, logProbs, advantage, weight}: padding goes to the right. */
  #batchOf(rows) {
    const { size, config } = this;
    const most = Math.max(...rows.map((row) => row.prompt.length + row.tokens.length));
    const length = Math.min(this.places, Math.ceil(most / 8) * 8); // a compiled program for each multiple of 8
    const count = rows.length * length;
    const data = { ids: new Int32Array(count).fill(EOS), next: new Int32Array(count).fill(EOS) };
    for (const name of ["old", "advantage", "weight"]) data[name] = new Float32Array(count);
    const places = []; // of the response tokens: the hidden state of a token predicts the next one
    rows.forEach((row, index) => {
      data.ids.set([...row.prompt, ...row.tokens], index * length);
      row.tokens.forEach((token, t) => {
        const place = index * length + row.prompt.length + t - 1;
        places.push(place);
        data.next[place] = token;
        data.old[place] = row.logProbs[t];
        data.advantage[place] = row.advantage;
        data.weight[place] = row.weight;
      });
    });
    const batch = Object.fromEntries(Object.entries(data).map(([name, values]) => [name, np.array(values)]));
    const turns = rotary([...Array(length).keys()], size, config.rope_parameters.rope_theta);
    [batch.cos, batch.sin] = turns.map((table) => np.array(table).reshape([length, size]));
    const bias = Float32Array.from({ length: length * length }, (_, i) => (i % length > Math.floor(i / length) ? NEVER : 0));
    batch.bias = np.array(bias).reshape([length, length]);
    return [batch, places];
  }

  /** One update of the weights: `{loss, norm, logProbs, entropies}`, the last two of each response token in turn. */
  async learn(rows, rate, { low, high }) {
    defaultDevice(this.backend);
    const [batch, places] = this.#batchOf(rows);
    const [[loss, aux], gradient] = this.gradient(tree.ref(this.w), batch, low, high);
    const read = await Promise.all([loss.data(), aux.logProb.data(), aux.entropy.data()]);
    const { beta1, beta2 } = this.optimizer;
    const step = ++this.updates;
    const c1 = 1 / (1 - beta1 ** step);
    const c2 = 1 / Math.sqrt(1 - beta2 ** step);
    let norm;
    [this.w, this.m, this.v, norm] = this.update(this.w, this.m, this.v, gradient, rate, c1, c2);
    const [normRead] = await norm.data();
    return {
      loss: read[0][0], norm: normRead,
      logProbs: places.map((place) => read[1][place]), entropies: places.map((place) => read[2][place]),
    };
  }
}

/** The token whose part of the cumulated probabilities holds `noise`, and its log-prob; rounded as the sampler rounds. */
function draw(logits, start, size, noise) {
  let most = -Infinity;
  for (let i = 0; i < size; i++) most = Math.max(most, logits[start + i]);
  let total = 0;
  for (let i = 0; i < size; i++) total += Math.exp(logits[start + i] - most);
  const shift = most + Math.log(total);
  const probabilities = Array.from({ length: size }, (_, i) => Math.fround(Math.exp(Math.fround(logits[start + i] - shift))));
  const sum = probabilities.reduce((a, b) => a + b);
  let cumulated = 0;
  for (let token = 0; token < size; token++) {
    cumulated += probabilities[token];
    if (cumulated > noise * sum) return [token, Math.fround(logits[start + token] - shift)];
  }
  return [size - 1, Math.fround(logits[start + size - 1] - shift)];
}
