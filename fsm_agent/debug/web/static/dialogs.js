// Dialogs: fork with changes, a new turn, texts to keep, help.
import { Button, html, parsed, pretty, useEffect, useRef, useState } from "./ui.js";

export function Dialog({ title, onClose, children, wide }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
    box.current.querySelector("textarea, select, footer button, li button")?.focus();
  }, []);
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title} onClose=${onClose} onKeyDown=${(event) => event.stopPropagation()}>
    <header><h2>${title}</h2><${Button} label="close" kind="link" onClick=${() => box.current.close()}>✕<//></header>
    ${children}</dialog>`;
}

const FORK_HELP = "The turn as it was after so many moves becomes a new turn, in a session of its own. The old one stays as it is, and nothing that ran before runs again.";

const OWN_HELP = "The turn as it was after so many moves becomes a new turn, which begins that state anew: what the state asks for is asked again. The old one stays as it is.";

export function Fork({ at, edit, state, talks, over, onFork, onClose }) {
  const [parts, setParts] = useState(() => partsOf(edit, state));
  const [problem, setProblem] = useState("");
  const add = (kind) => setParts([...parts, { kind, key: "", text: "" }]);
  const change = (index, values) => setParts(parts.map((part, i) => (i === index ? { ...part, ...values } : part)));
  const send = async (event) => {
    event.preventDefault();
    try {
      await onFork(at, editOf(parts));
    } catch (error) {
      setProblem(error.message);
    }
  };
  const kinds = Object.keys(PARTS).filter((kind) => (talks ? kind !== "reply" || state === over : ["counters", "fields"].includes(kind)));
  return html`<${Dialog} title=${`Fork after ${at} ${at === 1 ? "move" : "moves"}`} onClose=${onClose}>
    <form onSubmit=${send}>
      <p class="quiet">${talks ? FORK_HELP : OWN_HELP}</p>
      ${parts.map((part, index) => html`<fieldset><legend>${PARTS[part.kind].title}</legend>
        ${PARTS[part.kind].key && html`<label class="stack"><span class="quiet">${PARTS[part.kind].key}</span><input type="text" aria-label=${PARTS[part.kind].key} value=${part.key} spellcheck=${false} onInput=${(event) => change(index, { key: event.currentTarget.value })} /></label>`}
        ${part.kind !== "rerun_tools" && html`<textarea aria-label=${PARTS[part.kind].title} rows=${PARTS[part.kind].rows || 5} spellcheck=${false} value=${part.text} onInput=${(event) => change(index, { text: event.currentTarget.value })}></textarea>`}
        <p class="line"><span class="quiet">${PARTS[part.kind].hint || ""}</span><${Button} label=${`leave out: ${PARTS[part.kind].title}`} kind="link" onClick=${() => setParts(parts.filter((_, i) => i !== index))}>leave out<//></p>
      </fieldset>`)}
      <label class="stack"><span class="quiet">Change something else</span><select aria-label="add a change" value="" onChange=${(event) => { if (event.currentTarget.value) add(event.currentTarget.value); event.currentTarget.value = ""; }}>
        <option value="">add a change …</option>${kinds.map((kind) => html`<option value=${kind}>${PARTS[kind].title}</option>`)}</select></label>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <footer><button type="submit" class="primary">${parts.length ? "Fork with these changes" : "Fork"}</button></footer>
    </form><//>`;
}

const PARTS = {
  results: { title: "Result of a tool", key: "call id", hint: "The text that the model reads as the result." },
  reply: { title: "Answer of the model", hint: 'A text, or JSON: {"text": "", "tool_calls": [{"name": "…", "arguments": {…}}]}' },
  messages: { title: "A message", key: "number of the message", hint: "The row as JSON; empty takes it out.", rows: 8 },
  user_message: { title: "What the user said" },
  counters: { title: "Counters", hint: 'JSON: {"retries": 0}', rows: 3 },
  settings: { title: "Settings", hint: 'JSON, nested as in the settings: {"compression": {"enabled": true}}', rows: 3 },
  system_prompt: { title: "System prompt", rows: 8 },
  fields: { title: "Other fields", hint: "JSON: names of stored fields and their values", rows: 3 },
  rerun_tools: { title: "Run the tools of this visit again", hint: "Instead of taking the results that are recorded." },
};
const JSONS = new Set(["counters", "settings", "fields"]);

function partsOf(edit) {
  return Object.entries(edit || {}).flatMap(([kind, value]) => {
    if (kind === "results" || kind === "messages") return Object.entries(value).map(([key, text]) => ({ kind, key, text: pretty(text) }));
    return [{ kind, key: "", text: pretty(value) }];
  });
}

function editOf(parts) {
  const edit = {};
  for (const { kind, key, text } of parts) {
    if (kind === "results") (edit.results ||= {})[key] = text;
    else if (kind === "messages") (edit.messages ||= {})[key] = text.trim() ? parsed(text, "the message") : null;
    else if (kind === "rerun_tools") edit.rerun_tools = true;
    else if (kind === "reply") edit.reply = text.trim().startsWith("{") ? parsed(text, "the answer") : text;
    else edit[kind] = JSONS.has(kind) ? parsed(text, PARTS[kind].title) : text;
  }
  return edit;
}

export function Ask({ title, label, hint, button, rows = 4, onSend, onClose, children }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const send = async (event) => {
    event.preventDefault();
    try {
      await onSend(text);
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${send}>
    ${hint && html`<p class="quiet">${hint}</p>`}${children}
    <textarea rows=${rows} aria-label=${label} value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <footer><button type="submit" class="primary">${button}</button></footer></form><//>`;
}

Ask.Frame = Dialog;

/** A text to look at, copy, or keep as a file. */
export function Kept({ title, text, name, type, hint, onClose }) {
  const [done, setDone] = useState("");
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 5000);
    setDone("saved");
  };
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone("copied");
    } catch {
      setDone("this browser does not allow copying; select the text");
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${true}>
    <p class="quiet">${hint}</p>
    <pre class="text tall" tabindex="0" aria-label=${title}>${text.length > 200_000 ? `${text.slice(0, 200_000)}\n…` : text}</pre>
    <footer><span role="status" class="quiet">${done}</span><${Button} label="copy the text" onClick=${copy}>Copy<//><${Button} label=${`save as ${name}`} kind="primary" onClick=${save}>Save ${name}<//></footer><//>`;
}

const KEYS = [
  ["n", "step: to the next move"], ["i", "into: one request and its reply"], ["o", ""],
  ["c", "continue, or pause"], ["b", "back: look at the move before (nothing runs)"], ["m", "look at the move after"],
  ["Home / End", "look at the beginning / follow the engine"], ["[ / ]", "look at the breakpoint before / after"],
  ["f", "fork from where you look"], ["x", "interrupt the turn"], ["/", "search"], ["1 – 5", "tabs of the inspector"], ["?", "this help"],
];

/** Where *step over* leads. */
export const overWords = (over) => (over ? "over: to the next request to the model" : "over: out of this state, however often it is repeated");

export function Help({ lag, over, onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <table class="keys"><tbody>${KEYS.map(([key, text]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${text || overWords(over)}</td></tr>`)}</tbody></table>
    <p class="quiet">On the map: click a state or an arrow for a breakpoint, Shift-click to run to there. On the lanes: drag to look, wheel to zoom.</p>
    ${lag && html`<p class="quiet">From an event of the engine to this page: ${lag}.</p>`}<//>`;
}
