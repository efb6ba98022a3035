"use strict";
// The page asks the planner behind it and draws the answers; it computes nothing but positions on the screen.

const $ = (id) => document.getElementById(id);
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 5", "1 4", "12 4", "3 1"];
const places = new Map(); // of methods, in the order in which they were first seen: a method keeps its colour
const styleOf = (method) => {
  if (!places.has(method)) places.set(method, places.size);
  const place = places.get(method);
  return { colour: `var(--m${place % 8})`, dash: DASHES[place % 8] };
};

// -- sliders and fields: a slider is a logarithmic scale for the field beside it ---------------------------------

const LAST = 1000;
const sliders = [...document.querySelectorAll("input[type=range]")];

const round = (value, digits) => Number(value.toPrecision(digits));
const fieldOf = (slider) => $(slider.dataset.for);
const ends = (slider) => [Math.log(slider.dataset.low), Math.log(slider.dataset.high)];

function fieldFromSlider(slider) {
  const [low, high] = ends(slider), digits = Number(slider.dataset.digits);
  const value = round(Math.exp(low + ((high - low) * slider.value) / LAST), digits);
  const open = slider.dataset.open && Number(slider.value) === LAST;
  fieldOf(slider).value = open ? "" : slider.dataset.for === "mu" ? value : Math.round(value);
  tell(slider);
}

function sliderFromField(slider) {
  const [low, high] = ends(slider), text = fieldOf(slider).value.trim(), value = Number(text);
  if (slider.dataset.open && text === "") slider.value = LAST;
  else if (value > 0) slider.value = Math.round((LAST * (Math.log(value) - low)) / (high - low));
  tell(slider);
}

function tell(slider) {
  slider.setAttribute("aria-valuetext", fieldOf(slider).value || "any number");
}

// -- asking: one question at a time; of those that come up meanwhile, the last -------------------------------------

let busy = false, waiting = null;
let current = null; // the answer that is on the page

function question() {
  const asked = new URLSearchParams(new FormData($("facts")));
  asked.set("bounded", $("bounded").checked ? "true" : "");
  $("sites").disabled = $("sites-slider").disabled = $("sizes").value.includes(",");
  return asked.toString();
}

async function ask(moved = performance.now()) {
  if (busy) { waiting = moved; return; }
  busy = true;
  try {
    const reply = await fetch(`plan?${question()}`);
    if (reply.ok) await read(reply, moved);
    else showError((await reply.json()).error);
  } catch {
    showError("fedmest explore no longer answers: it was stopped, or its machine is asleep");
  }
  busy = false;
  if (waiting !== null) { const next = waiting; waiting = null; ask(next); }
}

async function read(reply, moved) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", parts = 0, answered = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    text += value;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n")) {
      const part = JSON.parse(text.slice(0, end));
      text = text.slice(end + 1);
      parts += 1;
      if (parts === 1) {
        current = part;
        showPlan(part);
        answered = performance.now() - moved;
      } else {
        Object.assign(current, part);
        showCurves(current);
        showTiming(answered, performance.now() - moved);
      }
    }
  }
}

function showTiming(answered, drawn) {
  $("timing").textContent = `Answered in ${answered.toFixed(0)} ms, curves drawn after ${drawn.toFixed(0)} ms.`;
  $("timing").dataset.answered = answered;
  $("timing").dataset.drawn = drawn;
  $("timing").dataset.count = Number($("timing").dataset.count || 0) + 1;
}

function showError(words) {
  $("error").textContent = words;
  $("found").hidden = true;
  $("timing").textContent = "";
}

// -- the plan ------------------------------------------------------------------------------------------------------

function element(tag, words, ...kinds) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  if (kinds.length) made.className = kinds.join(" ");
  return made;
}

function showPlan(answer) {
  $("error").textContent = "";
  $("found").hidden = false;
  $("choice").textContent = `Choose ${answer.title}`;
  const errors = answer.has_intervals ? "with standard errors" : "without valid standard errors";
  $("expected").textContent = `Expected error: ${answer.expected} times that of the pooled fit without privacy; a slope will be `
    + `known to ±\u00a0${answer.half_width} (95 %), ${errors}. ${answer.rounds} rounds, ${answer.megabytes} MB.`;
  $("command").textContent = answer.command;
  $("done").textContent = "";
  $("notes").replaceChildren(...[answer.legend, ...answer.notes].map((note) => element("li", note)));
  const table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  answer.heads.forEach((name, column) => {
    const cell = element("th", name, ...(column ? ["n"] : []));
    cell.scope = "col";
    head.append(cell);
  });
  for (const cells of answer.rows) {
    const row = body.insertRow();
    if (cells[0] === answer.method) row.className = "chosen";
    cells.forEach((words, column) => {
      const cell = element(column ? "td" : "th", column ? words : undefined, ...(column ? ["n"] : []));
      if (!column) { cell.scope = "row"; cell.append(swatch(words), words); }
      row.append(cell);
    });
  }
  const frame = element("div", undefined, "wide");
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Every method");
  frame.append(table);
  $("methods").replaceChildren(frame);
}

// -- curves: logarithmic axes, one line per method, its name where it ends ----------------------------------------

const SVG = "http://www.w3.org/2000/svg";
function shape(tag, attributes, words) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

function swatch(method) {
  const { colour, dash } = styleOf(method);
  const box = shape("svg", { class: "swatch", viewBox: "0 0 26 8", "aria-hidden": "true" });
  box.append(shape("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: colour, "stroke-dasharray": dash }));
  return box;
}

function showCurves(answer) {
  const methods = Object.keys(answer.curves), plan = answer.plan;
  const at = plan.methods.find((m) => m.method === answer.method);
  const errors = methods.flatMap((m) => [...answer.curves[m].mu, ...answer.curves[m].rounds].map((p) => p[1]));
  const lowest = Math.min(plan.pooled_mse, ...answer.lower_bound.map((p) => p[1]), ...errors);
  const highest = Math.min(Math.max(...errors, plan.pooled_mse), 3 * answer.zero);
  const y = [lowest / 1.4, Math.max(highest * 1.4, lowest * 10)];
  const flat = (x, error) => x.map((end) => [end, error]);
  const range = [0.1, 10];
  const most = Math.max(10, ...methods.flatMap((m) => answer.curves[m].rounds.map((p) => p[0])));
  const rounds = [1, most * 1.1];
  draw($("by-mu"), range, y, "mu", {
    curves: methods.map((m) => [m, answer.curves[m].mu]), now: plan.mu, ring: [plan.mu, at.mse],
    references: [["1 4", flat(range, plan.pooled_mse)], ["6 4", answer.lower_bound], ["", flat(range, answer.zero)]],
  });
  const limit = Number($("rounds").value) || null;
  draw($("by-rounds"), rounds, y, "rounds, those for scales and bound included", {
    curves: methods.map((m) => [m, answer.curves[m].rounds]), now: limit, ring: [at.rounds, at.mse],
    references: [["1 4", flat(rounds, plan.pooled_mse)], ["6 4", flat(rounds, plan.lower_bound)], ["", flat(rounds, answer.zero)]],
  });
  const values = methods.map((m) => `${m} ${plan.methods.find((o) => o.method === m).mse?.toPrecision(3) ?? "without limit"}`);
  $("by-mu").setAttribute("aria-label", `Expected error against mu. At mu = ${plan.mu}: ${values.join(", ")}.`);
  $("by-rounds").setAttribute("aria-label", `Expected error against rounds. The choice takes ${at.rounds} rounds.`);
}

const W = 460, H = 340, LEFT = 58, RIGHT = 84, TOP = 8, BOTTOM = 44;

function draw(svg, xs, ys, label, { curves, references, now, ring }) {
  const scale = (ends, from, to) => (v) => from + ((Math.log(v) - Math.log(ends[0])) / (Math.log(ends[1]) - Math.log(ends[0]))) * (to - from);
  const X = scale(xs, LEFT, W - RIGHT), Y = scale(ys, H - BOTTOM, TOP);
  const path = (points) => points.map(([a, b]) => `${X(a).toFixed(1)},${Y(b).toFixed(1)}`).join(" ");
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  const clip = `${svg.id}-inside`;
  const parts = [shape("clipPath", { id: clip })];
  parts[0].append(shape("rect", { x: LEFT, y: TOP, width: W - RIGHT - LEFT, height: H - BOTTOM - TOP }));
  for (const value of ticks(xs, 8)) {
    parts.push(shape("line", { class: "grid", x1: X(value), x2: X(value), y1: TOP, y2: H - BOTTOM }));
    parts.push(shape("text", { x: X(value), y: H - BOTTOM + 16, "text-anchor": "middle" }, short(value)));
  }
  for (const value of ticks(ys, 7)) {
    parts.push(shape("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: Y(value), y2: Y(value) }));
    parts.push(shape("text", { x: LEFT - 6, y: Y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  const inside = shape("g", { "clip-path": `url(#${clip})` });
  for (const [dash, points] of references) inside.append(shape("polyline", { class: "ref", points: path(points), "stroke-dasharray": dash }));
  if (now) inside.append(shape("line", { class: "now", x1: X(now), x2: X(now), y1: TOP, y2: H - BOTTOM }));
  const names = [];
  for (const [method, points] of curves) {
    const { colour, dash } = styleOf(method);
    inside.append(shape("polyline", { class: "line", "data-method": method, points: path(points), stroke: colour, "stroke-dasharray": dash }));
    for (const [a, b] of points) inside.append(shape("circle", { cx: X(a), cy: Y(b), r: points.length > 1 ? 2.2 : 4, fill: colour }));
    const visible = points.filter((p) => p[1] <= ys[1] && p[1] >= ys[0]);
    if (visible.length) names.push({ method, colour, x: X(visible.at(-1)[0]), y: Y(visible.at(-1)[1]) });
  }
  parts.push(inside);
  if (ring[1] !== null) parts.push(shape("circle", { class: "ring", cx: X(ring[0]), cy: Y(ring[1]), r: 6, fill: "none", stroke: "var(--ink)", "stroke-width": 2 }));
  names.sort((a, b) => a.y - b.y);
  names.forEach((name, i) => { if (i) name.y = Math.max(name.y, names[i - 1].y + 13); });
  const over = Math.max(0, (names.at(-1)?.y ?? 0) - (H - BOTTOM));
  for (const { method, colour, y } of names) {
    const name = shape("text", { class: "name", x: W - RIGHT + 6, y: y - over + 4 }, method);
    name.style.fill = colour;
    parts.push(name);
  }
  parts.push(shape("text", { x: (LEFT + W - RIGHT) / 2, y: H - 8, "text-anchor": "middle" }, label));
  svg.replaceChildren(...parts);
}

function ticks([low, high], most) {
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
      for (const step of steps) {
        const value = step * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    if (found.length <= most) return found;
    if (steps.length === 1) return found.filter((_, i) => i % Math.ceil(found.length / most) === 0);
  }
  return [];
}

function short(value) {
  return value >= 0.001 && value < 10000 ? String(Number(value.toPrecision(3))) : value.toExponential(0).replace("e+", "e");
}

// -- actions -------------------------------------------------------------------------------------------------

for (const slider of sliders) {
  slider.min = 0;
  slider.max = LAST;
  slider.step = 1;
  sliderFromField(slider);
  slider.addEventListener("input", () => { fieldFromSlider(slider); ask(); });
  fieldOf(slider).addEventListener("input", () => { sliderFromField(slider); ask(); });
}
for (const id of ["model", "bounded"]) $(id).addEventListener("input", () => ask());
$("facts").addEventListener("submit", (event) => event.preventDefault());

$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(current.command);
    $("done").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren($("command"));
    $("done").textContent = "Press Ctrl+C to copy what is marked.";
  }
});

$("save").addEventListener("click", () => {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(current.plan, null, 2) + "\n"], { type: "application/json" }));
  link.download = "plan.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  $("done").textContent = "Saved as plan.json.";
});

ask();
