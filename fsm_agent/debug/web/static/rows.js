// Rows that are edited: each change is sent, proved there, and written into the file only then.
import { Button, html, plural, useState, words } from "./ui.js";

/** The decision lists of one state. `row` is the one that a run took last. */
export function Rows({ shown, state, row, onState, onChange }) {
  const lists = shown.lists.filter((one) => one.state === state);
  return html`<div class="rows-head"><h2>Rows</h2><label><span class="sr">state</span><select value=${state} onChange=${(event) => onState(event.target.value)}>${shown.states.filter((one) => one !== shown.final).map((one) => html`<option value=${one}>${one}</option>`)}</select></label></div>
    ${lists.map((list) => html`<${List} key=${`${list.state}.${list.event}`} list=${list} shown=${shown} row=${row} onChange=${onChange} />`)}`;
}

function List({ list, shown, row, onChange }) {
  const [adding, setAdding] = useState(false);
  const name = `${list.state}.${list.event}`;
  const move = (index, by) => onChange({ kind: "move", state: list.state, event: list.event, rung: index + 1, by }, `Proved and written: ${list.rungs[index].words} moved ${by < 0 ? "up" : "down"} in ${name}.`);
  return html`<section class="list" aria-label=${name}>
    <h3>${words(list.event)} <span class="quiet">${list.why}${list.line ? ` · line ${list.line}` : ""}</span></h3>
    <ol class="rungs">${list.rungs.map((rung, index) => html`<li class=${rung.row === row ? "taken" : ""}><span class="rung-words">${rung.words}</span>${!list.refusal && list.rungs.length > 1 && html`<span class="rung-moves"><${Button} kind="icon" label=${`move ${rung.words} up in ${name}`} why=${index ? null : "it is the first"} onClick=${() => move(index, -1)}>↑<//><${Button} kind="icon" label=${`move ${rung.words} down in ${name}`} why=${index === list.rungs.length - 1 ? "it is the last" : null} onClick=${() => move(index, 1)}>↓<//></span>`}</li>`)}</ol>
    ${list.together.length > 0 && html`<p class="quiet">Written once, also for ${list.together.join(", ")}.</p>`}
    ${list.refusal ? html`<p class="quiet">Not changed here: ${list.refusal}.</p>` : adding ? html`<${Add} list=${list} shown=${shown} onClose=${() => setAdding(false)} onChange=${onChange} />` : html`<${Button} kind="link" label=${`add a rung to ${name}`} onClick=${() => setAdding(true)}>add a rung<//>`}
  </section>`;
}

/** A new rung: a remedy of the table, with a further guard or without, at a place of the list. */
function Add({ list, shown, onClose, onChange }) {
  const [chosen, setChosen] = useState({ at: 1, remedy: shown.remedies[0]?.source || "", guard: "" });
  const set = (name) => (event) => setChosen({ ...chosen, [name]: name === "at" ? Number(event.target.value) : event.target.value });
  const send = (event) => {
    event.preventDefault();
    onChange({ kind: "add", state: list.state, event: list.event, ...chosen }, `Proved and written: a rung was added to ${list.state}.${list.event}.`).then(onClose);
  };
  return html`<form class="add-rung" onSubmit=${send}>
    <label class="stack"><span>remedy</span><select value=${chosen.remedy} onChange=${set("remedy")}>${shown.remedies.map((one) => html`<option value=${one.source}>${one.words} (${one.source})</option>`)}</select></label>
    <label class="stack"><span>only if</span><select value=${chosen.guard} onChange=${set("guard")}><option value="">its own guard</option>${shown.guards.map((one) => html`<option value=${one.source}>${one.words} (${one.source})</option>`)}</select></label>
    <label class="stack"><span>place</span><select value=${chosen.at} onChange=${set("at")}>${list.rungs.map((rung, index) => html`<option value=${index + 1}>before ${rung.words}</option>`)}<option value=${list.rungs.length + 1}>last</option></select></label>
    <div class="buttons"><button type="submit" class="primary">Prove and add</button><${Button} label="close without a rung" onClick=${onClose}>Cancel<//></div>
  </form>`;
}

/** The numbers of the limits; those that the file does not write are only shown. */
export function Limits({ limits, onChange }) {
  if (!limits.length) return null;
  const written = limits.filter((one) => one.written);
  const others = limits.filter((one) => !one.written);
  return html`<section aria-label="limits" class="list"><h2>Limits</h2>
    ${written.map((one) => html`<${Limit} key=${one.name} one=${one} onChange=${onChange} />`)}
    ${others.length > 0 && html`<details><summary>${plural(others.length, "limit")} that ${written.length ? "other modules set" : "the file gives no number"}</summary><p class="quiet">${others.map(({ name, value }) => `${words(name)} ${value}`).join(", ")}</p></details>`}</section>`;
}

function Limit({ one, onChange }) {
  const [typed, setTyped] = useState(null);
  const value = typed ?? one.value;
  const send = (event) => {
    event.preventDefault();
    onChange({ kind: "limit", limit: one.name, value: Number(value) }, `Proved and written: ${words(one.name)} ${value}.`).then(() => setTyped(null));
  };
  return html`<form class="limit" onSubmit=${send}><label>${words(one.name)} <input type="number" min="0" step="1" required value=${value} onInput=${(event) => setTyped(event.target.value)} /></label>${Number(value) !== one.value && html`<button type="submit" class="primary">Prove and write</button>`}</form>`;
}
