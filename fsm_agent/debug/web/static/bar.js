// The bar: the turn, the position that is shown, the commands for the engine, and where both are.
import { overWords } from "./dialogs.js";
import { spentWords } from "./notices.js";
import { TurnPicker, useDropped } from "./picker.js";
import { Search } from "./search.js";
import { Button, html, plural, useRef } from "./ui.js";

const PHASES = { paused: "paused", running: "running", waiting: "waits for you", ended: "ended", idle: "stopped" };

/** Why the engine cannot continue now, or nothing. */
function whyStill({ status, lost }) {
  if (lost) return lost;
  const phase = status?.phase;
  return { ended: "the turn has ended: fork it, and continue from there", idle: "no process runs this turn: resume it, or fork it", running: "it is running: pause it first", waiting: "it is waiting for your answer" }[phase] || (phase ? "" : "not known yet");
}

export function Bar(props) {
  const { info, status, running, alive, engine, at, look, count, state, go, order, lost } = props;
  const still = whyStill(props);
  const dead = lost || (alive ? "" : still);
  const run = lost || (props.canRun ? "" : "this page is read-only: it has no agent to run turns with");
  return html`<header class="bar">
    <div class="tools">
      <${TurnPicker} info=${info} onOpen=${props.onOpen} turn=${props.turn} onMenu=${props.onMenu} why=${run} />
      <div class="group" role="group" aria-label="looking"><${Button} label="back" hint="show the previous move (b); nothing runs" why=${at === 0 && "this is the beginning"} onClick=${props.onBack}>◀ Back<//><${Button} label="forward" hint="show the next move (m)" why=${look === null && "this is the newest move"} onClick=${props.onForward}>▷<//></div>
      <div class="group" role="group" aria-label="running">
        <${Button} label="step" hint="to the next move (n)" why=${still} onClick=${() => go("step")}>Step<//>
        <${Button} label="step into" hint="one request (i)" why=${still} onClick=${() => go("into")}>Into<//>
        <${Button} label="step over" hint=${`${overWords(props.over)} (o)`} why=${still} onClick=${() => go("over")}>Over<//>
        ${running ? html`<${Button} label="pause" hint="pause (c)" kind="primary" why=${lost} onClick=${() => order("pause")}>Pause<//>` : html`<${Button} label="continue" hint="continue to a breakpoint or the end (c)" kind="primary" why=${still} onClick=${() => go("continue")}>Continue<//>`}
        <${Button} label="interrupt" hint="interrupt the turn as its user would (x)" why=${dead} onClick=${() => order("interrupt")}>Interrupt<//>
      </div>
      <${Button} label="fork here" hint="continue from this position, as a new turn (f)" kind="fork" why=${run} onClick=${() => props.onFork(at, {})}>Fork here<//>
      ${status?.phase === "idle" && !props.crash && html`<${Button} label="resume the turn" kind="primary" why=${run} onClick=${props.onResume}>Resume<//>`}
      <${Menu} onMenu=${props.onMenu} dead=${dead} lost=${lost} run=${run} talks=${props.talks} />
      <${Search} turn=${props.turn} at=${at} field=${props.searching} lost=${lost} onFound=${props.onFound} onLook=${props.onLook} />
      <${Button} label=${props.theme === "dark" ? "light colors" : "dark colors"} kind="icon" onClick=${props.onTheme}>◐<//>
      <${Button} label="help" hint="keys (?)" kind="icon" onClick=${() => props.onMenu("help")}>?<//>
    </div>
    <h1 class="sr">fsm_agent debugger</h1>
    <p class="sr" role="status">${spoken(props)}</p>
    <div class="where">
      <span class=${`chip engine ${status?.phase || ""}`}><span class="sign" aria-hidden="true"></span>engine <b>${status ? PHASES[status.phase] : "…"}</b> ${status && status.phase !== "ended" && html`in <b>${status.state}</b>`} after ${plural(engine, "move")}${status?.where === "elsewhere" && html` <span class="quiet">(another process)</span>`}</span>
      ${status?.text && html`<span class="reason">${status.text}</span>`}
      ${status?.inner?.map((id) => html`<a class="chip inner" href=${`/?turn=${encodeURIComponent(id)}`}>look into ${id}</a>`)}
      <span class="gap"></span>
      ${lost && html`<span class="chip bad" role="alert">${lost}</span>`}
      ${props.spent && html`<span class="spent quiet" title="what the turn had used by this move, without its children">${spentWords(props.spent)}</span>`}
      <span class=${`chip look${look === null ? " following" : ""}`}><span class="sign" aria-hidden="true"></span>you look at <b>${at.toLocaleString("en")}</b> of ${count.toLocaleString("en")}${state && html`, in <b>${state}</b>`}</span>
      ${look !== null && html`<${Button} label="follow the engine" hint="show where the engine is (End)" kind="link" onClick=${props.onFollow}>to the engine →<//>`}
    </div>
  </header>`;
}

/** What a screen reader says when something changed: only while the turn is paused or has ended, because twenty moves a second are noise. */
function spoken({ status, engine, at, look, state }) {
  if (!status) return "";
  if (status.phase === "running") return "engine running";
  const where = status.phase === "ended" ? "" : ` in ${status.state}`;
  const looking = look === null ? "" : ` You look at ${at}, in ${state}.`;
  return `engine ${PHASES[status.phase]}${where} after ${plural(engine, "move")}.${status.text ? ` ${status.text}.` : ""}${looking}`;
}

const ITEMS = [["pending", "What turns wait for …"], ["insights", "What recent turns took …"], ["compare", "Compare with …"], ["test", "Make a pytest …"], ["export", "Export the run …"], ["import", "Import a run …"], ["steer", "Tell the turn something …"], ["link", "Copy a link to this move …"]];

/** What only turns with a model can have. */
const TALKING = new Set(["pending", "insights", "test", "steer"]);

function Menu({ onMenu, dead, lost, talks }) {
  const box = useRef(null);
  useDropped(box);
  return html`<details class="menu" ref=${box}><summary aria-label="more">More</summary><div class="drop">${ITEMS.filter(([kind]) => talks || !TALKING.has(kind)).map(([kind, title]) => html`<${Button} key=${kind} label=${title} why=${kind === "steer" ? dead : kind === "link" ? "" : lost} onClick=${() => { box.current.open = false; onMenu(kind); }}>${title}<//>`)}</div></details>`;
}
