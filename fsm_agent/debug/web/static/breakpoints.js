// The list of breakpoints, with conditions, hits and logpoints; and what was noted.
import { Button, html, useState } from "./ui.js";

const KINDS = ["state", "arrow", "event", "row", "exit"];

const HELD = { model: "each request to the model", tool: "each call of a tool", request: "each request of a state" };

export function Breakpoints({ breakpoints, targets, onBreakpoints, onRun, logs, holds, hold, onHold, alive }) {
  const [kind, setKind] = useState("state");
  const [target, setTarget] = useState("");
  const chosen = targets[kind].includes(target) ? target : targets[kind][0];
  const change = (one, values) => onBreakpoints(breakpoints.map((other) => (other.id === one.id ? { ...other, ...values } : other)));
  return html`<div>
    <h2>Breakpoints</h2>
    <p class="quiet">Click a state or an arrow of the map, or choose here.</p>
    <form class="add" onSubmit=${(event) => event.preventDefault()}>
      <select aria-label="kind of breakpoint" value=${kind} onChange=${(event) => setKind(event.currentTarget.value)}>${KINDS.map((name) => html`<option>${name}</option>`)}</select>
      <select aria-label="what to stop at" value=${chosen} onChange=${(event) => setTarget(event.currentTarget.value)}>${targets[kind].map((name) => html`<option>${name}</option>`)}</select>
      <${Button} label="add the breakpoint" onClick=${() => onBreakpoints([...breakpoints, { kind, target: chosen }])}>Add<//>
      <${Button} label="run to there, once" disabled=${!alive} onClick=${() => onRun(kind, chosen)}>Run to<//>
    </form>
    <ul class="breaks">${breakpoints.map((one) => html`<li key=${one.id} class=${one.enabled ? "" : "off"}>
      <div class="line"><label><input type="checkbox" checked=${one.enabled} aria-label=${`${one.kind} ${one.target} enabled`} onChange=${(event) => change(one, { enabled: event.currentTarget.checked })} />
        <span class="quiet">${one.kind}</span> <b>${one.target}</b></label>
        <${Button} label=${`remove breakpoint ${one.kind} ${one.target}`} kind="link" onClick=${() => onBreakpoints(breakpoints.filter((other) => other.id !== one.id))}>remove<//></div>
      <div class="break-parts">
        <${Part} label="only if" hint="retries >= 2" value=${one.condition} name=${`condition of ${one.target}`} onSet=${(condition) => change(one, { condition })} />
        <${Part} label="at hit" hint="3, >= 3, % 5" value=${one.hits} name=${`hits of ${one.target}`} onSet=${(hits) => change(one, { hits })} />
        <${Part} label="note instead" hint="retries is {retries} at {seq}" value=${one.log} name=${`logpoint of ${one.target}`} onSet=${(log) => change(one, { log })} />
      </div></li>`)}</ul>
    ${breakpoints.length === 0 && html`<p class="quiet">None.</p>`}
    <h3>Ask me first</h3>
    <p class="quiet">Hold a request back: see exactly what would go out, send it, or answer it by hand.</p>
    ${holds.map((name) => html`<label class="check"><input type="checkbox" disabled=${!alive} checked=${hold.includes(name)} onChange=${(event) => onHold(event.currentTarget.checked ? [...hold, name] : hold.filter((other) => other !== name))} /> before ${HELD[name]}</label>`)}
    <h3>Notes <span class="quiet">of logpoints</span></h3>
    ${logs.length === 0 ? html`<p class="quiet">None yet.</p>` : html`<ol class="logs">${logs.slice(-200).map((one) => html`<li><span class="num quiet">${one.seq}</span> ${one.text}</li>`)}</ol>`}
  </div>`;
}

/** What is being typed stays, whatever happens to the turn meanwhile; it counts when the field is left. */
function Part({ label, hint, value, name, onSet }) {
  const [typed, setTyped] = useState(null);
  const leave = (event) => {
    if (event.currentTarget.value !== value) onSet(event.currentTarget.value);
    setTyped(null);
  };
  return html`<label><span class="quiet">${label}</span><input type="text" aria-label=${name} placeholder=${hint} value=${typed ?? value} spellcheck=${false}
    onInput=${(event) => setTyped(event.currentTarget.value)} onChange=${leave} /></label>`;
}
