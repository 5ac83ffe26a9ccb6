// One policy in a thread of its own, so that the page never stands still. As long as the page does not know which backend
// is faster, the policy is trained by each of them in turn.
//
// Messages in: {type: "load" | "reset" | "step" | "keep"}; out: {type: "ready" | "progress" | "step" | "error"}.

import { Trainer } from "./dapo.js";
import { Policy, prepare } from "./policy.js";

let data;
let weights;
const policies = {}; // by backend: their compiled programs outlive a reset
let trainers = []; // [backend, trainer]
let run; // what is posted names the reset that it belongs to
let backend; // and the backend that is at work

const handlers = {
  load(message) {
    ({ data, weights } = message);
  },
  async reset({ run: number, backends, settings }) {
    run = number;
    trainers = [];
    const longest = Math.max(...[...data.prompts, ...data.watched].map((prompt) => prompt.length));
    for (backend of backends) {
      await prepare(backend);
      policies[backend] ??= new Policy(backend, data.config, weights, { longest, optimizer: data.optimizer });
      policies[backend].reset(settings.max_response_tokens);
      trainers.push([backend, new Trainer(policies[backend], data.prompts, data.watched, settings)]);
    }
    postMessage({ type: "ready", run });
  },
  async step() {
    let trainer;
    for ([backend, trainer] of trainers) {
      const started = performance.now();
      const result = await trainer.step((progress) => postMessage({ type: "progress", run, backend, ...progress }));
      postMessage({ type: "step", run, backend, seconds: (performance.now() - started) / 1000, ...result });
    }
  },
  keep(message) {
    trainers = trainers.filter(([name]) => name === message.backend);
  },
};

let last = Promise.resolve(); // a message waits for the one before it: a step is not cut in two by a reset
onmessage = ({ data: message }) => {
  last = last
    .then(() => handlers[message.type](message))
    .catch((error) => postMessage({ type: "error", run, backend, text: String(error?.stack ?? error) }));
};
