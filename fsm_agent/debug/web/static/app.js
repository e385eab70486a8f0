// The page: what it shows, where it looks, and what it asks of the engine.
import { ahead, get, listen, post, turnPath } from "./api.js";
import { Compare } from "./compare.js";
import { Diagram, Table } from "./diagram.js";
import { Ask, Fork, Help, Kept, overWords } from "./dialogs.js";
import { Waiting } from "./held.js";
import { Inspector, tabsOf } from "./inspector.js";
import { Lanes } from "./lanes.js";
import { Moves } from "./pages.js";
import { MoveList } from "./moves.js";
import { Pending } from "./pending.js";
import { Button, clock, html, outcomes, plural, render, short, useEffect, useMemo, useRef, useState, words } from "./ui.js";

const THEME = "fsm-agent-theme";
const lag = [];
window.fsmAgent = { lag, moves: () => current.moves };
const current = { moves: null };

function App({ hello }) {
  const [turn, setTurn] = useState(() => new URLSearchParams(location.search).get("turn") || hello.first);
  const [info, setInfo] = useState(null);
  const [status, setStatus] = useState(null);
  const [count, setCount] = useState(0);
  const [look, setLook] = useState(null); // null follows the engine
  const [breakpoints, setBreakpoints] = useState([]);
  const [visits, setVisits] = useState({ states: new Map(), arrows: new Set() });
  const [tab, setTab] = useState("move");
  const [view, setView] = useState("map");
  const [dialog, setDialog] = useState(null);
  const [compared, setCompared] = useState(null);
  const [problem, setProblem] = useState("");
  const [logs, setLogs] = useState([]);
  const [found, setFound] = useState([]);
  const [version, setVersion] = useState(0);
  const [again, setAgain] = useState(0);
  const [lost, setLost] = useState(false);
  const [theme, setTheme] = useState(() => document.documentElement.dataset.theme);
  const searching = useRef(null);
  const greeted = useRef(false);
  const told = useRef({ status: 0, breakpoints: 0 }); // how often: an answer that was on its way meanwhile is older
  const moves = useMemo(() => new Moves(turn, () => setVersion((n) => n + 1)), [turn]);
  current.moves = moves;

  const at = look === null ? count : Math.min(look, count);
  const lookAt = (seq) => {
    const wanted = Math.max(0, Math.min(count, seq));
    setLook(wanted === count ? null : wanted);
  };
  const failed = (error) => setProblem(error.message);
  const load = async () => {
    const before = { ...told.current };
    const said = await get(turnPath(turn));
    setInfo(said);
    if (before.status === told.current.status) setStatus(said.status);
    setCount((known) => Math.max(known, said.count));
    if (before.breakpoints === told.current.breakpoints) setBreakpoints(said.breakpoints);
    setVisits(visitsOf(said.arrows, hello.states[0]));
    setVersion((n) => n + 1);
    setAgain((n) => n + 1);
    return said;
  };

  useEffect(() => {
    if (!turn) return;
    history.replaceState(null, "", `/?turn=${encodeURIComponent(turn)}`);
    setInfo(null);
    setCount(0);
    setLook(null);
    setLogs([]);
    setFound([]);
    setProblem("");
    load().catch(failed);
    greeted.current = false;
    return listen(turn, hear, () => setLost(true));
  }, [turn]);

  const hear = (kind, data, sent) => {
    setLost(false);
    if (data.status) {
      told.current.status += 1;
      setStatus(data.status);
    }
    if (kind === "moved") {
      told.current.status += 1;
      moves.add(data);
      setCount(data.seq);
      setStatus((before) => before && { ...before, seq: data.seq, state: data.dest });
      setVisits((before) => oneMore(before, data));
      setVersion((n) => n + 1);
      requestAnimationFrame(() => {
        lag.push(performance.timeOrigin + performance.now() - sent * 1000);
        if (lag.length > 2000) lag.shift();
      });
    } else if (kind === "paused" || kind === "waiting") setAgain((n) => n + 1);
    else if (kind === "log") setLogs((before) => [...before.slice(-999), data]);
    else if (kind === "hello") {
      setCount(data.count);
      if (greeted.current) load().catch(failed); // the turn has come to life, or the connection has
      greeted.current = true;
    } else if (kind === "ended" || kind === "left") setTimeout(() => load().catch(failed), 60);
  };

  const order = (name, body = {}) => {
    setProblem("");
    return post(turnPath(turn, `/orders/${name}`), body).then(() => name === "hold" && setStatus((before) => ({ ...before, hold: body.kinds })), failed);
  };
  const alive = status && !["ended", "idle"].includes(status.phase);
  const running = status?.phase === "running";
  const go = (name, body) => {
    setLook(null);
    return order(name, body);
  };
  const setBreaks = (wanted) =>
    post(turnPath(turn, "/breakpoints"), { all: wanted }).then((said) => {
      told.current.breakpoints += 1;
      setBreakpoints(said.breakpoints);
      setProblem("");
    }, failed);
  const onBreak = (kind, target) => {
    const same = breakpoints.find((one) => one.kind === kind && one.target === target);
    return setBreaks(same ? breakpoints.filter((one) => one !== same) : [...breakpoints, { kind, target }]);
  };
  const onRun = (kind, target) => (alive ? go("to", { breakpoint: { kind, target } }) : setProblem("This turn does not run any more: fork it, then run to there."));
  const open = (id, table = hello.name) => {
    if (table !== hello.name) return location.assign(`/?turn=${encodeURIComponent(id)}`); // its table has another map
    setCompared(null);
    setDialog(null);
    setTurn(id);
  };
  const onFork = (from, edit) => setDialog({ kind: "fork", at: from, edit, state: from === at ? stateAt() : edit?.reply !== undefined ? hello.over : "" });
  const stateAt = () => (at === 0 ? hello.states[0] : moves.at(at)?.dest || "");
  const fork = async (from, edit) => {
    const { turn: made } = await post(turnPath(turn, "/fork"), { at: from, edit });
    open(made);
  };
  const seek = async (back) => {
    const said = await get(turnPath(turn, `/seek?at=${at}${back ? "&back=1" : ""}`));
    if (said.at !== null) lookAt(said.at);
    else setProblem("No later move meets a breakpoint.");
  };
  const search = async (text) => {
    if (!text.trim()) return setFound([]);
    let said = await get(turnPath(turn, `/find?text=${encodeURIComponent(text)}&after=${at}`));
    if (!said.found.length && at > 0) said = await get(turnPath(turn, `/find?text=${encodeURIComponent(text)}`));
    setFound(said.found);
    if (said.found.length) lookAt(said.found[0]);
    else setProblem(`“${text}” is in no move.`);
  };
  const keep = async (kind) => {
    const { text } = await get(turnPath(turn, `/${kind}`));
    setDialog({ kind, text });
  };
  const resume = () => post(turnPath(turn, "/resume")).then(load, failed);

  const tabs = tabsOf(hello.talks);
  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog || compared) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    const act = {
      n: () => alive && go("step"), i: () => alive && go("into"), o: () => alive && go("over"),
      c: () => alive && (running ? order("pause") : go("continue")), x: () => alive && order("interrupt"),
      b: () => lookAt(at - 1), m: () => lookAt(at + 1), ArrowUp: () => lookAt(at - 1), ArrowDown: () => lookAt(at + 1),
      Home: () => lookAt(0), End: () => setLook(null), "[": () => seek(true).catch(failed), "]": () => seek(false).catch(failed),
      f: () => onFork(at, {}), "/": () => searching.current.focus(), "?": () => setDialog({ kind: "help" }),
    }[event.key] || (tabs[Number(event.key) - 1] && (() => setTab(tabs[Number(event.key) - 1])));
    if (!act) return;
    event.preventDefault();
    act();
  };
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const press = (event) => latest.current(event);
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const turnTheme = () => {
    const next = theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem(THEME, next);
    setTheme(next);
  };

  if (!turn) return html`<${Empty} hello=${hello} canRun=${hello.canRun} onNew=${() => setDialog({ kind: "new" })} dialog=${dialog} onClose=${() => setDialog(null)} onOpen=${open} />`;
  const move = at ? moves.at(at) : null;
  const engine = status?.seq ?? count;
  const state = at === count ? status?.state || info?.state : stateAt();
  const shared = { turn, at, count, talks: hello.talks, over: hello.over, states: hello.states, rows: hello.rows, breakpoints, onBreak, onFork, onRun, alive };
  return html`<${Bar} ...${shared} info=${info} status=${status} running=${running} engine=${engine} look=${look} state=${state}
      go=${go} order=${order} onBack=${() => lookAt(at - 1)} onForward=${() => lookAt(at + 1)} onFollow=${() => setLook(null)}
      onSearch=${(text) => search(text).catch(failed)} searching=${searching} theme=${theme} onTheme=${turnTheme} lost=${lost}
      onMenu=${(kind) => ({ test: () => keep("test").catch(failed), export: () => keep("export").catch(failed) }[kind] || (() => setDialog({ kind })))()}
      onResume=${resume} canRun=${hello.canRun} onOpen=${open} found=${found} />
    ${problem && html`<div class="toast" role="alert">${problem} <${Button} label="close the message" kind="link" onClick=${() => setProblem("")}>✕<//></div>`}
    <main>
      <section class="picture" aria-label="states">
        <div class="switch" role="group" aria-label="what to show"><${Button} label="show the map" pressed=${view === "map"} onClick=${() => setView("map")}>Map<//><${Button} label="show the whole table" pressed=${view === "table"} onClick=${() => setView("table")}>Table<//></div>
        <div class="picture-map" hidden=${view !== "map"}><${Diagram} svg=${hello.map} engine=${status?.state} phase=${status?.phase} look=${state} move=${move} visits=${visits} breakpoints=${breakpoints} onBreak=${onBreak} onRun=${onRun} /></div>
        ${view === "table" && html`<${Table} svg=${hello.table} engine=${status?.state} look=${state} move=${move} breakpoints=${breakpoints} onBreak=${onBreak} />`}
      </section>
      <${Lanes} turn=${turn} count=${count} at=${at} engine=${engine} states=${hello.states} onLook=${lookAt} theme=${theme} running=${running} />
      <${MoveList} moves=${moves} count=${count} at=${at} engine=${engine} states=${hello.states} rows=${hello.rows} found=${found} onLook=${lookAt} version=${version} />
      <div class="side"><div class="notices">
        <${Waiting} held=${status?.held || []} onAnswer=${(id, said) => order("answer", { id, said })} onLet=${(id) => order("let", { id })} />
        ${look === null && html`<${Ending} info=${info} onFork=${onFork} count=${count} />`}
      </div>
      <${Inspector} ...${shared} tab=${tab} onTab=${setTab} again=${at === count ? again : 0} running=${running} targets=${hello.targets} onBreakpoints=${setBreaks} logs=${logs}
        holds=${hello.holds} hold=${status?.hold || []} onHold=${(kinds) => order("hold", { kinds })} /></div>
    </main>
    ${compared && html`<${Compare} left=${compared.left} right=${compared.right} states=${hello.states} rows=${hello.rows} onClose=${() => setCompared(null)} onOpen=${open} />`}
    <${Dialogs} dialog=${dialog} hello=${hello} turn=${turn} info=${info} onClose=${() => setDialog(null)} fork=${fork} open=${open} onCompare=${(left, right) => { setDialog(null); setCompared({ left, right }); }} onSteer=${(text) => order("steer", { text }).then(() => setDialog(null))} />`;
}

/** How often each state was entered, the seconds spent in it, and the arrows that were taken. */
function visitsOf(arrows, first) {
  const visits = { states: new Map([[first, { count: 1, seconds: 0 }]]), arrows: new Set() };
  for (const [source, dest, count, took] of arrows || []) add(visits, source, dest, count, took);
  return visits;
}

function oneMore(before, { source, dest, seconds }) {
  const visits = { states: new Map(before.states), arrows: new Set(before.arrows) };
  add(visits, source, dest, 1, seconds);
  return visits;
}

function add(visits, source, dest, count, took) {
  const [left, entered] = [source, dest].map((name) => visits.states.get(name) || { count: 0, seconds: 0 });
  visits.states.set(source, { ...left, seconds: left.seconds + took });
  const now = source === dest ? visits.states.get(source) : entered;
  visits.states.set(dest, { ...now, count: now.count + count });
  visits.arrows.add(`${source}→${dest}`);
}

const PHASES = { paused: "paused", running: "running", waiting: "waits for you", ended: "ended", idle: "stopped" };

function Bar(props) {
  const { info, status, running, alive, engine, at, look, count, state, go, order } = props;
  const paused = status && ["paused"].includes(status.phase);
  const phase = status ? PHASES[status.phase] : "…";
  return html`<header class="bar">
    <div class="tools">
      <${TurnPicker} ...${props} />
      <div class="group" role="group" aria-label="looking"><${Button} label="back" hint="look at the move before (b); nothing runs" disabled=${at === 0} onClick=${props.onBack}>◀ Back<//><${Button} label="forward" hint="look at the move after (m)" disabled=${look === null} onClick=${props.onForward}>▷<//></div>
      <div class="group" role="group" aria-label="running">
        <${Button} label="step" hint="to the next move (n)" disabled=${!paused} onClick=${() => go("step")}>Step<//>
        <${Button} label="step into" hint="one request (i)" disabled=${!paused} onClick=${() => go("into")}>Into<//>
        <${Button} label="step over" hint=${`${overWords(props.over)} (o)`} disabled=${!paused} onClick=${() => go("over")}>Over<//>
        ${running ? html`<${Button} label="pause" hint="pause (c)" kind="primary" onClick=${() => order("pause")}>Pause<//>` : html`<${Button} label="continue" hint="on, until a breakpoint or the end (c)" kind="primary" disabled=${!paused} onClick=${() => go("continue")}>Continue<//>`}
        <${Button} label="interrupt" hint="interrupt the turn as its user would (x)" disabled=${!alive} onClick=${() => order("interrupt")}>Interrupt<//>
      </div>
      <${Button} label="fork here" hint="go on from where you look, as a new turn (f)" kind="fork" disabled=${!props.canRun} onClick=${() => props.onFork(at, {})}>Fork here<//>
      ${status?.phase === "idle" && html`<${Button} label="resume the turn" kind="primary" disabled=${!props.canRun} onClick=${props.onResume}>Resume<//>`}
      <${Menu} ...${props} />
      <form class="search" role="search" onSubmit=${(event) => { event.preventDefault(); props.onSearch(event.currentTarget.elements.text.value); }}>
        <input name="text" type="search" placeholder="Search  /" aria-label="search moves, requests and replies" ref=${props.searching} onKeyDown=${(event) => event.key === "Escape" && event.currentTarget.blur()} />
        ${props.found.length > 0 && html`<span class="quiet">${props.found.length}${props.found.length >= 50 ? "+" : ""}</span>`}
      </form>
      <${Button} label=${props.theme === "dark" ? "light colours" : "dark colours"} kind="icon" onClick=${props.onTheme}>◐<//>
      <${Button} label="help" hint="keys (?)" kind="icon" onClick=${() => props.onMenu("help")}>?<//>
    </div>
    <h1 class="sr">fsm_agent debugger</h1>
    <p class="sr" role="status">${spoken(props)}</p>
    <div class="where">
      <span class=${`chip engine ${status?.phase || ""}`}><span class="sign" aria-hidden="true"></span>engine <b>${phase}</b> ${status && status.phase !== "ended" && html`in <b>${status.state}</b>`} after ${plural(engine, "move")}${status?.where === "elsewhere" && html` <span class="quiet">(another process)</span>`}</span>
      ${status?.text && html`<span class="reason">${status.text}</span>`}
      ${status?.inner?.map((id) => html`<a class="chip inner" href=${`/?turn=${encodeURIComponent(id)}`}>look into ${id}</a>`)}
      <span class="gap"></span>
      ${props.lost && html`<span class="chip bad">the debugger is gone</span>`}
      <span class=${`chip look${look === null ? " following" : ""}`}><span class="sign" aria-hidden="true"></span>you look at <b>${at}</b> of ${count}${state && html`, in <b>${state}</b>`}</span>
      ${look !== null && html`<${Button} label="follow the engine" hint="look where the engine is (End)" kind="link" onClick=${props.onFollow}>to the engine →<//>`}
    </div>
  </header>`;
}

/** What a screen reader says when something changed: only while the turn stands still, because twenty moves a second are noise. */
function spoken({ status, engine, at, look, state }) {
  if (!status) return "";
  if (status.phase === "running") return "engine running";
  const where = status.phase === "ended" ? "" : ` in ${status.state}`;
  const looking = look === null ? "" : ` You look at ${at}, in ${state}.`;
  return `engine ${PHASES[status.phase]}${where} after ${plural(engine, "move")}.${status.text ? ` ${status.text}.` : ""}${looking}`;
}

/** Lists that drop down close when one presses Escape, or somewhere else. */
function useDropped(box) {
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

function TurnPicker({ info, onOpen, turn, onMenu, canRun }) {
  const [turns, setTurns] = useState(null);
  const box = useRef(null);
  useDropped(box);
  const opened = (event) => event.currentTarget.open && get("/api/turns").then((said) => setTurns(said.turns), () => setTurns([]));
  const outcome = info?.outcome || (info?.ended === null ? "unfinished" : "");
  return html`<details class="picker" ref=${box} onToggle=${opened}>
    <summary aria-label=${`turn: ${info?.asked || turn}`}><span class=${`outcome ${outcome}`}>${words(outcome) || "…"}</span> <span class="asked">${info?.asked || turn}</span></summary>
    <div class="drop"><ul>${turns && turns.map((one) => html`<li style=${`padding-left: ${1.2 * one.depth}rem`}><button type="button" class=${one.id === turn ? "current" : ""} onClick=${() => { box.current.open = false; onOpen(one.id, one.table_name); }}>
      <span class=${`outcome ${one.outcome || "unfinished"}`}>${words(one.outcome || "unfinished")}</span><span class="asked">${short(one.asked, 70)}</span>
      <span class="quiet">${one.forked_at !== null ? "fork · " : one.parent ? "child · " : ""}${["", "agent"].includes(one.agent) ? "" : `${one.agent} · `}${plural(one.seq, "move")} · ${clock(one.began)}</span></button></li>`)}</ul>
      ${canRun && html`<${Button} label="new turn" onClick=${() => { box.current.open = false; onMenu("new"); }}>New turn …<//>`}</div>
  </details>`;
}

const ITEMS = [["pending", "What turns wait for"], ["compare", "Compare with …"], ["test", "Make a pytest"], ["export", "Export the run"], ["import", "Import a run"], ["steer", "Tell the turn something"]];

/** What only turns with a model can have. */
const TALKING = new Set(["pending", "test", "steer"]);

function Menu({ onMenu, alive, talks }) {
  const box = useRef(null);
  useDropped(box);
  return html`<details class="menu" ref=${box}><summary aria-label="more">More</summary><div class="drop">${ITEMS.filter(([kind]) => talks || !TALKING.has(kind)).map(([kind, title]) => html`<button type="button" disabled=${kind === "steer" && !alive} onClick=${() => { box.current.open = false; onMenu(kind); }}>${title}</button>`)}</div></details>`;
}

/** How a turn ended, in plain words, at the top of everything. */
function Ending({ info, onFork, count }) {
  const result = info?.result;
  if (!result || !info.ended) return null;
  const outcome = info.outcome || "ended";
  const bad = !["completed", "ended"].includes(outcome);
  return html`<section class=${`ending ${outcome}`} aria-label="how the turn ended">
    <h2>${outcome[0].toUpperCase()}${outcome.slice(1)}: <span>${words(info.exit)}</span></h2>
    ${result.error && !result.final_response?.includes(result.error) && html`<p class="error">${short(result.error, 600)}</p>`}
    ${result.final_response && html`<p class="final">${short(result.final_response, bad ? 400 : 240)}</p>`}
    ${result.model && html`<p class="quiet">${plural(result.attempts ?? 0, "request")} · ${(result.total_tokens ?? 0).toLocaleString("en")} tokens · ${result.provider}:${result.model}</p>`}
    ${bad && html`<p class="quiet">Go back (b) to see how it came to this, and fork before it went wrong.</p>`}
  </section>`;
}

function Dialogs({ dialog, hello, turn, info, onClose, fork, open, onCompare, onSteer }) {
  switch (dialog?.kind) {
    case "fork":
      return html`<${Fork} at=${dialog.at} edit=${dialog.edit} state=${dialog.state} talks=${hello.talks} over=${hello.over} onFork=${fork} onClose=${onClose} />`;
    case "help":
      return html`<${Help} lag=${lagWords()} over=${hello.over} onClose=${onClose} />`;
    case "new":
      return html`<${Ask} title="A new turn" label="message" hint=${hello.talks ? "It is paused before its first request." : `A turn of “${hello.name}”, paused before its first request. The words may be left out, if it needs none.`} button="Start" onClose=${onClose} onSend=${async (text) => open((await post("/api/turns", { text })).turn)} />`;
    case "steer":
      return html`<${Ask} title="Tell the turn something" label="message" hint="The model reads it with the next result of a tool; nothing is stopped." button="Tell it" onClose=${onClose} onSend=${onSteer} />`;
    case "pending":
      return html`<${Pending} onClose=${onClose} onOpen=${open} />`;
    case "import":
      return html`<${Import} onClose=${onClose} open=${open} />`;
    case "compare":
      return html`<${Pick} turn=${turn} info=${info} onClose=${onClose} onPick=${(other) => onCompare(other, turn)} />`;
    case "test":
      return html`<${Kept} title="A test of this turn" text=${dialog.text} name=${`test_${turn.replace(/\W/g, "_")}.py`} type="text/x-python" hint="It plays the turn again with what the model and the tools answered, and checks every move. It was run, and passed." onClose=${onClose} />`;
    case "export":
      return html`<${Kept} title="The run as one file" text=${dialog.text} name=${`${turn}.jsonl`} type="application/x-ndjson" hint="The turn with its session: import it in another home, on another machine. Keys are masked." onClose=${onClose} />`;
    default:
      return null;
  }
}

function Import({ open, onClose }) {
  const file = useRef(null);
  return html`<${Ask} title="Import a run" label="run as text" hint="Choose a file that was exported, or paste its text." button="Import" rows=${6} onClose=${onClose}
    onSend=${async (text) => open((await post("/api/import", { text: file.current.files.length ? await file.current.files[0].text() : text })).turn)}>
    <input type="file" ref=${file} aria-label="exported file" accept=".jsonl,.ndjson,.json" /><//>`;
}

function Pick({ turn, info, onPick, onClose }) {
  const [turns, setTurns] = useState([]);
  useEffect(() => {
    get("/api/turns?limit=200").then((said) => setTurns(said.turns.filter((one) => one.id !== turn)));
  }, []);
  const near = (one) => (one.id === info?.parent || one.parent === turn || (one.parent && one.parent === info?.parent) ? 0 : 1);
  const sorted = [...turns].sort((a, b) => near(a) - near(b));
  return html`<${Ask.Frame} title="Compare with" onClose=${onClose}><ul class="pick">${sorted.map((one) => html`<li><button type="button" onClick=${() => onPick(one.id)}><span class=${`outcome ${one.outcome || "unfinished"}`}>${words(one.outcome || "unfinished")}</span><span class="asked">${short(one.asked, 60)}</span><span class="quiet">${near(one) ? "" : "same line · "}${plural(one.seq, "move")} · ${clock(one.began)}</span></button></li>`)}</ul>
    ${turns.length === 0 && html`<p class="quiet">There is no other turn.</p>`}<//>`;
}

function Empty({ hello, canRun, onNew, dialog, onClose, onOpen }) {
  return html`<main class="empty"><h1>No turns yet</h1><p class="quiet">Run one with <code>fsm-agent run "…"</code>, and it will be here.</p>
    ${canRun && html`<${Button} label="new turn" kind="primary" onClick=${onNew}>New turn …<//>`}<${Dialogs} dialog=${dialog} hello=${hello} turn="" onClose=${onClose} open=${onOpen} /></main>`;
}

function lagWords() {
  if (lag.length < 5) return "";
  const sorted = [...lag].sort((a, b) => a - b);
  const at = (share) => `${sorted[Math.floor((sorted.length - 1) * share)].toFixed(1)} ms`;
  return `${at(0.5)} in the middle, ${at(0.95)} at the 95th of a hundred (${sorted.length} events)`;
}

const chosen = localStorage.getItem(THEME);
document.documentElement.dataset.theme = chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const root = document.getElementById("app");
const named = new URLSearchParams(location.search).get("turn");
if (named) ahead(turnPath(named));
get(`/api/hello${named ? `?turn=${encodeURIComponent(named)}` : ""}`).then(
  (hello) => {
    root.textContent = "";
    Object.assign(outcomes, hello.outcomes);
    render(html`<${App} hello=${hello} />`, root);
  },
  (error) => {
    root.textContent = error.message;
  },
);
