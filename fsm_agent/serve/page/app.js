// The page: chats, one conversation, and the turn that runs in it.
import { fresh, get, hasKey, inHash, keepHash, keepKey } from "./client.js";
import { TurnMap } from "./map.js";
import { Ask, Button, html, Message, plural, render, useEffect, useLayoutEffect, useRef, useState, words } from "./parts.js";
import { Thread } from "./thread.js";

function KeyForm({ said, onKey }) {
  const [key, setKey] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (key.trim()) onKey(key.trim());
  };
  return html`<main class="door"><form onSubmit=${submit}>
    <h1>fsm_agent</h1>
    <p>Paste the token that the server printed, or a key.</p>
    <label>Key<input type="password" autocomplete="off" autofocus value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
    ${said && html`<p class="problem" role="alert">${said}</p>`}
    <${Button} submit kind="primary">Open<//>
  </form></main>`;
}

function Chats({ sessions, current, onOpen, onNew }) {
  return html`<nav class="chats" aria-label="chats">
    <${Button} kind="new" onClick=${onNew}>New chat<//>
    <ul>${sessions.map((one) => html`<li key=${one.session}>
      <button type="button" aria-current=${one.session === current ? "page" : null} onClick=${() => onOpen(one.session)}>${one.title || one.session}</button>
    </li>`)}</ul>
  </nav>`;
}

function Composer({ thread, onSend }) {
  const [text, setText] = useState("");
  const field = useRef();
  const waits = thread.asks.length > 0;
  const send = () => {
    if (!text.trim() || thread.running || waits) return;
    onSend(text.trim());
    setText("");
    field.current.focus();
  };
  const waited = useRef(false);
  useEffect(() => {
    if (waited.current && !waits) field.current.focus(); // the button that had the focus is gone
    waited.current = waits;
  }, [waits]);
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${Math.min(field.current.scrollHeight + 2, 220)}px`;
  }, [text]);
  const key = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    <textarea ref=${field} rows="1" aria-label="your message" placeholder=${waits ? "Answer above first" : "Write a message"} value=${text} autofocus
      onInput=${(event) => setText(event.target.value)} onKeyDown=${key}></textarea>
    ${thread.running ? html`<${Button} kind="danger" onClick=${() => thread.stop()}>Stop<//>` : html`<${Button} submit kind="primary" disabled=${!text.trim() || waits}>Send<//>`}
  </form>`;
}

function Asks({ thread }) {
  const [given, setGiven] = useState(new Map());
  const ids = thread.asks.map((one) => one.id).join(" ");
  useEffect(() => setGiven(new Map()), [ids]);
  const give = (entry, label) => {
    const now = new Map(given).set(entry.interruptId, { entry, label });
    setGiven(now);
    if (thread.asks.every((one) => now.has(one.id))) thread.answer(thread.asks.map((one) => now.get(one.id).entry)).then(() => setGiven(new Map()));
  };
  return thread.asks.map((ask) => html`<${Ask} key=${ask.id} ask=${ask} given=${given.get(ask.id)?.label} onGiven=${give} busy=${thread.running} />`);
}

function Conversation({ thread, name, onSend }) {
  const list = useRef();
  const near = useRef(true);
  const results = new Map(thread.messages.filter((one) => one.role === "tool").map((one) => [one.toolCallId, one]));
  useLayoutEffect(() => {
    if (near.current) list.current.scrollTop = list.current.scrollHeight;
  });
  const scrolled = () => (near.current = list.current.scrollHeight - list.current.scrollTop - list.current.clientHeight < 60);
  return html`<section class="conversation" aria-label="chat">
    <div class="messages" ref=${list} onScroll=${scrolled} tabindex="0" role="log" aria-label="conversation" aria-busy=${thread.running}>
      ${!thread.messages.length && !thread.running && html`<div class="empty"><h2>${name}</h2><p>Ask something. Each state that the answer goes through lights up on the map.</p></div>`}
      ${thread.messages.map((one) => html`<${Message} key=${one.id} message=${one} results=${results} running=${thread.running} />`)}
      ${thread.children.map((one) => html`<p key=${one.id} class="child"><b>task</b> ${one.goal} <span class="quiet">${one.over || one.doing || "works"}</span></p>`)}
      ${thread.running && html`<p class="doing"><span class="beat" aria-hidden="true"></span>${thread.lost ? "The connection was lost; trying again …" : words(thread.state?.state || "starting")}</p>`}
      ${thread.note && html`<p class="note">${thread.note}</p>`}
      ${thread.error && html`<p class="problem" role="alert">${thread.error}</p>`}
      <${Asks} thread=${thread} />
    </div>
    <${Composer} thread=${thread} onSend=${onSend} />
  </section>`;
}

function TurnPanel({ thread, svg }) {
  const { state, path } = thread;
  const counters = Object.entries(state?.counters || {}).filter(([, count]) => count);
  const label = !state ? "no turn yet" : thread.asks.length ? "waits for you" : thread.running ? "running" : state.status === "idle" ? "at rest" : state.status;
  return html`<section class="turn" aria-label="the turn">
    <h2>Turn <span class=${`chip ${label.split(" ")[0]}`}>${label}</span></h2>
    <p class="where" role="status">${state?.state ? html`<b>${words(state.state)}</b> after ${plural(state.moves, "move")}` : html`<span class="quiet">Send a message to begin.</span>`}</p>
    <${TurnMap} svg=${svg} state=${state} path=${path} running=${thread.running} />
    ${path.length > 0 && html`<h3>Moves, newest first</h3><ol class="path" tabindex="0" aria-label="moves">${path.slice(-60).map((one, number) => html`<li key=${number}><span class="quiet">${words(one.source)}</span> ${words(one.event)} <b>${words(one.dest)}</b></li>`)}</ol>`}
    ${counters.length > 0 && html`<h3>Counters</h3><dl class="counters">${counters.map(([name, count]) => html`<div key=${name}><dt>${words(name)}</dt><dd>${count}</dd></div>`)}</dl>`}
  </section>`;
}

function App() {
  const [open, setOpen] = useState(hasKey());
  const [said, setSaid] = useState("");
  const [about, setAbout] = useState(null);
  const [sessions, setSessions] = useState([]);
  const [, redraw] = useState(0);
  const [side, setSide] = useState("");
  const drawing = useRef(0);
  const thread = useRef(null);
  const changed = () => {
    if (!drawing.current) drawing.current = requestAnimationFrame(() => { drawing.current = 0; redraw((n) => n + 1); });
  };
  const list = () => get("/api/sessions").then((told) => setSessions(told.sessions), () => {});
  const start = (id) => {
    thread.current?.close();
    const made = new Thread(id || `chat-${fresh()}`, changed, list);
    thread.current = made;
    keepHash("thread", id || null);
    setSide("");
    changed();
    return id ? made.join() : null;
  };
  useEffect(() => {
    if (!open) return;
    get("/agui/about").then((told) => {
      setAbout(told);
      document.title = told.name;
      list();
      start(inHash("thread"));
    }, (error) => { setSaid(error.message); setOpen(false); });
  }, [open]);
  if (!open) return html`<${KeyForm} said=${said} onKey=${(key) => { keepKey(key); setOpen(true); }} />`;
  if (!about || !thread.current) return html`<p class="loading">loading …</p>`;
  const now = thread.current;
  const send = (text) => {
    keepHash("thread", now.id);
    now.send(text);
  };
  const toggle = (name) => setSide(side === name ? "" : name);
  return html`<div class=${`page ${side && `shows-${side}`}`}>
    <header><h1>${about.name}</h1>
      <div class="switches"><button type="button" aria-expanded=${side === "chats"} onClick=${() => toggle("chats")}>Chats</button><button type="button" aria-expanded=${side === "turn"} onClick=${() => toggle("turn")}>Turn</button></div>
    </header>
    <main>
    <${Chats} sessions=${sessions} current=${now.id} onOpen=${start} onNew=${() => start("")} />
    <${Conversation} key=${now.id} thread=${now} name=${about.name} onSend=${send} />
    <${TurnPanel} thread=${now} svg=${about.map} />
    </main>
  </div>`;
}

render(html`<${App} />`, document.getElementById("app"));
