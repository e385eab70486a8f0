// Which turn: a tree of turns with their children and forks, to filter and to choose from.
import { get } from "./api.js";
import { Button, html, money, plural, short, useEffect, useRef, useState, when, words } from "./ui.js";

/** Lists that drop down close when one presses Escape, or somewhere else. */
export function useDropped(box) {
  useEffect(() => {
    const away = (event) => {
      if (box.current?.open && !box.current.contains(event.target)) box.current.open = false;
    };
    const leave = (event) => {
      if (event.key !== "Escape" || !box.current?.open) return;
      box.current.open = false;
      box.current.querySelector("summary").focus();
    };
    addEventListener("pointerdown", away);
    addEventListener("keydown", leave);
    return () => {
      removeEventListener("pointerdown", away);
      removeEventListener("keydown", leave);
    };
  }, []);
}

const outcomeOf = (one) => one.outcome || (one.ended === null ? "unfinished" : "ended");
const kindOf = (one) => (one.forked_at !== null ? `fork at ${one.forked_at}` : one.parent ? "child" : "");
const said = (one) => [one.asked, outcomeOf(one), one.model, one.agent, one.id, kindOf(one), when(one.began)].join(" ").toLowerCase();

/** A turn in one line and a half. */
export const TurnLine = ({ one }) => html`<span class=${`outcome ${outcomeOf(one)}`}>${words(outcomeOf(one))}</span><span class="asked">${short(one.asked, 70) || one.id}</span>
  <span class="quiet">${[kindOf(one), ["", "agent"].includes(one.agent) ? "" : one.agent, plural(one.seq, "move"), when(one.began), one.model, one.tokens ? `${one.tokens.toLocaleString("en")} tokens, ${money(one.cost)}` : ""].filter(Boolean).join(" · ")}</span>`;

/** Turns whose words are all in the filter's reach, with the turns above them. */
function filtered(turns, filter) {
  const wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return turns;
  const keep = turns.map((one) => wanted.every((word) => said(one).includes(word)));
  for (let i = turns.length - 1; i >= 0; i -= 1) {
    if (!keep[i] || !turns[i].depth) continue;
    for (let up = i - 1, depth = turns[i].depth; up >= 0 && depth; up -= 1)
      if (turns[up].depth < depth) [keep[up], depth] = [true, turns[up].depth];
  }
  return turns.filter((_, i) => keep[i]);
}

export function TurnPicker({ info, onOpen, turn, onMenu, why }) {
  const [turns, setTurns] = useState(null);
  const [filter, setFilter] = useState("");
  const [problem, setProblem] = useState("");
  const box = useRef(null);
  useDropped(box);
  const opened = (event) => event.currentTarget.open && get("/api/turns?limit=200").then((found) => (setTurns(found.turns), setProblem("")), (error) => setProblem(error.message));
  const outcome = info ? outcomeOf(info) : "";
  const shown = filtered(turns || [], filter);
  return html`<details class="picker" ref=${box} onToggle=${opened}>
    <summary aria-label=${`turn: ${info?.asked || turn}`}><span class=${`outcome ${outcome}`}>${words(outcome) || "…"}</span> <span class="asked">${info?.asked || turn}</span></summary>
    <div class="drop"><div class="picker-head"><input type="search" aria-label="filter turns" placeholder="words, outcome, model, date …" value=${filter} onInput=${(event) => setFilter(event.currentTarget.value)} />
      <${Button} label="new turn" why=${why} onClick=${() => { box.current.open = false; onMenu("new"); }}>New turn …<//></div>
    ${problem && html`<p class="problem">${problem}</p>`}
    <ul aria-label="turns, with their children and forks below them">${shown.map((one) => html`<li key=${one.id} class=${one.depth ? "below" : ""} style=${{ paddingLeft: `${1.2 * Math.min(one.depth, 8)}rem` }}><button type="button" class=${one.id === turn ? "current" : ""} aria-current=${one.id === turn ? "true" : null} onClick=${() => { box.current.open = false; onOpen(one.id, one.table_name); }}><${TurnLine} one=${one} /></button></li>`)}</ul>
    ${turns && !shown.length && html`<p class="quiet">No turn matches.</p>`}</div>
  </details>`;
}

/** The turns beside which one can be put. */
export function Pick({ turn, info, onPick, frame: Frame, onClose }) {
  const [turns, setTurns] = useState([]);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    get("/api/turns?limit=200").then((found) => setTurns(found.turns.filter((one) => one.id !== turn)), (error) => setProblem(error.message));
  }, []);
  const near = (one) => (one.id === info?.parent || one.parent === turn || (one.parent && one.parent === info?.parent) ? 0 : 1);
  const sorted = [...turns].sort((a, b) => near(a) - near(b));
  return html`<${Frame} title="Compare with" onClose=${onClose}>${problem && html`<p class="problem">${problem}</p>`}<ul class="pick">${sorted.map((one) => html`<li key=${one.id}><button type="button" onClick=${() => onPick(one.id)}><${TurnLine} one=${one} />${!near(one) && html`<span class="quiet">related by a fork</span>`}</button></li>`)}</ul>
    ${turns.length === 0 && html`<p class="quiet">This home has no other turn.</p>`}<//>`;
}
