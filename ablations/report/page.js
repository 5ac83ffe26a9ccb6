"use strict";
// The arithmetic of the curves. It reads nothing of the page, and tests compare it with paired_curves.py.

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

// A metric of a run as [step, place on the axis, value], rows without a value left out, as a centred moving mean.
function curve(run, key, axis, smooth) {
  const places = run.values[axis] || [], values = run.values[key] || [], steps = run.values.step;
  const rows = steps.map((step, i) => [step, axis === "step" ? step : places[i], values[i]]);
  const found = rows.filter((row) => row[1] != null && row[2] != null), half = (smooth - 1) / 2;
  return found.map(([step, place], i) => {
    const window = found.slice(Math.max(0, i - half), i + half + 1);
    return [step, place, window.reduce((sum, row) => sum + row[2], 0) / window.length];
  });
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// A comparison's value at each step that all its runs of a seed logged: seed -> [[step, step, difference]].
function differences(data, comparison, key, smooth, seeds) {
  const arms = Object.keys(comparison.weights), found = new Map();
  for (const seed of seeds) {
    const runs = arms.map((arm) => data.cells.get(`${arm}/${seed}`));
    if (runs.some((run) => !run || run.spoilt.includes(key))) continue;
    const sums = new Map();
    runs.forEach((run, i) => {
      for (const [step, , value] of curve(run, key, "step", smooth)) {
        const [count, sum] = sums.get(step) || [0, 0];
        sums.set(step, [count + 1, sum + comparison.weights[arms[i]] * value]);
      }
    });
    const whole = [...sums].filter(([, [count]]) => count === arms.length).map(([step, [, sum]]) => [step, step, sum]);
    if (whole.length) found.set(seed, whole.sort((a, b) => a[0] - b[0]));
  }
  return found;
}

// Mean over base policies with its 95 % t-interval at the steps that all seeds have: [[step, step, mean, low, high, n]].
function band(data, found) {
  const seeds = [...found.keys()];
  if (!seeds.length) return [];
  const tables = seeds.map((seed) => new Map(found.get(seed).map((row) => [row[0], row[2]])));
  const bases = seeds.map((seed) => data.baseOf.get(seed)), names = [...new Set(bases)];
  const units = names.length < 2 ? seeds.map((_, i) => [i]) : names.map((n) => bases.flatMap((b, i) => (b === n ? [i] : [])));
  return [...tables[0].keys()].filter((step) => tables.every((table) => table.has(step))).map((step) => {
    const values = units.map((unit) => mean(unit.map((i) => tables[i].get(step)))), n = values.length, centre = mean(values);
    const sd = Math.sqrt(values.reduce((sum, x) => sum + (x - centre) ** 2, 0) / (n - 1));
    const half = n > 1 ? data.t[n - 2] * sd / Math.sqrt(n) : NaN;
    return [step, step, centre, centre - half, centre + half, n];
  });
}

// The least and the greatest of any number of values: Math.min takes its arguments from the stack, which ends.
function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value == null || Number.isNaN(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

// The k-th points of all seeds averaged, places and values; over steps, each step.
function meanCurve(curves, axis) {
  if (axis !== "step") {
    const points = Math.min(...curves.map((one) => one.length));
    return [...Array(points).keys()].map((k) => [curves[0][k][0], mean(curves.map((c) => c[k][1])), mean(curves.map((c) => c[k][2]))]);
  }
  const at = new Map();
  for (const one of curves) for (const [step, , value] of one) at.set(step, [...(at.get(step) || []), value]);
  return [...at].sort((a, b) => a[0] - b[0]).map(([step, values]) => [step, step, mean(values)]);
}

// The last value of each arm, side by side: seed -> rows [step, place of the arm, value], of seeds that have all arms.
function sides(data, arms, key, seeds) {
  const found = new Map();
  for (const seed of seeds) {
    const ends = arms.map((arm) => data.cells.get(`${arm}/${seed}`)).map((run) => run && curve(run, key, "step", 1).at(-1));
    if (ends.every(Boolean)) found.set(seed, ends.map(([step, , value], place) => [step, place, value]));
  }
  return found;
}

// The page.

const byId = (id) => document.getElementById(id);
function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children.filter((child) => child != null));
  return made;
}
const SHOWN = 6; // comparisons or arms that are chosen at first
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Levels of a share are in percent, differences of two in points.
const unitOf = (metric, difference) => (metric.scale === 100 && !difference ? "%" : metric.unit);

// A line through two points would show a course that nobody measured.
const marks = (count, size) => (count < 3 ? { paths: () => null, points: { show: true, size: size + 3 } } : { points: { show: count < 30, size } });
const RISES = "#1d6fb8", FALLS = "#be4a1c"; // from the first arm to the last
const FEW = 3; // of the completions of a problem are shown before somebody asks for all
const PANEL_LOOKS = [["#1d6fb8", []], ["#be4a1c", [6, 3]], ["#5f8f1d", [2, 3]]];

function number(value, metric, signed) {
  if (value == null || Number.isNaN(value)) return "–";
  const scaled = value * metric.scale, digits = metric.scale === 100 ? scaled.toFixed(1) : String(+scaled.toPrecision(3));
  return ((signed && scaled >= 0 ? "+" : "") + digits).replace("-", "−");
}

class Explorer {
  constructor(data) {
    this.data = data;
    data.cells = new Map(data.runs.map((run) => [`${run.arm}/${run.seed}`, run]));
    const varies = (key) => new Set(data.runs.flatMap((run) => (run.values[key] || []).filter((x) => x != null))).size > 1;
    const varying = data.metrics.filter((m) => m.key === data.metric || varies(m.key));
    if (varying.length) data.metrics = varying; // a run has none before its second row
    for (const one of [...data.arms, ...data.comparisons]) one.dash = Array.isArray(one.dash) ? one.dash[1].map((length) => 1.6 * length) : [];
    data.baseOf = new Map(data.runs.map((run) => [run.seed, run.base]));
    this.seeds = [...new Set(data.runs.map((run) => run.seed))].sort((a, b) => a - b);
    this.comparisons = [...data.comparisons];
    const first = data.comparisons.flatMap((c, i) => (c.family === data.family ? [i] : [])).slice(0, SHOWN);
    const course = data.runs.some((run) => curve(run, data.metric, "step", 1).length > 2), differs = course ? "difference" : "pairs";
    this.state = {
      metric: data.metric, view: data.comparisons.length ? differs : "curves", axis: "step", smooth: 1,
      range: [], comparisons: first, arms: data.arms.slice(0, SHOWN).map((arm) => arm.name), seeds: this.seeds, lines: data.runs.length < 60,
    };
    this.restore();
    this.controls();
    this.drawAll();
    this.ends();
    addEventListener("resize", () => this.drawAll());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawAll());
    if (data.live) setTimeout(() => { if (!byId("completions").contains(document.activeElement)) location.reload(); }, 15000);
  }

  // What is chosen stays in the address, over a reload and for a link.
  restore() {
    try {
      const saved = JSON.parse(decodeURIComponent(location.hash.slice(1)));
      for (const [key, value] of Object.entries(saved)) if (typeof value === typeof this.state[key]) this.state[key] = value;
    } catch { /* the address names a heading, or nothing */ }
    if (!this.data.metrics.some((m) => m.key === this.state.metric)) this.state.metric = this.data.metric;
  }

  set(changes) {
    Object.assign(this.state, changes);
    history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(this.state))}`);
    this.visibility();
    this.draw();
  }

  get metric() { return this.data.metrics.find((m) => m.key === this.state.metric) || this.data.metrics[0]; }

  controls() {
    const { data, state } = this, metric = byId("metric"), groups = Object.groupBy(data.metrics, (m) => m.key.split("/")[0]);
    for (const [name, metrics] of Object.entries(groups)) {
      const group = element("optgroup", { label: name });
      group.append(...metrics.map((m) => new Option(m.words === m.key ? m.key : `${m.words} · ${m.key}`, m.key)));
      metric.append(group);
    }
    metric.value = state.metric;
    metric.onchange = () => this.set({ metric: metric.value });
    const longest = Math.max(...data.runs.map((run) => run.values.step.length)), widths = [1, 3, 5, 9, 15, 25].filter((w) => w === 1 || 3 * w < longest);
    byId("smooth").append(...widths.map((w) => new Option(w === 1 ? "each step" : `mean of ${w} steps`, w)));
    byId("axis").append(...Object.entries(data.axes).map(([key, words]) => new Option(words, key)));
    for (const id of ["smooth", "axis"]) {
      byId(id).value = state[id];
      byId(id).onchange = () => this.set({ [id]: id === "smooth" ? +byId(id).value : byId(id).value });
    }
    for (const button of document.querySelectorAll("[data-view]")) button.onclick = () => this.set({ view: button.dataset.view });
    byId("lines").checked = state.lines;
    byId("lines").onchange = () => this.set({ lines: byId("lines").checked });
    for (const id of ["plus", "minus"]) byId(id).append(...data.arms.map((arm) => new Option(arm.name)));
    byId("plus").selectedIndex = Math.min(1, data.arms.length - 1);
    byId("add").onclick = () => this.add();
    this.choices();
    const plot = byId("plot");
    plot.onkeydown = (event) => this.key(event);
    plot.onpointermove = plot.onpointerdown = (event) => this.point(event);
    plot.addEventListener("click", () => this.dragged || this.open(), true); // uPlot keeps clicks to itself
    byId("whole").onclick = () => this.set({ range: [] });
    this.visibility();
  }

  add() {
    const [plus, minus] = [byId("plus").value, byId("minus").value], look = this.data.arms.find((arm) => arm.name === plus);
    if (plus === minus) return;
    this.comparisons.push({ ...look, name: `${plus} − ${minus}`, family: "your own", weights: { [plus]: 1, [minus]: -1 } });
    this.state.comparisons = [...this.state.comparisons, this.comparisons.length - 1];
    this.choices();
    this.set({ view: "difference" });
  }

  choices() {
    const boxes = (id, items, key) => {
      const list = byId(id), names = new Set(this.state[key]);
      list.replaceChildren();
      for (const { value, text, look, heading } of items) {
        if (heading) list.append(element("strong", { textContent: heading }));
        const box = element("input", { type: "checkbox", checked: names.has(value) });
        box.onchange = () => {
          const others = this.state[key].filter((other) => other !== value);
          this.set({ [key]: box.checked ? [...others, value] : others });
        };
        const swatch = look && document.createElementNS("http://www.w3.org/2000/svg", "svg");
        if (swatch) {
          swatch.setAttribute("viewBox", "0 0 26 8");
          const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
          for (const [name, set] of Object.entries({ d: "M0 4H26", stroke: look.colour, "stroke-width": 3, "stroke-dasharray": look.dash.join(" ") || "none" })) line.setAttribute(name, set);
          swatch.append(line);
        }
        list.append(element("label", {}, box, swatch, text));
      }
    };
    let family = "";
    const compared = this.comparisons.map((one, value) => {
      const heading = one.family !== family && one.family;
      family = one.family;
      return { value, text: one.name, look: one, heading };
    });
    boxes("comparisons", compared, "comparisons");
    boxes("arms", this.data.arms.map((arm) => ({ value: arm.name, text: arm.name, look: arm })), "arms");
    boxes("seeds", this.seeds.map((seed) => ({ value: seed, text: String(seed) })), "seeds");
  }

  visibility() {
    const difference = this.state.view === "difference";
    for (const button of document.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", button.dataset.view === this.state.view);
    byId("by-comparisons").hidden = !difference;
    byId("by-axis").hidden = this.state.view !== "curves";
    byId("arms").hidden = difference || this.data.arms.length < 2;
    byId("view").hidden = this.data.arms.length < 2;
    byId("by-seeds").hidden = byId("by-line").hidden = this.seeds.length < 2;
  }

  // Lines to draw: a bold one with its interval for each comparison or arm, thin ones for its seeds.
  series() {
    const { data, state } = this, key = this.metric.key, smooth = key.startsWith("eval/") ? 1 : state.smooth;
    const seeds = this.seeds.filter((seed) => state.seeds.includes(seed)), lines = [];
    const add = (look, name, seedRows, bold, arms) => {
      for (const [seed, rows] of seedRows) lines.push({ look, name, seed, rows, arms, drawn: state.lines || seedRows.size === 1 && !bold.length });
      if (bold.length) lines.push({ look, name, rows: bold, arms, bold: true, drawn: true });
    };
    if (state.view === "difference") {
      for (const index of state.comparisons) {
        const one = this.comparisons[index];
        if (!one) continue;
        const found = differences(data, one, key, smooth, seeds);
        const order = Object.keys(one.weights).sort((a, b) => one.weights[b] - one.weights[a]);
        add(one, one.name, found, band(data, found), order.length > 2 ? [] : order);
      }
    } else if (state.view === "pairs") {
      const arms = this.shownArms(), found = sides(data, arms.map((arm) => arm.name), key, seeds), byBase = new Map();
      for (const [seed, rows] of found) byBase.set(data.baseOf.get(seed), [...(byBase.get(data.baseOf.get(seed)) || []), rows]);
      const averaged = (group) => group[0].map(([step, place], k) => [step, place, mean(group.map((rows) => rows[k][2]))]);
      const names = arms.map((arm) => arm.name);
      for (const [seed, rows] of found) lines.push({ look: { colour: rows.at(-1)[2] < rows[0][2] ? FALLS : RISES, dash: [] }, names, seed, rows, arms: names, drawn: state.lines });
      if (found.size) lines.push({ look: { colour: colour("--ink"), dash: [] }, names, rows: averaged([...byBase.values()].map(averaged)), arms: names, bold: true, drawn: true });
    } else {
      for (const arm of this.shownArms()) {
        const found = new Map();
        for (const seed of seeds) {
          const run = data.cells.get(`${arm.name}/${seed}`), rows = run ? curve(run, key, state.axis, smooth) : [];
          if (rows.length) found.set(seed, rows);
        }
        add(arm, arm.name, found, found.size ? meanCurve([...found.values()], state.axis) : [], [arm.name]);
      }
    }
    return lines;
  }

  // Side by side, the control of the first comparison comes first and what it is compared with last.
  shownArms() {
    const arms = this.data.arms.filter((one) => this.state.arms.includes(one.name)), weights = this.comparisons[0]?.weights ?? {};
    return this.state.view === "pairs" ? arms.sort((a, b) => (weights[a.name] ?? 0) - (weights[b.name] ?? 0)) : arms;
  }

  drawAll() {
    this.draw(); // first: with it the page has the scroll bar that takes width from the panels
    this.panels();
  }

  // Of a page of one run: six plots, each a button that enlarges it.
  panels() {
    const box = byId("panels"), [run] = this.data.runs;
    box.hidden = this.data.runs.length > 1;
    if (box.hidden) return;
    this.small?.forEach((plot) => plot.destroy());
    this.small = [];
    box.replaceChildren();
    for (const { title, curves } of this.data.panels) {
      const found = curves.flatMap(([key, words]) => {
        const metric = this.data.metrics.find((m) => m.key === key);
        return metric && curve(run, metric.key, "step", 1).length ? [{ metric, words }] : [];
      });
      if (!found.length) continue;
      const { metric } = found[0], unit = unitOf(metric, false), shownMetric = found.some((one) => one.metric.key === this.state.metric);
      const legend = element("span", { className: "legend" });
      found.forEach(({ metric: one, words }, i) => {
        const last = curve(run, one.key, "step", 1).at(-1)[2];
        const swatch = element("i", { style: `border-top: 2px ${["solid", "dashed", "dotted"][i % 3]} ${PANEL_LOOKS[i % 3][0]}` });
        legend.append(element("span", {}, swatch, `${found.length > 1 ? `${words} ` : ""}${number(last, one)}`), " ");
      });
      const holder = element("span", { className: "small" });
      const panel = element("button", { type: "button", className: "panel", title: metric.definition || "enlarge" }, element("b", { textContent: title + (unit ? ` (${unit})` : "") }), legend, holder);
      panel.setAttribute("aria-pressed", shownMetric);
      panel.onclick = () => {
        const next = found[(found.findIndex((one) => one.metric.key === this.state.metric) + 1) % found.length].metric.key;
        byId("metric").value = next;
        this.set({ metric: next, view: "curves" });
        this.panels();
        byId("panels").querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
      };
      box.append(panel);
      const tables = found.map(({ metric: one }) => {
        const rows = curve(run, one.key, "step", 1);
        return [rows.map((row) => row[0]), rows.map((row) => row[2] * one.scale)];
      });
      const axis = { stroke: () => colour("--ink"), grid: { show: false }, ticks: { show: false }, font: "12px system-ui" };
      this.small.push(new uPlot({
        width: Math.max(150, holder.clientWidth), height: 124, legend: { show: false }, cursor: { show: false }, padding: [6, 6, 0, 0],
        scales: { x: { time: false } },
        axes: [{ ...axis, size: 24, gap: 6, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, size: 40, gap: 3, space: 22 }],
        series: [{}, ...found.map((_, i) => ({ stroke: PANEL_LOOKS[i % 3][0], dash: PANEL_LOOKS[i % 3][1], width: 1.8, spanGaps: true, ...marks(tables[i][0].length, 4) }))],
      }, tables.length > 1 ? uPlot.join(tables) : tables[0], holder));
    }
  }

  draw() {
    const { state, metric } = this, difference = state.view === "difference", paired = state.view === "pairs";
    this.lines = this.series();
    this.shown = this.lines.filter((line) => line.drawn);
    const scale = (x) => (x == null || Number.isNaN(x) ? null : x * metric.scale), tables = [], series = [{}], bands = [];
    const stroke = (line, width) => ({ stroke: line.look.colour, width, dash: line.look.dash, spanGaps: true, ...(paired ? { points: { show: true, size: 6 } } : marks(line.bold || line.rows.length < 3 ? line.rows.length : Infinity, 5)) });
    for (const line of this.shown) {
      const x = line.rows.map((row) => row[1]), column = (k) => [x, line.rows.map((row) => scale(row[k]))];
      tables.push(column(2));
      series.push(line.bold ? stroke(line, 2.5) : { ...stroke(line, paired ? 1.4 : 0.8), dash: [], alpha: paired ? 0.8 : 0.45 });
      if (line.bold && difference) {
        if (line.rows.length > 2) bands.push({ series: [series.length + 1, series.length], fill: `${line.look.colour}26` });
        tables.push(column(3), column(4));
        series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
      }
    }
    const [from, to] = state.range.length === 2 && !paired ? state.range : [-Infinity, Infinity], seen = [];
    for (const line of this.lines) for (const row of line.rows) if (row[1] >= from && row[1] <= to) seen.push(scale(row[2]));
    for (const { rows } of difference ? this.shown.filter((one) => one.bold && one.rows.length < 3) : []) seen.push(...rows.flatMap((row) => [row[3], row[4]]).map(scale).filter((y) => y != null));
    const [low, high] = extremes(difference ? [0, ...seen] : seen), margin = 0.08 * (high - low || Math.abs(high) || 1);
    const axis = { stroke: () => colour("--ink"), grid: { stroke: () => colour("--rule"), width: 1 }, ticks: { stroke: () => colour("--rule"), width: 1 }, font: "13px system-ui" };
    const box = byId("plot"), width = Math.max(260, box.clientWidth), named = unitOf(metric, difference), unit = named && ` (${named})`;
    const zero = (u) => {
      const y = u.valToPos(0, "y", true), c = u.ctx;
      Object.assign(c, { strokeStyle: colour("--ink"), lineWidth: devicePixelRatio });
      c.beginPath();
      c.moveTo(u.bbox.left, y);
      c.lineTo(u.bbox.left + u.bbox.width, y);
      c.stroke();
    };
    const intervals = (u) => {
      const c = u.ctx;
      for (const { rows, look } of this.shown.filter((one) => one.bold && one.rows.length < 3)) for (const row of rows) {
        if (row.length < 5 || Number.isNaN(row[3])) continue;
        Object.assign(c, { strokeStyle: look.colour, lineWidth: 2 * devicePixelRatio });
        c.beginPath();
        for (const end of [3, 4]) c.lineTo(u.valToPos(row[1], "x", true), u.valToPos(scale(row[end]), "y", true));
        c.stroke();
      }
    };
    const height = Math.min(440, Math.max(240, width * 0.45));
    box.style.minHeight = `${height}px`; // while a plot replaces another, what is below stays where it is
    this.plot?.destroy();
    this.plot = null;
    this.chosen = null;
    byId("heading").textContent = (difference ? "Difference in " : "") + metric.words + unit + (difference ? ", paired by seed, mean and 95 % interval" : paired ? " after the last step, a line for each seed, in bold the mean" : this.seeds.length > 1 ? ", mean of the seeds" : "");
    byId("whole").hidden = paired || !state.range.length;
    byId("readout").textContent = seen.length ? byId("readout").dataset.hint : "Nothing to draw: no run that is chosen here has this metric, or none has a pair.";
    if (!seen.length) return;
    this.plot = new uPlot({
      width, height, series, bands, legend: { show: false }, cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 8 } },
      scales: { x: { time: false, ...(paired ? { range: [-0.3, this.shownArms().length - 0.7] } : state.range.length === 2 ? { range: [from, to] } : {}) }, y: { range: [low - margin, high + margin] } },
      axes: [paired ? { ...axis, size: 34, splits: () => this.shownArms().map((_, place) => place), values: () => this.shownArms().map((arm) => arm.short) } : { ...axis, label: this.data.axes[difference ? "step" : state.axis], labelFont: "13px system-ui", labelSize: 22, size: 34, incrs: state.axis === "step" || difference ? [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000] : undefined }, { ...axis, size: 58 }],
      hooks: { drawAxes: difference ? [zero] : [], draw: difference ? [intervals] : [], setSelect: [(u) => this.zoom(u)] },
    }, tables.length > 1 ? uPlot.join(tables.map(([x, y]) => [x, y])) : tables[0], box);
    this.ring = element("div", { className: "ring" });
    this.ring.hidden = true;
    this.plot.over.append(this.ring);
  }

  // A part of the course that was drawn over with the mouse. The drawing thins what is denser than the screen.
  zoom(plot) {
    const { left, width } = plot.select;
    if (width < 8 || this.state.view === "pairs") return;
    this.dragged = true;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    setTimeout(() => { this.dragged = false; this.set({ range }); });
  }

  choose(line, index) {
    const row = line.rows[index], { metric, state } = this, difference = state.view === "difference";
    this.chosen = { line, index };
    this.ring.hidden = false;
    Object.assign(this.ring.style, { left: `${this.plot.valToPos(row[1], "x")}px`, top: `${this.plot.valToPos(row[2] * metric.scale, "y")}px`, borderColor: line.look.colour });
    const at = `step ${row[0]}` + (state.view === "curves" && state.axis !== "step" ? `, ${Math.round(row[1]).toLocaleString("en")} ${this.data.axes[state.axis]}` : "");
    const unit = unitOf(metric, difference), value = number(row[2], metric, difference) + (unit === "%" ? " %" : unit && ` ${unit}`);
    const interval = row.length > 3 && !Number.isNaN(row[3]) ? ` [${number(row[3], metric, true)}, ${number(row[4], metric, true)}], n = ${row[5]}` : "";
    const others = line.bold && difference ? this.lines.filter((other) => other.name === line.name && !other.bold) : [];
    const bySeed = others.map((other) => [other.seed, other.rows.find((r) => r[0] === row[0])]).filter(([, r]) => r).slice(0, 12);
    const each = bySeed.length > 1 ? `; seed ${bySeed.map(([seed, r]) => `${seed}: ${number(r[2], metric, true)}`).join(", ")}` : "";
    byId("readout").textContent = `${line.names ? line.names[index] : line.name}${line.bold ? (this.seeds.length > 1 ? ", mean" : "") : `, seed ${line.seed}`}, ${at}: ${value}${interval}${each}`;
  }

  point(event) {
    if (!this.plot) return;
    const box = this.plot.over.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let nearest = [Infinity];
    for (const line of this.shown) line.rows.forEach((row, index) => {
      const distance = Math.hypot(this.plot.valToPos(row[1], "x") - x, this.plot.valToPos(row[2] * this.metric.scale, "y") - y) - (line.bold ? 4 : 0);
      if (distance < nearest[0]) nearest = [distance, line, index];
    });
    if (nearest[1]) this.choose(nearest[1], nearest[2]);
  }

  // Half or twice as much of the course around the chosen point.
  scaleBy(factor) {
    if (this.state.view === "pairs") return;
    const [low, high] = [this.plot.scales.x.min, this.plot.scales.x.max], { line, index } = this.chosen || {};
    const centre = line ? line.rows[index][1] : (low + high) / 2, [first, last] = extremes(this.shown.flatMap((one) => [one.rows[0][1], one.rows.at(-1)[1]]));
    const half = factor * (high - low) / 2, range = [Math.max(first, centre - half), Math.min(last, centre + half)];
    this.set({ range: range[0] <= first && range[1] >= last ? [] : range });
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e9], End: [0, 1e9] };
    if (!this.plot) return;
    if (event.key === "+" || event.key === "-") this.scaleBy(event.key === "+" ? 0.5 : 2);
    else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (this.chosen) this.open();
    } else if (moves[event.key]) {
      event.preventDefault();
      const [down, right] = moves[event.key], lines = [...this.shown].sort((a, b) => !!b.bold - !!a.bold);
      if (!this.chosen) return this.choose(lines[0], lines[0].rows.length - 1);
      const line = lines[(lines.indexOf(this.chosen.line) + down + lines.length) % lines.length];
      const index = down ? line.rows.findIndex((row) => row[0] >= this.chosen.line.rows[this.chosen.index][0]) : this.chosen.index + right;
      this.choose(line, Math.min(line.rows.length - 1, Math.max(0, index < 0 ? line.rows.length : index)));
    }
  }

  // Completions of the chosen point: its step, or the nearest recorded one, and its seed, or the first with a record.
  open() {
    if (!this.chosen) return;
    const { line, index } = this.chosen, step = line.rows[index][0];
    this.browse(step, line.seed, line.arms.length ? line.arms : this.data.arms.map((arm) => arm.name));
    byId("completions").scrollIntoView({ block: "nearest" });
  }

  // Before anybody chooses: completions of the first and the last step that have any, of what is compared first.
  ends() {
    const [first] = this.state.comparisons.map((index) => this.comparisons[index]).filter(Boolean);
    const arms = first ? Object.keys(first.weights).sort((a, b) => first.weights[b] - first.weights[a]) : this.data.arms.slice(0, 1).map((arm) => arm.name);
    const steps = this.data.completions.filter((one) => arms.includes(one.arm)).map((one) => one.step), ends = [...new Set(extremes(steps))];
    if (!steps.length) return;
    const boxes = ends.map(() => element("div"));
    byId("completions").replaceChildren(element("div", { className: "beside" }, ...boxes));
    ends.forEach((step, i) => this.browse(step, null, arms, "", boxes[i]));
  }

  browse(step, seed, arms, chosenBy, panel = byId("completions")) {
    const recorded = this.data.completions.filter((one) => arms.includes(one.arm) && (seed == null || one.seed === seed));
    byId("completions").hidden = false;
    panel.replaceChildren(element("h3", { textContent: "Completions" }));
    if (!recorded.length) {
      const run = seed == null ? "These runs" : `Seed ${seed} of ${arms.join(" and ")}`;
      panel.append(element("p", { textContent: `${run} kept no completions. A run on disk keeps those of every tenth step (logger.rollouts_every); packed studies have curves and evaluations only.` }));
      return;
    }
    const nearest = recorded.reduce((a, b) => (Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a));
    const shown = recorded.filter((one) => one.step === nearest.step && one.seed === nearest.seed).sort((a, b) => arms.indexOf(a.arm) - arms.indexOf(b.arm));
    const problems = new Map();
    for (const one of shown) for (const row of one.rows) {
      const name = JSON.stringify([row.problem_id, row.attempt]);
      if (!problems.has(name)) problems.set(name, { row, arms: new Set() });
      problems.get(name).arms.add(one.arm);
    }
    const common = [...problems].sort((a, b) => b[1].arms.size - a[1].arms.size), select = element("select");
    common.forEach(([name, { row, arms: by }]) => select.append(new Option(`${String(row.prompt).replace(/\s+/g, " ").slice(0, 80)}${by.size < shown.length ? ` (${[...by].join(", ")} only)` : ""}`, name)));
    const steps = element("select", { ariaLabel: "step" }), seeds = element("select", { ariaLabel: "seed" });
    steps.append(...[...new Set(recorded.filter((one) => one.seed === nearest.seed).map((one) => one.step))].sort((a, b) => a - b).map((s) => new Option(`step ${s}`, s)));
    seeds.append(...[...new Set(this.data.completions.filter((one) => arms.includes(one.arm)).map((one) => one.seed))].map((s) => new Option(`seed ${s}`, s)));
    [steps.value, seeds.value] = [nearest.step, nearest.seed];
    steps.onchange = () => this.browse(+steps.value, nearest.seed, arms, "step", panel);
    seeds.onchange = () => this.browse(nearest.step, +seeds.value, arms, "seed", panel);
    const go = (by) => { select.selectedIndex = (select.selectedIndex + by + select.length) % select.length; list(); };
    const bar = element("div", { className: "controls" }, element("label", {}, steps), element("label", {}, seeds),
      element("button", { type: "button", textContent: "‹ previous", onclick: () => go(-1) }), element("label", {}, "problem ", select),
      element("button", { type: "button", textContent: "next ›", onclick: () => go(1) }));
    const away = nearest.step === step ? "" : `Step ${step} was not recorded; step ${nearest.step} is the nearest that was. `;
    const kept = shown.map((one) => one.of === null ? `${one.arm}: too large for a page, or damaged` : `${one.arm}: ${one.rows.length} of ${one.of}`).join(", ");
    const note = element("p", { className: "soft", textContent: `${away}Completions in this page, ${kept}; all are in rollouts/step_${String(nearest.step).padStart(6, "0")}.parquet.` + (shown.length > 1 ? " The arms of a seed share problems and random numbers." : "") + (shown.some((one) => one.rows.some((row) => row.ended_by)) ? " In a dashed box: what the environment said." : "") });
    const body = element("div");
    const list = () => {
      const { row } = problems.get(select.value), columns = element("div", { className: "beside" });
      for (const one of shown) {
        const rows = one.rows.filter((r) => JSON.stringify([r.problem_id, r.attempt]) === select.value);
        const rest = rows.slice(FEW), more = element("button", { type: "button", textContent: `all ${rows.length}`, onclick: () => more.replaceWith(...rest.map(completion)) });
        columns.append(element("div", {}, element("h4", { textContent: `${one.arm} ${rows.length ? `(${rows.filter((r) => r.correct).length} of ${rows.length} right)` : "did not ask this problem here"}` }), ...rows.slice(0, FEW).map(completion), rest.length ? more : ""));
      }
      body.replaceChildren(element("pre", { className: "text", textContent: row.prompt }), element("p", { className: "soft", textContent: `Answer: ${row.answer}` }), columns);
    };
    select.onchange = list;
    panel.append(bar, note, body);
    if (chosenBy) panel.querySelector(`[aria-label=${chosenBy}]`).focus(); // its predecessor went with the old panel
    list();
  }
}

function completion(row) {
  const verdict = row.correct == null ? "no verdict" : row.correct ? "right" : "wrong";
  const facts = [row.error, row.truncated && "truncated", row.kept ? "trained on" : "not trained on", row.tokens != null && `${row.tokens} tokens`, row.ended_by && `ended by ${ENDS[row.ended_by] ?? row.ended_by}`];
  for (const key of ["reward", "length_penalty", "reward_shaped", "advantage"]) if (row[key] != null) facts.push(`${key} ${+row[key].toPrecision(3)}`);
  return element("div", { className: `completion ${verdict.split(" ")[0]}` }, element("p", { className: "soft" }, element("b", { textContent: verdict }), ` · ${facts.filter(Boolean).join(" · ")}`), element("pre", { className: "text" }, ...spoken(row)));
}

// Every second piece is the environment's.
const spoken = (row) => row.response.map((text, place) => (place % 2 ? element("span", { className: "observation", title: "said by the environment: seen, and not trained on", textContent: text }) : text));
const ENDS = { environment: "its environment", turns: "the limit of turns", turn_tokens: "the limit of a turn", tokens: "the limit of tokens", observation_tokens: "the limit of observations", failed: "a failure of its environment" };

// Rows of tables sort by a click on the head of their column; longer tables have a filter.
const FILTERED = 6;
const value = (row, column) => row.cells[column].textContent.trim();
const size = (text) => parseFloat((text.match(/^[~<>≥≤x]?\s*([+−-]?[\d.,]+)/) || ["", ""])[1].replace("−", "-").replaceAll(",", ""));
function compare(a, b) {
  const [x, y] = [size(a), size(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b) : x - y;
}
for (const table of document.querySelectorAll(".wide table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  if (body.rows.length < 2) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column))));
    });
  });
  if (body.rows.length < FILTERED) continue;
  const filter = Object.assign(document.createElement("input"), { type: "search", placeholder: "filter rows" });
  filter.setAttribute("aria-label", "filter the rows of this table");
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  table.before(filter);
}

async function explore() {
  if (!byId("data")) return;
  const data = await unpacked(byId("data").textContent);
  byId("explore").hidden = false;
  globalThis.explorer = new Explorer(data);
}
explore().finally(() => { document.documentElement.dataset.ready = "true"; });
