// The page: what it shows, where it looks, and what it asks of the engine.
import { ahead, get, inHash, keepHash, listen, post, turnPath } from "./api.js";
import { Bar } from "./bar.js";
import { Compare } from "./compare.js";
import { Diagram, Table } from "./diagram.js";
import { Ask, Help, Kept } from "./dialogs.js";
import { useFetched, WHILE_RUNNING } from "./fetched.js";
import { Fork } from "./fork.js";
import { Waiting } from "./held.js";
import { Insights } from "./insights.js";
import { Inspector, tabsOf } from "./inspector.js";
import { Lanes } from "./lanes.js";
import { Moves } from "./pages.js";
import { MoveList } from "./moves.js";
import { Crash, Ending } from "./notices.js";
import { Pending } from "./pending.js";
import { Pick, TurnPicker } from "./picker.js";
import { useTheme } from "./theme.js";
import { explain } from "./tips.js";
import { Button, html, outcomes, refused, render, useEffect, useMemo, useRef, useState } from "./ui.js";

const GONE = "the debugger is gone: the program that served this page does not answer";
const SAYS = 6000; // milliseconds that a refusal stays
const lag = [];
window.fsmAgent = { lag, moves: () => current.moves };
const current = { moves: null };

function App({ hello }) {
  const [turn, setTurn] = useState(() => new URLSearchParams(location.search).get("turn") || hello.first);
  const [info, setInfo] = useState(null);
  const [status, setStatus] = useState(null);
  const [count, setCount] = useState(0);
  const [look, setLook] = useState(placeInHash); // null follows the engine
  const [breakpoints, setBreakpoints] = useState([]);
  const [visits, setVisits] = useState({ states: new Map(), arrows: new Map() });
  const [tab, setTab] = useState("move");
  const [view, setView] = useState("map");
  const [dialog, setDialog] = useState(null);
  const [compared, setCompared] = useState(null);
  const [problem, setProblem] = useState("");
  const [logs, setLogs] = useState([]);
  const [found, setFound] = useState([]);
  const [version, setVersion] = useState(0);
  const [again, setAgain] = useState(0);
  const [lost, setLost] = useState(""); // why the program cannot be heard
  const [unknown, setUnknown] = useState(""); // why there is no such turn
  const [whole, setWhole] = useState(false); // the picture takes the whole page
  const [theme, turnTheme] = useTheme();
  const searching = useRef(null);
  const greeted = useRef(false);
  const held = useRef([]); // the kinds of requests that are held back, as last heard
  const told = useRef({ status: 0, breakpoints: 0 }); // how often: an answer that was on its way meanwhile is older
  const moves = useMemo(() => new Moves(turn, () => setVersion((n) => n + 1)), [turn]);
  current.moves = moves;
  const broken = useMemo(() => ({ current: null }), [turn]); // breakpoints as the program last told them
  const left = () => current.moves !== moves; // this turn, for another

  const at = look === null ? count : Math.min(look, count);
  const lookAt = (seq) => {
    const wanted = Math.max(0, Math.min(count, seq));
    setLook(wanted === count ? null : wanted);
  };
  const failed = (error) => setProblem(error.message);
  refused.tell = setProblem;
  const tellStatus = (change) =>
    setStatus((before) => {
      const after = change(before);
      held.current = after?.hold || [];
      return after;
    });
  const load = async () => {
    const before = { ...told.current };
    const said = await get(turnPath(turn));
    if (left()) return;
    setInfo(said);
    if (before.status === told.current.status) tellStatus(() => said.status);
    setCount((known) => Math.max(known, said.count));
    if (before.breakpoints === told.current.breakpoints) setBreakpoints((broken.current = said.breakpoints));
    setVisits(visitsOf(said.taken, hello.states[0]));
    setVersion((n) => n + 1);
    setAgain((n) => n + 1);
  };

  useEffect(() => {
    if (!turn) return;
    const again = new URLSearchParams(location.search).get("turn") === turn;
    if (!again) history.replaceState(null, "", `/?turn=${encodeURIComponent(turn)}`);
    setInfo(null);
    tellStatus(() => null);
    setBreakpoints([]);
    setVisits(visitsOf([], hello.states[0]));
    setCount(0);
    setLook(again ? placeInHash() : null);
    setLogs([]);
    setFound([]);
    setProblem("");
    setUnknown("");
    load().catch((error) => left() || (error.name === "TypeError" ? setLost(GONE) : setUnknown(error.message)));
    greeted.current = false;
    return listen(turnPath(turn, "/events"), hear, (refusal) => setLost(refusal ? refusal.message : GONE));
  }, [turn]);
  useEffect(() => {
    if (info) keepHash("at", look === null ? null : String(look));
  }, [look, info?.id]);
  useEffect(() => {
    const moved = () => setLook(placeInHash());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (!problem) return undefined;
    const over = setTimeout(() => setProblem(""), SAYS);
    return () => clearTimeout(over);
  }, [problem]);
  const position = useFetched(turn && info ? turnPath(turn, `/at/${at}`) : "", again, status?.phase === "running" ? WHILE_RUNNING : 0);

  const hear = (kind, data, sent) => {
    setLost("");
    if (data.status) {
      told.current.status += 1;
      tellStatus(() => data.status);
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
    return post(turnPath(turn, `/orders/${name}`), body).catch(failed);
  };
  const onHold = (change) => {
    let kinds;
    setProblem("");
    post(turnPath(turn, "/orders/hold"), () => ({ kinds: (kinds = change(held.current)) })).then(() => left() || tellStatus((before) => ({ ...before, hold: kinds })), failed);
  };
  const alive = status && !["ended", "idle"].includes(status.phase);
  const running = status?.phase === "running";
  const go = (name, body) => {
    setLook(null);
    return order(name, body);
  };
  /** An order whose refusal is shown where it was given. */
  const asked = (name, body) => post(turnPath(turn, `/orders/${name}`), body);
  const setBreaks = (change) =>
    post(turnPath(turn, "/breakpoints"), async () => ({ all: change(broken.current || (await get(turnPath(turn))).breakpoints) })).then((said) => {
      told.current.breakpoints += 1;
      broken.current = said.breakpoints;
      if (!left()) setBreakpoints(broken.current);
      setProblem("");
    });
  const onBreak = (kind, target) =>
    setBreaks((all) => {
      const same = all.find((one) => one.kind === kind && one.target === target);
      return same ? all.filter((one) => one !== same) : [...all, { kind, target }];
    }).catch(failed);
  const onRun = (kind, target) => (alive ? go("to", { breakpoint: { kind, target } }) : setProblem("This turn is no longer running: fork it, then run to there."));
  const open = (id, table = hello.name) => {
    if (table !== hello.name) return location.assign(`/?turn=${encodeURIComponent(id)}`); // its table has another map
    setCompared(null);
    setDialog(null);
    setTurn(id);
  };
  const onFork = (from, edit, more = {}) => setDialog({ kind: "fork", at: from, edit, ...more, state: from === at ? stateAt() : edit?.reply !== undefined ? hello.over : "" });
  const stateAt = () => (at === 0 ? hello.states[0] : moves.at(at)?.dest || "");
  const fork = async (from, edit, run) => {
    const { turn: made } = await post(turnPath(turn, "/fork"), { at: from, edit });
    if (run) await post(turnPath(made, "/orders/continue"), {});
    open(made);
  };
  const seek = async (back) => {
    const said = await get(turnPath(turn, `/seek?at=${at}${back ? "&back=1" : ""}`));
    if (said.at !== null) lookAt(said.at);
    else setProblem("No later move meets a breakpoint.");
  };
  const keep = async (kind) => {
    const { text } = await get(turnPath(turn, `/${kind}`));
    setDialog({ kind, text });
  };
  const resume = () => post(turnPath(turn, "/resume")).then(load).catch(failed);
  const link = () => {
    keepHash("at", String(at));
    setDialog({ kind: "link", text: location.href });
  };

  const tabs = tabsOf(hello.talks);
  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog || compared) return undefined;
    if (event.target.closest("input:not([type=checkbox]), textarea, select")) return undefined;
    if (event.key === "Escape" && whole) return setWhole(false);
    const act = {
      n: () => alive && go("step"), i: () => alive && go("into"), o: () => alive && go("over"),
      c: () => alive && (running ? order("pause") : go("continue")), x: () => alive && order("interrupt"),
      b: () => lookAt(at - 1), m: () => lookAt(at + 1), ArrowUp: () => lookAt(at - 1), ArrowDown: () => lookAt(at + 1),
      Home: () => lookAt(0), End: () => setLook(null), "[": () => seek(true).catch(failed), "]": () => seek(false).catch(failed),
      f: () => onFork(at, {}), "/": () => searching.current.focus(), "?": () => setDialog({ kind: "help" }),
    }[event.key] || (tabs[Number(event.key) - 1] && (() => setTab(tabs[Number(event.key) - 1])));
    if (!act) return undefined;
    event.preventDefault();
    return lost ? setProblem(lost) : act();
  };
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const press = (event) => latest.current(event);
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);

  const dialogs = html`<${Dialogs} dialog=${dialog} hello=${hello} turn=${turn || ""} info=${info} onClose=${() => setDialog(null)} fork=${fork} open=${open} onCompare=${(left, right) => { setDialog(null); setCompared({ left, right }); }} onSteer=${(text) => asked("steer", { text }).then(() => setDialog(null))} />`;
  const menu = (kind) => ({ test: () => keep("test").catch(failed), export: () => keep("export").catch(failed), link }[kind] || (() => setDialog({ kind })))();
  if (!turn || unknown) return html`<${Empty} hello=${hello} problem=${unknown} onMenu=${menu} onOpen=${open}>${dialogs}<//>`;
  const move = at ? moves.at(at) : null;
  const engine = status?.seq ?? count;
  const state = at === count ? status?.state || info?.state : stateAt();
  const cannot = lost || (hello.canRun ? "" : "this page is read-only: it has no agent to run turns with");
  const snapshot = position.data?.snapshot;
  const shared = { turn, at, count, lost, cannot, talks: hello.talks, over: hello.over, states: hello.states, rows: hello.rows, flags: hello.flags, breakpoints, onBreak, onFork, onRun, alive, position };
  const crash = status?.phase === "idle" ? info?.crash : null;
  return html`<${Bar} ...${shared} info=${info} status=${status} running=${running} engine=${engine} look=${look} state=${state} crash=${crash} spent=${position.data?.spent}
      go=${go} order=${order} onBack=${() => lookAt(at - 1)} onForward=${() => lookAt(at + 1)} onFollow=${() => setLook(null)}
      onFound=${setFound} onLook=${lookAt} searching=${searching} theme=${theme} onTheme=${turnTheme} onMenu=${menu}
      onResume=${resume} canRun=${hello.canRun} onOpen=${open} />
    ${problem && html`<div class="toast" role="alert">${problem} <${Button} label="close the message" kind="link" onClick=${() => setProblem("")}>✕<//></div>`}
    <main class=${whole ? "whole" : ""}>
      <section class="picture" aria-label="states">
        <div class="switch" role="group" aria-label="what to show"><${Button} label="show the map" pressed=${view === "map"} onClick=${() => setView("map")}>Map<//><${Button} label="show the whole table" pressed=${view === "table"} onClick=${() => setView("table")}>Table<//><${Button} label="full page" hint="the picture takes the whole page (Escape ends it)" pressed=${whole} onClick=${() => setWhole(!whole)}>Full<//></div>
        <div class="picture-map" hidden=${view !== "map"}><${Diagram} svg=${hello.map} rows=${hello.rows} engine=${status?.state} phase=${status?.phase} look=${state} move=${move} visits=${visits} breakpoints=${breakpoints} onBreak=${onBreak} onRun=${onRun} /></div>
        ${view === "table" && html`<${Table} svg=${hello.table} engine=${status?.state} look=${state} move=${move} breakpoints=${breakpoints} onBreak=${onBreak} />`}
      </section>
      <${Lanes} turn=${turn} count=${count} at=${at} engine=${engine} states=${hello.states} onLook=${lookAt} theme=${theme} running=${running} />
      <${MoveList} turn=${turn} talks=${hello.talks} moves=${moves} count=${count} at=${at} engine=${engine} states=${hello.states} rows=${hello.rows} found=${found} onLook=${lookAt} version=${version} />
      <div class="side"><div class="notices">
        <${Waiting} held=${status?.held || []} tools=${snapshot?.tools} onAnswer=${(id, said) => asked("answer", { id, said })} onLet=${(id) => asked("let", { id })} onEdit=${(id, said) => asked("edit", { id, said })} />
        <${Crash} crash=${crash} why=${cannot} onResume=${resume} />
        ${look === null && html`<${Ending} info=${info} />`}
      </div>
      <${Inspector} ...${shared} tab=${tab} onTab=${setTab} running=${running} targets=${hello.targets} names=${hello.names} onBreakpoints=${setBreaks} logs=${logs}
        holds=${hello.holds} hold=${status?.hold || []} onHold=${onHold} /></div>
    </main>
    ${compared && html`<${Compare} left=${compared.left} right=${compared.right} states=${hello.states} rows=${hello.rows} onClose=${() => setCompared(null)} onOpen=${open} />`}
    ${dialogs}`;
}

/** How often each state was entered, the seconds spent in it, and how often which rows took each arrow. */
function visitsOf(taken, first) {
  const visits = { states: new Map([[first, { count: 1, seconds: 0 }]]), arrows: new Map() };
  for (const [source, dest, row, count, took] of taken || []) add(visits, source, dest, row, count, took);
  return visits;
}

function oneMore(before, { source, dest, row, seconds }) {
  const visits = { states: new Map(before.states), arrows: new Map(before.arrows) };
  add(visits, source, dest, row, 1, seconds);
  return visits;
}

function add(visits, source, dest, row, count, took) {
  const [left, entered] = [source, dest].map((name) => visits.states.get(name) || { count: 0, seconds: 0 });
  visits.states.set(source, { ...left, seconds: left.seconds + took });
  const now = source === dest ? visits.states.get(source) : entered;
  visits.states.set(dest, { ...now, count: now.count + count });
  const rows = new Map(visits.arrows.get(`${source}→${dest}`));
  visits.arrows.set(`${source}→${dest}`, rows.set(row, (rows.get(row) || 0) + count));
}

function Dialogs({ dialog, hello, turn, info, onClose, fork, open, onCompare, onSteer }) {
  switch (dialog?.kind) {
    case "fork":
      return html`<${Fork} turn=${turn} flags=${hello.flags} at=${dialog.at} edit=${dialog.edit} state=${dialog.state} why=${dialog.why} run=${dialog.run} talks=${hello.talks} over=${hello.over} onFork=${fork} onClose=${onClose} />`;
    case "help":
      return html`<${Help} lag=${lagWords()} over=${hello.over} onClose=${onClose} />`;
    case "new":
      return html`<${Ask} title="A new turn" label="message" hint=${hello.talks ? "It is paused before its first request." : `A turn of “${hello.name}”, paused before its first request. The message may be empty, if it needs none.`} button="Start" onClose=${onClose} onSend=${async (text) => open((await post("/api/turns", { text })).turn)} />`;
    case "steer":
      return html`<${Ask} title="Tell the turn something" label="message" hint="The model reads it with the next result of a tool; nothing is stopped." button="Tell it" onClose=${onClose} onSend=${onSteer} />`;
    case "pending":
      return html`<${Pending} onClose=${onClose} onOpen=${open} />`;
    case "insights":
      return html`<${Insights} onClose=${onClose} onOpen=${open} />`;
    case "import":
      return html`<${Import} onClose=${onClose} open=${open} />`;
    case "compare":
      return html`<${Pick} turn=${turn} info=${info} frame=${Ask.Frame} onClose=${onClose} onPick=${(other) => onCompare(other, turn)} />`;
    case "test":
      return html`<${Kept} title="A test of this turn" text=${dialog.text} name=${`test_${turn.replace(/\W/g, "_")}.py`} type="text/x-python" hint="It plays the turn again with what the model and the tools answered, and checks every move. It was run, and passed." onClose=${onClose} />`;
    case "export":
      return html`<${Kept} title="The run as one file" text=${dialog.text} name=${`${turn}.jsonl`} type="application/x-ndjson" hint="The turn with its session: import it in another home, on another machine. Keys are masked." onClose=${onClose} />`;
    case "link":
      return html`<${Kept} title="A link to this move" text=${dialog.text} name="link.txt" type="text/plain" hint="It opens this turn at this move, in this tab, or in one that has the token of this debugger." onClose=${onClose} />`;
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

/** No turn to show: the home has no turn yet, or not the one in the address. */
function Empty({ hello, problem, onMenu, onOpen, children }) {
  const why = hello.canRun ? "" : "this page is read-only: it has no agent to run turns with";
  return html`<main class="empty"><h1>${problem ? "There is no such turn" : "No turns yet"}</h1>
    ${problem ? html`<p class="problem" role="alert">${problem}</p><${TurnPicker} turn="choose another turn" onOpen=${onOpen} onMenu=${onMenu} why=${why} />`
      : html`<p class="quiet">Run one with <code>fsm-agent run "…"</code>, and it will be here.</p>${hello.canRun && html`<${Button} label="new turn" kind="primary" onClick=${() => onMenu("new")}>New turn …<//>`}`}${children}</main>`;
}

/** The move that the address names, or null for the newest. */
function placeInHash() {
  const said = inHash("at");
  return /^\d{1,9}$/.test(said || "") ? Number(said) : null;
}

function lagWords() {
  if (lag.length < 5) return "";
  const sorted = [...lag].sort((a, b) => a - b);
  const at = (share) => `${sorted[Math.floor((sorted.length - 1) * share)].toFixed(1)} ms`;
  return `${at(0.5)} in the middle, ${at(0.95)} at the 95th of a hundred (${sorted.length} events)`;
}

explain();
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
