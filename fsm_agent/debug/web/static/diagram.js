// The map of states. It is laid out once by the program; afterwards only classes and the data of texts that are there change.
import { Button, html, plural, seconds, useLayoutEffect, useRef, useState, short, words as spaced } from "./ui.js";

const LONGEST = 14; // characters of a name on a line that has no longer label of its own
const SHORTEST = 8; // characters of a name on a short line
const NS = "http://www.w3.org/2000/svg";

/** Everything that is ever shown is put in at the start, so that a running turn inserts nothing. */
class Drawn {
  constructor(root, rows, onBreak, onRun, purpose) {
    this.rows = rows;
    this.purpose = purpose;
    this.states = new Map();
    this.arrows = new Map();
    this.marked = new Map();
    for (const group of root.querySelectorAll("[id^='state-']")) this.prepare(group, group.dataset.state, this.states, "state");
    for (const group of root.querySelectorAll("[id^='arrow-']"))
      this.prepare(group, `${group.dataset.source}→${group.dataset.dest}`, this.arrows, "arrow");
    this.all = [...this.states.values(), ...this.arrows.values()].map((one) => one.group);
    this.all[0]?.setAttribute("tabindex", "0"); // one stop for the tabulator; the arrow keys go through the rest
    for (const [kind, all] of [["state", this.states], ["arrow", this.arrows]])
      for (const [name, one] of all) {
        const act = (event) => (event.altKey || event.shiftKey ? onRun(kind, name) : onBreak(kind, name));
        one.group.addEventListener("click", act);
        one.group.addEventListener("keydown", (event) => {
          if (event.key === "ArrowRight" || event.key === "ArrowLeft") return this.go(event, one.group);
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          event.stopPropagation();
          act(event);
        });
      }
  }

  go(event, from) {
    event.preventDefault();
    event.stopPropagation();
    const step = event.key === "ArrowRight" ? 1 : -1;
    const to = this.all[(this.all.indexOf(from) + step + this.all.length) % this.all.length];
    for (const one of this.all) one.setAttribute("tabindex", one === to ? "0" : "-1");
    to.focus();
  }

  prepare(group, name, into, kind) {
    group.setAttribute("tabindex", "-1");
    group.setAttribute("role", "button");
    group.setAttribute("aria-pressed", "false");
    group.setAttribute("aria-label", `${this.purpose.label} ${kind} ${name.replace("→", " to ")}`);
    const dot = document.createElementNS(NS, "circle");
    dot.setAttribute("class", "dot");
    dot.setAttribute("r", kind === "state" ? 7 : 6);
    const title = document.createElementNS(NS, "title");
    title.textContent = this.hint(group, name, kind);
    if (kind === "state") {
      const box = group.querySelector(".box");
      const [x, y, width] = ["x", "y", "width"].map((side) => Number(box.getAttribute(side)));
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      const engine = document.createElementNS(NS, "text");
      engine.setAttribute("class", "here");
      engine.setAttribute("x", x + width - 10);
      engine.setAttribute("y", y + 21);
      engine.appendChild(document.createTextNode(""));
      group.append(engine);
    } else {
      const halo = group.querySelector(".halo");
      const line = group.querySelector(".line");
      const wide = Number(halo.getAttribute("width"));
      const touch = line.cloneNode();
      touch.setAttribute("class", "touch");
      group.prepend(touch);
      const middle = line.getPointAtLength(line.getTotalLength() / 2);
      dot.setAttribute("cx", wide > 12 ? Number(halo.getAttribute("x")) - 2 : middle.x);
      dot.setAttribute("cy", wide > 12 ? Number(halo.getAttribute("y")) + Number(halo.getAttribute("height")) / 2 : middle.y);
    }
    group.append(dot);
    group.prepend(title);
    into.set(name, { group, intro: group.querySelector(".intro"), here: group.querySelector(".here"), label: labelOf(group), classes: "" });
  }

  hint(group, name, kind) {
    const rows = (group.dataset.rows || "").split(" ").filter(Boolean);
    return `${name}: ${this.purpose.hint}${kind === "arrow" ? `\n${rows.join("\n")}` : ""}`;
  }

  show({ engine, phase, look, move, visits, breakpoints }) {
    const broken = new Set(breakpoints.filter((one) => one.enabled).map((one) => `${one.kind} ${one.target}`));
    const off = new Set(breakpoints.filter((one) => !one.enabled).map((one) => `${one.kind} ${one.target}`));
    const taken = move ? `${move.source}→${move.dest}` : "";
    for (const [name, one] of this.states) {
      const seen = visits.states.get(name);
      classes(one, {
        engine: name === engine, look: name === look, seen: Boolean(seen), running: name === engine && phase === "running",
        broken: broken.has(`state ${name}`), off: off.has(`state ${name}`),
      });
      words(one.intro, seen ? [plural(seen.count, "visit"), seconds(seen.seconds || null)].filter(Boolean).join(" · ") : this.purpose.unseen(name));
      words(one.here, name === engine ? (phase === "ended" ? "■" : phase === "running" ? "▶" : "❚❚") : "");
    }
    for (const [name, one] of this.arrows) {
      const seen = visits.arrows.get(name);
      relabel(one.label, seen && this.said(seen, one.label?.most ?? LONGEST));
      classes(one, {
        look: name === taken, seen: Boolean(seen), broken: broken.has(`arrow ${name}`), off: off.has(`arrow ${name}`),
      });
    }
  }

  /** What took an arrow most often, how often, and how many others did. */
  said(taken, room) {
    const counts = new Map();
    for (const [row, count] of taken) counts.set(this.name(row), (counts.get(this.name(row)) || 0) + count);
    const [[name, count], ...others] = [...counts].sort((a, b) => b[1] - a[1]);
    return `${short(name, room)} ×${count.toLocaleString("en")}${others.length ? ` +${others.length}` : ""}`;
  }

  name(id) {
    const row = this.rows[id];
    if (row?.exit) return spaced(row.exit);
    return !row || row.rung.startsWith("→") ? spaced(id.split(".").at(-1).split("/")[0]) : row.rung;
  }
}

/** The text on a line, the box behind it, and what both were at first. */
function labelOf(group) {
  const [text, halo] = [group.querySelector(".label"), group.querySelector(".halo")];
  if (!text?.firstChild || !halo) return null;
  const [width, first, long] = [Number(halo.getAttribute("width")), text.textContent, text.getComputedTextLength()];
  const line = group.querySelector(".line").getBBox();
  const fits = line.height < 2 ? Math.floor((line.width - 24) / ((1.15 * long) / first.length)) - 3 : Infinity; // a level line stays in sight beside its label, which is bold if it was taken last
  const most = Math.max(SHORTEST, Math.min(fits, Math.max(LONGEST, first.length)));
  return { text, halo, first, shown: first, most, middle: Number(halo.getAttribute("x")) + width / 2, room: width - long };
}

function relabel(label, wanted) {
  if (!label) return;
  const said = wanted || label.first;
  if (said === label.shown) return;
  label.shown = said;
  (label.text.querySelector("tspan") || label.text).firstChild.data = said;
  const width = label.text.getComputedTextLength() + Math.max(4, label.room);
  label.halo.setAttribute("width", width);
  label.halo.setAttribute("x", label.middle - width / 2);
}

function classes(one, wanted) {
  const text = Object.entries(wanted).filter(([, on]) => on).map(([name]) => name).join(" ");
  if (text === one.classes) return;
  for (const [name, on] of Object.entries(wanted)) one.group.classList.toggle(name, on);
  one.group.setAttribute("aria-pressed", String(Boolean(wanted.broken)));
  one.classes = text;
}

function words(element, text) {
  if (element?.firstChild && element.firstChild.data !== text) element.firstChild.data = text;
}

/** What a click on the map is for, and what a box says that no turn has entered. */
const BREAKPOINTS = { label: "breakpoint on", hint: "click for a breakpoint, Shift-click to run to here", unseen: () => "not visited" };

export function Diagram({ svg, rows, onBreak, onRun, purpose = BREAKPOINTS, ...shown }) {
  const place = useRef(null);
  const drawn = useRef(null);
  const acts = useRef({});
  acts.current = { onBreak, onRun };
  useLayoutEffect(() => {
    place.current.innerHTML = svg;
    place.current.querySelector("svg").setAttribute("role", "group"); // its states and arrows are buttons
    drawn.current = new Drawn(place.current, rows, (...a) => acts.current.onBreak(...a), (...a) => acts.current.onRun(...a), purpose);
  }, [svg]);
  useLayoutEffect(() => drawn.current.show(shown));
  useLayoutEffect(() => {
    const box = place.current.parentElement; // it scrolls where the page is too narrow for the map
    const state = drawn.current.states.get(shown.look)?.group.getBoundingClientRect();
    if (state && box.scrollWidth > box.clientWidth) box.scrollLeft += state.x + state.width / 2 - box.getBoundingClientRect().x - box.clientWidth / 2;
  }, [shown.look, svg]);
  return html`<div id="map" class="map" ref=${place} role="group" aria-label="map of the states; the left and right keys go through states and arrows"></div>`;
}

/** The whole table, as wide as there is room or at its own size: the line and the rung that were taken are marked; a click on a line sets a breakpoint on its rows. */
export function Table({ svg, engine, look, move, breakpoints, onBreak }) {
  const place = useRef(null);
  const [fits, setFits] = useState(true);
  useLayoutEffect(() => {
    place.current.innerHTML = svg;
    for (const one of place.current.querySelectorAll("[id]")) one.id = `table-${one.id}`; // those of the map are there, too
  }, [svg]);
  useLayoutEffect(() => {
    const root = place.current;
    const broken = new Set(breakpoints.filter((one) => one.kind === "row" && one.enabled).map((one) => one.target));
    for (const one of root.querySelectorAll("[data-rows]")) {
      const rows = one.dataset.rows.split(" ");
      one.classList.toggle("taken", Boolean(move) && rows.includes(move.row) && !one.id);
      one.classList.toggle("broken", rows.some((row) => broken.has(row)));
      one.classList.toggle("look", Boolean(move) && one.id === `table-arrow-${move.source}-${move.dest}`);
    }
    for (const one of root.querySelectorAll("[data-state]")) {
      one.classList.toggle("engine", one.dataset.state === engine);
      one.classList.toggle("look", one.dataset.state === look);
    }
  });
  useLayoutEffect(() => {
    place.current.querySelector(move ? `#table-state-${CSS.escape(move.source)}` : "[data-state]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [move?.source]);
  const click = (event) => {
    const rows = event.target.closest("[data-rows]")?.dataset.rows;
    if (rows) onBreak("row", rows.split(" ")[0]);
  };
  return html`<div class=${`table-view${fits ? " fits" : ""}`} tabindex="0" role="group" aria-label="the whole table"><div ref=${place} onClick=${click}></div></div>
    <div class="switch size"><${Button} label=${fits ? "show the table at its own size" : "fit the table to the width"} onClick=${() => setFits(!fits)}>${fits ? "1:1" : "Fit"}<//></div>`;
}
