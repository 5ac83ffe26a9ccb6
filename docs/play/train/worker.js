// One policy in a thread of its own, so that the page never stands still. Messages in: {type: "load" | "reset" | "step"};
// out: {type: "ready" | "progress" | "step" | "error"}.

import { Trainer } from "./dapo.js";
import { Policy, prepare } from "./policy.js";

let data;
let policy;
let trainer;
let run; // what is posted names the reset that it belongs to

const handlers = {
  async load(message) {
    data = message.data;
    await prepare();
    const longest = Math.max(...[...data.prompts, ...data.watched].map((prompt) => prompt.length));
    policy = new Policy(data.config, message.weights, { longest, optimizer: data.optimizer });
  },
  reset(message) {
    run = message.run;
    policy.reset(message.settings.max_response_tokens);
    trainer = new Trainer(policy, data.prompts, data.watched, message.settings);
    postMessage({ type: "ready", run });
  },
  async step() {
    const started = performance.now();
    const result = await trainer.step((progress) => postMessage({ type: "progress", run, ...progress }));
    postMessage({ type: "step", run, seconds: (performance.now() - started) / 1000, ...result });
  },
};

let last = Promise.resolve(); // a message waits for the one before it: a step is not cut in two by a reset
onmessage = ({ data: message }) => {
  last = last
    .then(() => handlers[message.type](message))
    .catch((error) => postMessage({ type: "error", run, text: String(error?.stack ?? error) }));
};
