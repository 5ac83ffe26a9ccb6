// The page: settings in the address, two workers that train in step, curves, answers and groups.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const STEPS = data.steps;

const TECHNIQUES = [
  ["clip_higher", "Clip-higher", `Eq. 10: the upper clip bound is ${data.settings.clip_high}; off: ${data.settings.clip_low}`],
  ["dynamic_sampling", "Dynamic sampling", "Eq. 11: groups all right or all wrong are replaced; off: trained on"],
  ["token_level_loss", "Token-level loss", "Eq. 12: every token weighs the same; off: every answer does"],
  ["soft_overlong_punishment", "Soft overlong punishment", "Eq. 13: long answers lose reward; off: truncated ones are wrong"],
  ["overlong_filtering", "Overlong filtering", "3.4: truncated answers carry no loss; off: they do"],
];
const CHOICES = {
  samples_per_prompt: [4, 8, 16], lr: [0.0003, 0.001, 0.002], max_response_tokens: [20, 24, 28, 36], cache_tokens: [4, 8, 16],
};
const BACKENDS = { wasm: "WebAssembly", webgpu: "WebGPU" };
const FASTER = "faster"; // of the two, as measured
const TRIAL = 2; // steps that each backend makes before the faster goes on: the first one compiles, the last is timed
const NOISE = "noise"; // B has A's switches and other random numbers: what such a pair differs by is chance
const CURVES = [
  ["rollout/accuracy", "accuracy of all answers, %", 100],
  ["policy/entropy", "entropy, nats a token", 1],
  ["rollout/length_mean", "length, tokens", 1],
  ["tokens/total", "sampled tokens, thousands", 0.001],
];
const TILES = [
  ["accuracy", (run) => `${(100 * recent(run, "rollout/accuracy")).toFixed(0)} %`],
  ["entropy", (run) => recent(run, "policy/entropy").toFixed(2)],
  ["tokens an answer", (run) => recent(run, "rollout/length_mean").toFixed(1)],
  ["groups dropped", (run) => `${Math.round(100 * droppedShare(run))} %`],
  ["price, tokens", (run) => run.at(-1).metrics["tokens/total"].toLocaleString("en")],
];

// Settings -----------------------------------------------------------------------------------------------------------

const chosen = { ...data.settings, differs: "dynamic_sampling", backend: FASTER };

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has("on")) for (const [name] of TECHNIQUES) chosen[name] = given.get("on").split(",").includes(name);
  for (const [name, values] of Object.entries(CHOICES)) if (values.includes(Number(given.get(name)))) chosen[name] = Number(given.get(name));
  if (/^\d{1,4}$/.test(given.get("seed") ?? "")) chosen.seed = Number(given.get("seed"));
  if ([NOISE, ...TECHNIQUES.map(([name]) => name)].includes(given.get("differs"))) chosen.differs = given.get("differs");
  if ([FASTER, ...Object.keys(BACKENDS)].includes(given.get("backend"))) chosen.backend = given.get("backend");
}

function writeAddress() {
  const on = TECHNIQUES.map(([name]) => name).filter((name) => chosen[name]);
  const rest = ["differs", ...Object.keys(CHOICES), "seed", "backend"].map((name) => `${name}=${chosen[name]}`);
  history.replaceState(null, "", `#on=${on.join(",")}&${rest.join("&")}`);
}

/** The settings of policy 0 (A) or 1 (B). */
function settingsOf(index) {
  const { differs, backend, ...settings } = chosen;
  settings.cache_tokens = Math.min(settings.cache_tokens, settings.max_response_tokens);
  settings.noise_seed = settings.seed;
  if (index === 1 && differs === NOISE) settings.noise_seed += 100000;
  else if (index === 1) settings[differs] = !settings[differs];
  return settings;
}

function showSettings() {
  for (const [name] of TECHNIQUES) {
    const button = $(name);
    button.setAttribute("aria-checked", chosen[name]);
    button.querySelector(".state").textContent = chosen[name] ? "on" : "off";
    const differs = chosen.differs === name;
    button.parentElement.classList.toggle("differs", differs);
    $(`${name}-b`).textContent = differs ? `B: ${chosen[name] ? "off" : "on"}` : "";
  }
  for (const name of ["differs", "seed", "backend", ...Object.keys(CHOICES)]) $(name).value = chosen[name];
}

function change(name, value) {
  chosen[name] = value;
  writeAddress();
  showSettings();
  reset();
}

function makeSettings() {
  for (const [index, [name, title, source]] of TECHNIQUES.entries()) {
    const card = element("div", "card technique", $("switches"));
    const button = element("button", "switch", card);
    button.id = name;
    button.setAttribute("role", "switch");
    button.setAttribute("aria-describedby", `${name}-source`);
    element("b", "", button).textContent = title;
    element("span", "b", button).id = `${name}-b`;
    element("kbd", "", button).textContent = index + 1;
    element("span", "state", button);
    element("span", "track", button);
    const line = element("p", "source", card);
    line.id = `${name}-source`;
    line.textContent = source;
    button.onclick = () => change(name, !chosen[name]);
  }
  for (const [name, title] of TECHNIQUES) $("differs").append(new Option(title, name));
  $("differs").append(new Option("its noise only", NOISE));
  for (const [name, values] of Object.entries(CHOICES)) for (const value of values) $(name).append(new Option(value, value));
  $("backend").append(new Option("the faster", FASTER), ...Object.entries(BACKENDS).map(([name, title]) => new Option(title, name)));
  for (const name of ["differs", "backend"]) $(name).onchange = () => change(name, $(name).value);
  for (const name of [...Object.keys(CHOICES), "seed"]) {
    $(name).onchange = () => change(name, Math.min(9999, Math.max(0, Math.trunc(Number($(name).value)) || 0)));
  }
}

// Backends: where there is a GPU, both policies make their first steps with WebAssembly and with WebGPU ------------------

let adapter = null; // of WebGPU; null where it is not available
let backends = []; // that compute: one, or both as long as the trial lasts
let trial = []; // its steps, {index, backend, step, seconds, metrics}
let found = null; // {backend, why}, once there was a trial

function chosenBackends() {
  if (!adapter) return ["wasm"];
  if (chosen.backend !== FASTER) return [chosen.backend];
  if (found) return [found.backend];
  // An adapter in software is slower than WebAssembly on the same processor.
  return adapter.info.isFallbackAdapter ? ["wasm"] : ["wasm", "webgpu"];
}

/** Ends the trial: WebGPU goes on if it was faster and its numbers are those of WebAssembly. */
function settle() {
  const of = (backend, step) => [0, 1].map((index) => trial.find((t) => t.index === index && t.backend === backend && t.step === step));
  const [wasm, webgpu] = Object.keys(BACKENDS).map((backend) => Math.max(...of(backend, TRIAL).map((t) => t.seconds)));
  const [first, other] = Object.keys(BACKENDS).map((backend) => of(backend, 1).map((t) => t.metrics));
  // They round differently, and a token that falls on the other side of a bound changes these by less than 5 %.
  const same = ["policy/entropy", "optim/grad_norm"].every((name) =>
    [0, 1].every((index) => Math.abs(other[index][name] - first[index][name]) <= 0.05 * Math.abs(first[index][name])),
  );
  const times = `step ${TRIAL}: WebAssembly ${wasm.toFixed(1)} s, WebGPU ${webgpu.toFixed(1)} s`;
  found = { backend: same && webgpu < wasm ? "webgpu" : "wasm", why: same ? times : "the numbers of WebGPU are others here" };
  backends = [found.backend];
  for (const worker of workers) worker.postMessage({ type: "keep", backend: found.backend });
  seconds = seconds.slice(0, 1); // the first is counted nowhere
}

/** What computes, for the reader. */
function engine() {
  if (backends.length > 1) return `WebAssembly and WebGPU make ${TRIAL} steps each, the faster goes on`;
  const by = `computed with ${BACKENDS[backends[0]]}`;
  if (chosen.backend === "webgpu" && !adapter) return `${by}: WebGPU is not available here`;
  return chosen.backend === FASTER && found ? `${by} (${found.why})` : by;
}

// Training: both workers make a step; the next one begins when both have ended ------------------------------------------

let workers = [];
let runNumber = 0;
const runs = [[], []]; // results of the steps, of A and of B
let waiting = new Set([0, 1]); // policies that are at work
let going = false; // until STEPS, or until pause
let failed = false;
let seconds = [];
let begun = 0;

function launch() {
  const source = new Blob([$("worker").textContent], { type: "text/javascript" });
  const address = URL.createObjectURL(source);
  const bytes = Uint8Array.from(atob($("weights").textContent.trim()), (character) => character.charCodeAt(0)).buffer;
  workers = [0, 1].map((index) => {
    const worker = new Worker(address);
    worker.onmessage = ({ data: message }) => receive(index, message);
    worker.onerror = (event) => fail(event.message);
    worker.postMessage({ type: "load", data: { config: data.config, prompts: data.prompts, watched: data.watched, optimizer: data.optimizer }, weights: bytes });
    return worker;
  });
}

function reset() {
  runNumber++;
  going = false;
  backends = chosenBackends();
  trial = [];
  seconds = [];
  for (const run of runs) run.length = 0;
  waiting = new Set([0, 1]);
  workers.forEach((worker, index) => worker.postMessage({ type: "reset", run: runNumber, backends, settings: settingsOf(index) }));
  progress(0, 0);
  progress(1, 0);
  detailOf = null;
  draw();
}

function receive(index, message) {
  if (message.run !== runNumber) return; // of before a reset
  if (message.type === "error") return backends.length > 1 && message.backend === "webgpu" ? withoutGpu(message.text) : fail(message.text);
  if (message.type === "progress") {
    // Sampling takes most of a step.
    const share = message.doing === "sampling" ? 0.7 * message.share : 0.7 + 0.3 * message.share;
    progress(index, (backends.indexOf(message.backend) + share) / backends.length);
    return;
  }
  if (message.type === "step") {
    if (message.backend === backends[0]) runs[index].push(message);
    if (backends.length > 1) trial.push({ index, ...message });
    if (message.backend !== backends.at(-1)) return draw();
    progress(index, 1);
  }
  waiting.delete(index);
  if (waiting.size > 0) return;
  if (message.type === "step") seconds.push((performance.now() - begun) / 1000);
  if (backends.length > 1 && runs[0].length === TRIAL) settle();
  if (runs[0].length >= STEPS) going = false;
  draw();
  if (going) step();
}

/** The trial has failed: both policies start again with WebAssembly. */
function withoutGpu(text) {
  found = { backend: "wasm", why: `WebGPU failed: ${text.split("\n")[0]}` };
  const goesOn = going;
  reset();
  going = goesOn;
}

function step() {
  begun = performance.now();
  waiting = new Set([0, 1]);
  for (const worker of workers) worker.postMessage({ type: "step" });
  showStatus();
}

function start() {
  if (failed) return;
  going = !going && runs[0].length < STEPS;
  if (going && waiting.size === 0) step();
  showStatus();
}

function one() {
  if (failed || going || waiting.size > 0) return;
  step();
}

function fail(text) {
  failed = true;
  going = false;
  for (const worker of workers) worker.terminate();
  const how = backends[0] === "webgpu" ? ", with backend=wasm in its address," : "";
  $("status").textContent = `Training ended with an error: ${text}. Reload the page${how} to try again.`;
}

// What is shown --------------------------------------------------------------------------------------------------------

function element(tag, className, parent) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  parent?.append(made);
  return made;
}

const progress = (index, share) => { $(index === 0 ? "done-a" : "done-b").style.width = `${100 * share}%`; };

function recent(run, name) {
  const last = run.slice(-5);
  return last.reduce((sum, { metrics }) => sum + metrics[name], 0) / last.length;
}

function droppedShare(run) {
  const groups = run.slice(-5).flatMap((result) => result.groups);
  return groups.filter((group) => !group.kept).length / groups.length;
}

function showStatus() {
  if (failed) return;
  const done = runs[0].length;
  const idle = waiting.size === 0;
  $("start").textContent = going ? "Pause" : done >= STEPS ? "Ended" : "Start";
  $("start").disabled = !going && done >= STEPS;
  $("one").disabled = going || !idle;
  const each = seconds.length > 1 ? seconds.slice(1).reduce((a, b) => a + b) / (seconds.length - 1) : 0; // the first compiles
  const left = Math.round(each * (STEPS - done));
  let text = `Step ${done} of ${STEPS}. `;
  if (going && done === 0) text += "The first step compiles its programs.";
  else if (going && each > 0) text += `${each.toFixed(1)} s a step of both; ${left > 90 ? `${Math.round(left / 60)} minutes` : `${left} s`} left.`;
  else if (!idle && done > 0) text += "A step is under way.";
  else if (done === 0) text = idle ? `Ready: ${STEPS} steps of ${chosen.num_prompts} problems, ${chosen.samples_per_prompt} answers each.` : "Getting ready.";
  else if (done >= STEPS) text += "Reset, change a switch or try another seed.";
  $("status").textContent = text;
  $("engine").textContent = engine();
}

let axis = "step";
let problem = 0;
let detailOf = null; // [policy, group]

function draw() {
  showStatus();
  showTiles();
  CURVES.forEach(drawCurve);
  showAnswers();
  showGroups();
  showDetail();
  document.documentElement.dataset.steps = runs[1].length;
  if (waiting.size === 0) document.documentElement.dataset.ready = "1";
}

function showTiles() {
  const tiles = $("tiles");
  tiles.textContent = "";
  for (const [label, value] of TILES) {
    const tile = element("div", "card tile", tiles);
    element("div", "label", tile).textContent = label;
    const values = element("div", "values", tile);
    for (const [index, name] of ["a", "b"].entries()) {
      const span = element("span", name, values);
      element("small", "", span).textContent = `${name.toUpperCase()} `;
      span.append(runs[index].length > 0 ? value(runs[index]) : "–");
    }
  }
}

const SVG = "http://www.w3.org/2000/svg";

function drawn(tag, attributes, parent, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/** A round number at or above `value`. */
function ceiling(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((number) => number >= value * 0.999);
}

function drawCurve([name, title, factor], place) {
  const figure = $("charts").children[place];
  const svg = figure.querySelector("svg");
  svg.textContent = "";
  const [width, height, left, right, bottom] = [440, 128, 34, 8, 18];
  const series = runs.map((run) => run.map(({ metrics }) => factor * metrics[name]));
  const across = runs.map((run) => run.map(({ step: at, metrics }) => (axis === "step" ? at : metrics["tokens/total"] / 1000)));
  const most = ceiling(Math.max(...series.flat(), name === "rollout/accuracy" ? 20 : 0.5));
  const widest = axis === "step" ? STEPS : ceiling(Math.max(...across.flat(), 1));
  const x = (value) => left + (value / widest) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - bottom - 8);
  for (const share of [0, 0.5, 1]) {
    drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(share * most), y2: y(share * most) }, svg);
    drawn("text", { x: left - 5, y: y(share * most) + 4, "text-anchor": "end" }, svg, Number((share * most).toPrecision(3)));
    const label = `${Number((share * widest).toPrecision(3))}${axis === "tokens" && share > 0 ? "k" : ""}`;
    drawn("text", { x: x(share * widest), y: height - 3, "text-anchor": share === 1 ? "end" : "middle" }, svg, label);
  }
  const cumulated = name === "tokens/total";
  for (const index of [0, 1]) {
    const letter = "ab"[index];
    const points = series[index].map((value, i) => {
      const last = series[index].slice(Math.max(0, i - 4), i + 1);
      return [x(across[index][i]), y(cumulated ? value : last.reduce((a, b) => a + b) / last.length)];
    });
    if (!cumulated) series[index].forEach((value, i) => drawn("circle", { class: `dot ${letter}`, r: 2, cx: x(across[index][i]), cy: y(value) }, svg));
    drawn("polyline", { class: `line ${letter}`, points: points.map((point) => point.map((n) => n.toFixed(1)).join()).join(" ") }, svg);
  }
  const say = (values) => (values.length > 0 ? `from ${values[0].toPrecision(3)} to ${values.at(-1).toPrecision(3)}` : "no step yet");
  svg.setAttribute("aria-label", `${title}: A ${say(series[0])}, B ${say(series[1])}`);
}

function answerCell(row, answer) {
  const cell = element("td", "", row);
  if (answer === undefined) return;
  const mark = element("span", `verdict ${answer.correct ? "right-text" : "wrong-text"}`, cell);
  mark.textContent = answer.correct ? "✓ " : "✗ ";
  cell.append(answer.text + (answer.truncated ? "…" : ""));
}

function showAnswers() {
  const body = $("answers");
  body.textContent = "";
  for (let i = Math.max(runs[0].length, runs[1].length) - 1; i >= 0; i--) {
    const row = element("tr", "", body);
    element("td", "", row).textContent = i + 1;
    for (const run of runs) answerCell(row, run[i]?.watched[problem]);
  }
  if (body.children.length === 0) element("td", "", element("tr", "", body)).textContent = "–";
  for (const [index, button] of [...$("problems").children].entries()) button.setAttribute("aria-pressed", index === problem);
}

function mark(answer, parent) {
  const made = element("span", `mark ${answer.correct ? "right" : "wrong"}${answer.truncated ? " cut" : ""}`, parent);
  made.textContent = answer.correct ? "✓" : "✗";
  made.title = answer.text;
}

function showGroups() {
  for (const [index, letter] of ["a", "b"].entries()) {
    const place = $(`groups-${letter}`);
    const result = runs[index].at(-1);
    place.textContent = "";
    $(`count-${letter}`).textContent = result
      ? `${result.groups.filter((g) => g.kept).length} trained on of ${result.groups.length}, ${result.metrics["tokens/sampled"].toLocaleString("en")} tokens` : "";
    result?.groups.forEach((group, at) => {
      const button = element("button", `group${group.kept ? "" : " dropped"}`, place);
      button.setAttribute("aria-pressed", detailOf?.[0] === index && detailOf[1] === at);
      const dropped = group.kept ? "" : ", dropped";
      button.setAttribute("aria-label", `${group.problem.prompt} ${group.right} of ${group.responses.length} right${dropped}`);
      element("code", "", button).textContent = group.problem.prompt;
      const marks = element("span", "marks", button);
      for (const answer of group.responses) mark(answer, marks);
      element("small", "", button).textContent = group.kept ? "" : group.right === 0 ? "all wrong" : "all right";
      button.onclick = () => {
        detailOf = button.ariaPressed === "true" ? null : [index, at];
        showGroups();
        showDetail();
        $(`groups-${letter}`).children[at].focus();
      };
    });
  }
  const step = runs[0].at(-1)?.step;
  $("groups-title").textContent = step === undefined ? "The groups of a step" : `The groups of step ${step}`;
}

function showDetail() {
  const place = $("detail");
  const group = detailOf && runs[detailOf[0]].at(-1)?.groups[detailOf[1]];
  place.hidden = !group;
  place.textContent = "";
  if (!group) return;
  element("p", "", place).textContent = `${"AB"[detailOf[0]]}: ${group.problem.prompt}${group.problem.answer}`;
  const table = element("table", "", place);
  const head = element("tr", "", element("thead", "", table));
  for (const title of ["answer", "tokens", "reward", "advantage"]) {
    const cell = element("th", "", head);
    cell.scope = "col";
    cell.textContent = title;
  }
  const body = element("tbody", "", table);
  for (const answer of group.responses) {
    const row = element("tr", "", body);
    answerCell(row, answer);
    const advantage = group.kept ? answer.advantage.toFixed(2) : "none";
    for (const value of [answer.tokens.length, answer.reward.toFixed(2), advantage]) element("td", "", row).textContent = value;
  }
}

function makeRest() {
  for (const [, title] of CURVES) {
    const figure = element("figure", "card", $("charts"));
    element("figcaption", "", figure).textContent = title;
    drawn("svg", { viewBox: "0 0 440 128", role: "img" }, figure);
  }
  data.watched.forEach((prompt, index) => {
    const button = element("button", "", $("problems"));
    button.textContent = prompt;
    button.onclick = () => { problem = index; showAnswers(); };
  });
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.onclick = () => {
      axis = button.dataset.axis;
      for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", other === button);
      CURVES.forEach(drawCurve);
    };
  }
  $("start").onclick = start;
  $("one").onclick = one;
  $("reset").onclick = reset;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("select, input")) return;
    const onButton = event.target.matches("button");
    if (event.key === " " && !onButton) start();
    else if (event.key === "n") one();
    else if (event.key === "r") reset();
    else if (event.key >= "1" && event.key <= "5") $(TECHNIQUES[event.key - 1][0]).click();
    else return;
    event.preventDefault();
  });
  addEventListener("hashchange", () => { readAddress(); showSettings(); reset(); });
}

async function begin() {
  adapter = (await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" })) ?? null;
  $("backend").querySelector("[value=webgpu]").disabled = !adapter;
  launch();
  reset();
}

readAddress();
makeSettings();
makeRest();
showSettings();
if (typeof WebAssembly === "undefined") {
  $("unable").hidden = false;
  $("all").hidden = true;
  document.documentElement.dataset.ready = "1";
} else {
  begin();
}
window.runs = runs; // for who wants the numbers, as the tests do
