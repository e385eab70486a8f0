// The player of recorded runs: what was recorded is in the page, nothing is loaded. A position is "after n moves".
"use strict";
const runs = JSON.parse(document.getElementById("runs").textContent);
const rows = JSON.parse(document.getElementById("rows").textContent);
const by = (id) => document.getElementById(id);
const words = (name) => String(name).replaceAll("_", " ");
const flat = [];

function listed(run, outer, depth) {
  const one = { ...run, outer, depth, number: flat.length };
  flat.push(one);
  one.children = run.children.map((child) => listed(child, one, depth + 1));
  return one;
}
for (const run of runs) listed(run, null, 0);

let run = flat[0];
let at = 0;
let clock = null;

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function choices() {
  for (const one of flat) {
    const end = one.exit ? words(one.exit) : "not at its end";
    const option = element("option", `${"\u00a0\u00a0".repeat(one.depth)}${one.asked || one.id || one.table}: ${one.steps.length} moves, ${end}`);
    option.value = one.number;
    by("run").append(option);
  }
}

/** The map of the run's table, with what it did up to here. */
function paint() {
  const seen = new Set();
  const ways = new Set();
  for (const step of run.steps.slice(0, at)) {
    seen.add(step.source).add(step.dest);
    ways.add(`${step.source}\n${step.dest}`);
  }
  const last = run.steps[at - 1];
  const here = last ? last.dest : run.steps[0].source;
  for (const map of document.querySelectorAll("[data-map]")) {
    map.hidden = map.dataset.map !== run.table;
    if (map.hidden) continue;
    for (const state of map.querySelectorAll("[data-state]")) {
      state.classList.toggle("here", state.dataset.state === here);
      if (state.dataset.state === here) centered(map.querySelector(".wide"), state);
      state.classList.toggle("faint", state.dataset.state !== here && !seen.has(state.dataset.state));
    }
    for (const arrow of map.querySelectorAll("[data-source]")) {
      const { source, dest } = arrow.dataset;
      arrow.classList.toggle("taken", Boolean(last) && source === last.source && dest === last.dest);
      arrow.classList.toggle("faint", !ways.has(`${source}\n${dest}`));
    }
  }
}

/** On a narrow screen the map is scrolled to the state. */
function centered(room, state) {
  const [inside, outside] = [state.getBoundingClientRect(), room.getBoundingClientRect()];
  room.scrollLeft += inside.left + inside.width / 2 - outside.left - outside.width / 2;
}

function told(last) {
  const lines = [];
  if (!last) lines.push(element("p", `Before the first move, in ${run.steps[0].source}.`));
  else {
    const end = last.exit ? ` ⇥ ${words(last.exit)}` : "";
    lines.push(element("p", `Move ${at} of ${run.steps.length}: ${last.source} · ${words(last.event)} → ${last.dest}${end}`, { class: "good" }));
    const row = rows[run.table]?.[last.row];
    if (row) lines.push(element("p", `${row.rung} if ${row.guard}. ${row.why}`));
    if (last.guards.length) lines.push(element("p", `Looked at: ${last.guards.map(([label, holds]) => `${holds ? "yes" : "no"}: ${label}`).join("; ")}`));
    if (last.changes.length) lines.push(element("p", `Changed: ${last.changes.map(([name, before, after]) => `${words(name)} ${before} → ${after}`).join(", ")}`));
    lines.push(element("p", `${(last.seconds * 1000).toFixed(last.seconds < 0.01 ? 2 : 0)} ms in ${last.source}`, { class: "quiet" }));
  }
  for (const child of run.children.filter((one) => one.at === at && one.steps.length)) {
    const button = element("button", `Into the turn that began here: ${child.asked || child.id}`);
    button.addEventListener("click", () => open(child, 0));
    lines.push(button);
  }
  if (run.outer) {
    const button = element("button", `Back to ${run.outer.asked || run.outer.id || run.outer.table}`);
    const { outer, at: began } = run;
    button.addEventListener("click", () => open(outer, began));
    lines.push(button);
  }
  by("move").replaceChildren(...lines);
}

/** Moves around the one that is shown: a page of 20,000 of them stays quick. */
function list() {
  const first = Math.max(0, Math.min(at - 5, run.steps.length - 10));
  const items = run.steps.slice(first, first + 10).map((step, index) => {
    const number = first + index + 1;
    const item = document.createElement("li");
    const button = element("button", `${number}. ${step.source} · ${words(step.event)} → ${step.dest}`, number === at ? { "aria-current": "step" } : {});
    button.addEventListener("click", () => go(number));
    item.append(button);
    return item;
  });
  by("moves").replaceChildren(...items);
}

function show() {
  const last = run.steps[at - 1];
  paint();
  told(last);
  list();
  by("place").max = run.steps.length;
  by("place").value = at;
  by("place").setAttribute("aria-valuetext", `move ${at} of ${run.steps.length}`);
  by("run").value = run.number;
  by("first").disabled = by("back").disabled = at === 0;
  by("last").disabled = by("next").disabled = at === run.steps.length;
  by("play").textContent = clock ? "Pause" : "Play";
}

function go(to) {
  at = Math.max(0, Math.min(to, run.steps.length));
  if (at === run.steps.length) halt();
  show();
}

function open(one, position) {
  run = one;
  halt();
  go(position);
}

function halt() {
  clearInterval(clock);
  clock = null;
}

function play() {
  if (clock) halt();
  else {
    if (at === run.steps.length) at = 0;
    clock = setInterval(() => go(at + 1), 900);
  }
  show();
}

const KEYS = { ArrowLeft: () => go(at - 1), ArrowRight: () => go(at + 1), Home: () => go(0), End: () => go(run.steps.length) };
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select, input, .wide")) return;
  if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});
choices();
by("run").addEventListener("change", () => open(flat[Number(by("run").value)], 0));
by("place").addEventListener("input", () => go(Number(by("place").value)));
for (const [id, act] of [["first", KEYS.Home], ["back", KEYS.ArrowLeft], ["play", play], ["next", KEYS.ArrowRight], ["last", KEYS.End]]) by(id).addEventListener("click", act);
show();
