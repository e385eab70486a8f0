// The list of breakpoints, with conditions, hits and logpoints; and what was noted.
import { Condition } from "./condition.js";
import { Button, html, Term, useState } from "./ui.js";

const KINDS = ["state", "arrow", "event", "row", "exit", "move"];

const HELD = { model: "each request to the model", tool: "each call of a tool", request: "each request of a state" };

export function Breakpoints({ turn, breakpoints, targets, names, onBreakpoints, onRun, logs, holds, hold, onHold, alive, lost }) {
  const [kind, setKind] = useState("state");
  const [target, setTarget] = useState("");
  const chosen = targets[kind].includes(target) ? target : targets[kind][0];
  const [whole, setWhole] = useState("");
  const change = (one, values) => onBreakpoints((all) => all.map((other) => (other.id === one.id ? { ...other, ...values } : other)));
  const add = async (given = {}) => {
    try {
      await onBreakpoints((all) => [...all, { kind, target: chosen, ...given }]);
      setWhole("");
    } catch (error) {
      setWhole(error.message);
    }
  };
  const dead = alive ? lost : "this turn is no longer running: fork it first";
  return html`<div>
    <h2>Breakpoints</h2>
    <p class="quiet">Click a state or an arrow of the map, or choose here. A condition may be about <code>tool</code>, <code>arguments</code>, <code>result</code>, tokens and cost: <code>tool == "terminal"</code> at <b>any</b> move.</p>
    <form class="add" onSubmit=${(event) => event.preventDefault()}>
      <select aria-label="kind of breakpoint" value=${kind} onChange=${(event) => setKind(event.currentTarget.value)}>${KINDS.map((name) => html`<option>${name}</option>`)}</select>
      <select aria-label="what to stop at" value=${chosen} onChange=${(event) => setTarget(event.currentTarget.value)}>${targets[kind].map((name) => html`<option>${name}</option>`)}</select>
      <${Button} label="add the breakpoint" why=${lost} onClick=${() => add()}>Add<//>
      <${Button} label="run to there, once" why=${dead} onClick=${() => onRun(kind, chosen)}>Run to<//>
    </form>
    ${whole && html`<p class="problem" role="alert">${whole}</p>`}
    <ul class="breaks">${breakpoints.map((one) => html`<li key=${one.id} class=${one.enabled ? "" : "off"}>
      <div class="line"><label><input type="checkbox" checked=${one.enabled} aria-label=${`${one.kind} ${one.target} enabled`} onChange=${(event) => change(one, { enabled: event.currentTarget.checked }).catch((error) => setWhole(error.message))} />
        <span class="quiet">${one.kind}</span> <b>${one.target}</b></label>
        <${Button} label=${`remove breakpoint ${one.kind} ${one.target}`} kind="link" why=${lost} onClick=${() => onBreakpoints((all) => all.filter((other) => other.id !== one.id)).catch((error) => setWhole(error.message))}>remove<//></div>
      <div class="break-parts">
        <${Condition} label="only if" hint=${'tool == "terminal"'} value=${one.condition} name=${`condition of ${one.target}`} names=${names} turn=${turn} onSet=${(condition) => change(one, { condition })} />
        <${Part} label="at hit" hint="3, >= 3, % 5" value=${one.hits} name=${`hits of ${one.target}`} onSet=${(hits) => change(one, { hits })} />
        <${Part} label="note instead" hint="retries is {retries} at {seq}" value=${one.log} name=${`logpoint of ${one.target}`} onSet=${(log) => change(one, { log })} />
      </div></li>`)}</ul>
    ${breakpoints.length === 0 && html`<p class="quiet">None.</p>`}
    <h3><${Term} word="hold">Ask me first<//></h3>
    <p class="quiet">Hold a request back: see exactly what would go out, send it, change it, or answer it by hand.</p>
    ${holds.map((name) => html`<label class="check"><input type="checkbox" disabled=${Boolean(dead)} title=${dead || ""} checked=${hold.includes(name)} onChange=${(event) => onHold(event.currentTarget.checked ? (all) => [...all, name] : (all) => all.filter((other) => other !== name))} /> before ${HELD[name]}</label>`)}
    <h3>Notes <span class="quiet">of <${Term} word="logpoint">logpoints<//></span></h3>
    ${logs.length === 0 ? html`<p class="quiet">None yet.</p>` : html`<ol class="logs">${logs.slice(-200).map((one) => html`<li><span class="num quiet">${one.seq}</span> ${one.text}</li>`)}</ol>`}
  </div>`;
}

/** What is being typed stays, whatever happens to the turn meanwhile; it counts when the field is left. What is refused stays with the reason. */
function Part({ label, hint, value, name, onSet }) {
  const [typed, setTyped] = useState(null);
  const [problem, setProblem] = useState("");
  const leave = async (event) => {
    const text = event.currentTarget.value;
    try {
      if (text !== value) await onSet(text);
      setTyped(null);
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<label><span class="quiet">${label}</span><input type="text" aria-label=${name} aria-invalid=${problem ? "true" : null} placeholder=${hint} value=${typed ?? value} spellcheck=${false}
    onInput=${(event) => setTyped(event.currentTarget.value)} onChange=${leave} />${problem && html`<span class="problem" role="alert">${problem}</span>`}</label>`;
}
