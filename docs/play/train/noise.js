// The package's random numbers (dapo_lit/seeds.py): every draw is a function of names and counters, so that a page and a
// Python run with the same seed see the same problems, sample the same tokens and build the same mini-batches.

import { blake2b } from "@noble/hashes/blake2.js";

const text = new TextEncoder();
const WRAP = (1n << 64n) - 1n;

/** The 64-bit key of one sample; `attempt` counts the visits of a problem within a step. */
export function rowKey(seed, step, attempt, sample, problemId) {
  const digest = blake2b(text.encode(`${seed}|${step}|${attempt}|${sample}|${problemId}`), { dkLen: 8 });
  return digest.reduceRight((bits, byte) => (bits << 8n) | BigInt(byte), 0n); // little-endian
}

/** The uniform number in (0, 1) that decides a response's token at `position`: SplitMix64 of key and position. */
export function uniform(key, position) {
  let bits = (key + BigInt(position + 1) * 0x9e3779b97f4a7c15n) & WRAP;
  bits = ((bits ^ (bits >> 30n)) * 0xbf58476d1ce4e5b9n) & WRAP;
  bits = ((bits ^ (bits >> 27n)) * 0x94d049bb133111ebn) & WRAP;
  return (Number((bits ^ (bits >> 31n)) >> 12n) + 0.5) * 2 ** -52;
}

/** The order in which an epoch visits the problems: indices sorted by a keyed hash. */
export function permutation(numProblems, seed, epoch) {
  const key = blake2b(text.encode(`${seed}/${epoch}`), { dkLen: 16 });
  const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const hashed = Array.from({ length: numProblems }, (_, index) => {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setUint32(4, index); // big-endian, as Python's to_bytes(8)
    return [hex(blake2b(bytes, { key, dkLen: 16 })), index];
  });
  return hashed.sort(([a], [b]) => (a < b ? -1 : 1)).map(([, index]) => index);
}

/** MT19937 (Matsumoto and Nishimura 1998), seeded as torch seeds it: with the low 32 bits. */
function* mersenneTwister(seed) {
  const state = new Uint32Array(624);
  state[0] = seed;
  for (let i = 1; i < 624; i++) state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  while (true) {
    for (let i = 0; i < 624; i++) {
      const y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7fffffff);
      state[i] = state[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    for (let y of state) {
      y ^= y >>> 11;
      y ^= (y << 7) & 0x9d2c5680;
      y ^= (y << 15) & 0xefc60000;
      yield (y ^ (y >>> 18)) >>> 0;
    }
  }
}

/**
 * The groups of each mini-batch of a step, in their order in the batch; fewer groups than planned are shared evenly.
 * torch.randperm of fewer than 2**32 / 20 elements is a Fisher-Yates shuffle from the front.
 */
export function minibatches(numGroups, minibatchPrompts, seed, step, epoch) {
  const digest = blake2b(text.encode(`(${seed}, ${step}, ${epoch})`), { dkLen: 8 });
  const bits = digest.reduce((all, byte) => (all << 8n) | BigInt(byte), 0n) >> 1n; // big-endian
  const random = mersenneTwister(Number(bits & 0xffffffffn));
  const order = Array.from({ length: numGroups }, (_, index) => index);
  for (let i = 0; i < numGroups - 1; i++) {
    const other = i + (random.next().value % (numGroups - i));
    [order[i], order[other]] = [order[other], order[i]];
  }
  const parts = Math.ceil(numGroups / minibatchPrompts);
  let start = 0;
  return Array.from({ length: parts }, (_, part) => {
    const size = Math.floor(numGroups / parts) + (part < numGroups % parts ? 1 : 0); // as tensor_split
    start += size;
    return order.slice(start - size, start).sort((a, b) => a - b);
  });
}
