// The page of a table that is being written: what is shown comes whole with each change, what is edited is sent and proved there.
import { listen, post } from "./api.js";
import { Diagram, Table } from "./diagram.js";
import { Limits, Rows } from "./rows.js";
import { useTheme } from "./theme.js";
import { Button, Fold, html, plural, render, useEffect, useMemo, useState, words } from "./ui.js";

const [START, END] = ["this is the start of the run", "this is the end of the run"];
const GONE = "The program that watches the file has ended.";
const BUSY = { loading: "loading …", proving: "proving …", comparing: "comparing …" };
const figure = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

function App() {
  const [view, setView] = useState(null);
  const [lost, setLost] = useState("");
  const [said, setSaid] = useState(null); // what became of the last change
  const [picked, setPicked] = useState(null);
  const [place, setPlace] = useState({ run: 0, at: 0 });
  const [whole, setWhole] = useState(false);
  const [theme, turnTheme] = useTheme();
  useEffect(() => listen("/api/live/events", (kind, data) => {
    setLost("");
    setView(data);
  }, (refusal) => setLost(refusal ? refusal.message : GONE)), []);
  const shown = view?.shown;
  const runs = useMemo(() => [...(said?.runs || []), ...(shown?.runs || [])], [said, shown]);
  useEffect(() => setPlace({ run: 0, at: 0 }), [runs.map((run) => run.title).join("\n")]);
  if (!view) return html`<p class="loading" role="status">${lost || "loading …"}</p>`;
  const run = runs[place.run];
  const last = run?.steps[place.at - 1];
  const here = run && place.at ? last.dest : null;
  const state = picked && shown?.states.includes(picked) ? picked : shown?.changes[0]?.row.split(".")[0] || shown?.states[0];
  const step = (to) => {
    setPlace(to);
    setPicked(runs[to.run].steps[Math.max(0, to.at - 1)]?.source || null);
  };
  const change = (path, body, done) => post(path, { ...body, mark: shown.mark }).then(
    (answer) => setSaid(answer.written ? { good: done } : { bad: "Not written, because the changed table is not proved:", findings: answer.findings, runs: answer.runs }),
    (error) => setSaid({ bad: error.message }),
  );
  const pick = (kind, name) => setPicked(kind === "state" ? name : name.split(kind === "row" ? "." : "→")[0]);
  const purpose = { label: "rows of", hint: "click for its rows", unseen: (name) => (name === shown.final ? "the end" : plural(shown.lists.filter((one) => one.state === name).length, "event")) };
  const picture = shown && { rows: shown.rows, engine: null, phase: "idle", look: here || (run && place.at === 0 && run.steps.length ? run.steps[0].source : state), move: last, visits: visited(run, place.at), breakpoints: [], onBreak: pick, onRun: pick };
  return html`<header class="bar live-bar">
      <h1>${view.file}${shown && html` <span class="quiet">table ${shown.name}</span>`}</h1>
      <${Verdict} view=${view} />
      ${shown && html`<span class="quiet base">compared with ${shown.base}</span>`}
      <span class="gap"></span>
      <${Button} label="take the last change of this page back" why=${view.canUndo ? null : "the file is not as a change of this page left it"} onClick=${() => change("/api/live/undo", {}, "The change was taken back.")}>Undo<//>
      <${Button} label=${theme === "dark" ? "light colors" : "dark colors"} kind="icon" onClick=${turnTheme}>◐<//>
    </header>
    ${lost && html`<p class="problem" role="alert">${lost}</p>`}
    ${view.broken && html`<p class="problem" role="alert" id="broken">${view.broken.line ? html`<b>Line ${view.broken.line}:</b> ` : ""}${view.broken.reason}${shown ? html` <span class="quiet">Below is the last good version.</span>` : ""}</p>`}
    ${shown && html`<main class="live" data-mark=${shown.mark}>
      <section class="picture" aria-label="picture">
        <div class="switch"><${Button} label="show the map" pressed=${!whole} onClick=${() => setWhole(false)}>Map<//><${Button} label="show the whole table" pressed=${whole} onClick=${() => setWhole(true)}>Table<//></div>
        <div class="picture-map" hidden=${whole}><${Diagram} svg=${shown.map} purpose=${purpose} ...${picture} /></div>
        ${whole && html`<${Table} svg=${shown.table} engine=${null} look=${picture.look} move=${last} breakpoints=${[]} onBreak=${pick} />`}
      </section>
      <div class="live-side">
        <${Said} said=${said} onClose=${() => setSaid(null)} />
        ${run && html`<${Stepper} runs=${runs} place=${place} rows=${shown.rows} onPlace=${step} />`}
        <${Changes} shown=${shown} />
        <${Proof} proof=${shown.proof} />
        <${Bounds} bounds=${shown.proof?.bounds} />
        <${Predicted} predicted=${shown.predicted} />
      </div>
      <section class="live-rows" aria-label="rows">
        <${Rows} shown=${shown} state=${state} onState=${setPicked} onChange=${(body, done) => change("/api/live/edit", body, done)} row=${last?.row} />
        <${Limits} limits=${shown.limits} onChange=${(body, done) => change("/api/live/edit", body, done)} />
      </section>
    </main>`}`;
}

function Verdict({ view }) {
  const proof = view.shown?.proof;
  const [kind, text] = view.broken ? ["bad", "broken"] : BUSY[view.busy] && !proof ? ["engine", BUSY[view.busy]] : proof?.ok ? ["good", "proved"] : ["bad", "not proved"];
  return html`<span class=${`chip verdict ${kind}`} role="status" id="verdict">${text}</span>${proof && BUSY[view.busy] && html`<span class="quiet">${BUSY[view.busy]}</span>`}`;
}

/** The visits and the moves of a run up to a position, as the map wants them. */
function visited(run, at) {
  const [states, arrows] = [new Map(), new Map()];
  const visit = (name) => states.set(name, { count: (states.get(name)?.count || 0) + 1, seconds: 0 });
  if (run?.steps.length) visit(run.steps[0].source);
  for (const step of run?.steps.slice(0, at) || []) {
    visit(step.dest);
    const name = `${step.source}→${step.dest}`;
    arrows.set(name, (arrows.get(name) || new Map()).set(step.row, (arrows.get(name)?.get(step.row) || 0) + 1));
  }
  return { states, arrows };
}

function Said({ said, onClose }) {
  return html`<div role="status" id="said">${said && html`<div class=${said.bad ? "problem" : "fine"}>
    <p>${said.bad || said.good}</p>${said.findings && html`<ul>${said.findings.map((one) => html`<li>${one}</li>`)}</ul>`}
    <${Button} label="close this message" kind="link" onClick=${onClose}>close<//></div>`}</div>`;
}

/** A run as moves: buttons, the keys ← → Home End, or a click on a move. */
function Stepper({ runs, place, rows, onPlace }) {
  const run = runs[place.run];
  const count = run.steps.length;
  const go = (at) => onPlace({ ...place, at: Math.max(0, Math.min(count, at)) });
  const keys = { ArrowLeft: place.at - 1, ArrowRight: place.at + 1, Home: 0, End: count };
  const press = (event) => {
    if (!(event.key in keys) || event.target.closest("select")) return;
    event.preventDefault();
    go(keys[event.key]);
  };
  const last = run.steps[place.at - 1];
  const first = Math.max(0, Math.min(place.at - 4, count - 8));
  const limits = Object.entries(run.limits).filter(([, most]) => most < 1e9).map(([name, most]) => `${words(name)} ${most}`).join(", ");
  return html`<section aria-label="run" class="run" onKeyDown=${press}>
    <h2>${run.title}</h2>
    ${runs.length > 1 && html`<label class="stack"><span>run</span><select value=${place.run} onChange=${(event) => onPlace({ run: Number(event.target.value), at: 0 })}>${runs.map((one, index) => html`<option value=${index}>${one.title}</option>`)}</select></label>`}
    ${limits && html`<p class="quiet">with ${limits}</p>`}
    <div class="buttons"><span class="group"><${Button} label="to the start" why=${place.at ? null : START} onClick=${() => go(0)}>|◀<//><${Button} label="one move back" why=${place.at ? null : START} onClick=${() => go(place.at - 1)}>◀<//><${Button} label="one move forward" why=${place.at === count ? END : null} onClick=${() => go(place.at + 1)}>▶<//><${Button} label="to the end" why=${place.at === count ? END : null} onClick=${() => go(count)}>▶|<//></span></div>
    <p role="status" id="move">${last ? html`Move ${place.at} of ${count}: ${last.source} · ${words(last.event)} → ${last.dest}${rows[last.row] && html`, by ${rows[last.row].rung}`}${last.changes.length ? html`; ${last.changes.map(([name, before, after]) => `${words(name)} ${before} → ${after}`).join(", ")}` : ""}` : `Before the first of ${plural(count, "move")}, in ${run.steps[0]?.source || "the first state"}`}.${place.at === count ? html` <b>${run.end}</b>.` : ""}</p>
    <ol class="run-moves" start=${first + 1}>${run.steps.slice(first, first + 8).map((step, index) => html`<li><button type="button" class="link" aria-current=${first + index + 1 === place.at ? "step" : null} onClick=${() => go(first + index + 1)}>${first + index + 1 === run.loop ? "↻ " : ""}${step.source} · ${words(step.event)} → ${step.dest}</button></li>`)}</ol>
  </section>`;
}

function Changes({ shown }) {
  const limits = shown.limits.filter((one) => one.before !== null && one.before !== one.value);
  const none = !shown.changes.length && !shown.names.length && !limits.length;
  return html`<section aria-label="what changed" id="changes"><h2>What changed</h2>
    <p>${shown.summary || (none ? "No row changed." : plural(shown.changes.length, "row") + ".")}</p>
    ${!none && html`<ul class="changes-list">${shown.changes.map((one) => html`<li class=${one.change}><span class="sign" aria-hidden="true">${one.sign}</span> <span class="sr">${one.change}</span><code>${one.row}</code> ${one.rung} ${one.leads}${one.what && html`<br /><span class="quiet">${one.what}</span>`}</li>`)}
      ${limits.map((one) => html`<li class="changed"><span class="sign" aria-hidden="true">~</span> limit <code>${one.name}</code> ${one.value}, was ${one.before}</li>`)}
      ${shown.names.map((one) => html`<li class=${one.change}><span class="sign" aria-hidden="true">~</span> ${one.kind} <code>${one.name}</code> ${one.change}${one.before && html`, was ${one.before}`}</li>`)}</ul>`}</section>`;
}

function Proof({ proof }) {
  if (!proof) return html`<section aria-label="proof"><h2>Proof</h2><p class="quiet">proving …</p></section>`;
  const failed = [...proof.checks.filter((one) => !one.ok), ...proof.properties.filter((one) => one.finding)];
  const passed = proof.checks.length + proof.properties.length - failed.length;
  return html`<section aria-label="proof" id="proof"><h2>Proof</h2>
    <p>${proof.ok ? "Every turn ends, exactly one row is open, and every property is as claimed." : "Not proved."}</p>
    ${failed.length > 0 && html`<ul class="findings">${failed.map((one) => html`<li><b>${one.name || one.says}</b>${(one.findings || [one.finding]).map((text) => html`<br />${text}`)}</li>`)}</ul>`}
    <${Fold} title=${`${passed} of ${passed + failed.length} checks and properties hold`}><ul>${proof.checks.filter((one) => one.ok).map((one) => html`<li>${one.name}</li>`)}${proof.properties.filter((one) => !one.finding).map((one) => html`<li>${one.says} <span class="quiet">${one.verdict}${one.known && `, known: ${one.known}`}</span></li>`)}</ul><//>
  </section>`;
}

function Bounds({ bounds }) {
  if (!bounds?.length) return null;
  const changed = bounds.some((one) => one.by);
  const capped = bounds.some((one) => one.caps);
  const name = (one) => `${one.quantity}${one.caps || !capped ? "" : ", without caps"}`;
  const legend = [...new Set(bounds.flatMap((one) => one.legend))];
  return html`<section aria-label="bounds" id="bounds"><h2>Bounds</h2><div class="scroll" tabindex="0" role="region" aria-label="table of the bounds"><table class="figures"><thead><tr><th scope="col">at most</th><th scope="col" class="num">before</th><th scope="col" class="num">now</th>${changed && html`<th scope="col">formula changed by</th>`}</tr></thead>
    <tbody>${bounds.map((one) => html`<tr class=${one.changed ? "changed" : ""}><th scope="row">${name(one)}</th><td class="num">${figure(one.before)}</td><td class="num">${figure(one.after)}</td>${changed && html`<td><code>${one.by}</code></td>`}</tr>`)}</tbody></table></div>
    <${Fold} title="Formulas"><ul class="formulas">${bounds.map((one) => html`<li>${name(one)}: <code>${one.formula}</code></li>`)}${legend.map((one) => html`<li>where <code>${one}</code></li>`)}</ul><//></section>`;
}

function Predicted({ predicted }) {
  if (!predicted) return null;
  const [before, now] = predicted;
  return html`<section aria-label="predicted" id="predicted"><h2>Predicted <span class="quiet">from ${plural(now.turns, "recorded turn")}</span></h2>
    <table class="figures"><thead><tr><th scope="col">a turn, on average</th><th scope="col" class="num">before</th><th scope="col" class="num">now</th></tr></thead>
    <tbody>${now.figures.map(({ name, value }, index) => html`<tr class=${before.figures[index]?.value === value ? "" : "changed"}><th scope="row">${name}</th><td class="num">${before.figures[index]?.value ?? "–"}</td><td class="num">${value}</td></tr>`)}</tbody></table></section>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
