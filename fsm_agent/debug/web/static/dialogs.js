// Dialogs: a new turn, texts to keep, help.
import { Button, html, useEffect, useRef, useState } from "./ui.js";

export function Dialog({ title, onClose, children, wide }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
    box.current.querySelector("textarea, select, footer button, li button")?.focus();
  }, []);
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title} onClose=${onClose} onKeyDown=${(event) => event.stopPropagation()}>
    <div class="dialog-head"><h2>${title}</h2><${Button} label="close" kind="link" onClick=${() => box.current.close()}>✕<//></div>
    ${children}</dialog>`;
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
    <pre class="text tall" tabindex="0" role="region" aria-label=${title}>${text.length > 200_000 ? `${text.slice(0, 200_000)}\n…` : text}</pre>
    <footer><span role="status" class="quiet">${done}</span><${Button} label="copy the text" onClick=${copy}>Copy<//><${Button} label=${`save as ${name}`} kind="primary" onClick=${save}>Save ${name}<//></footer><//>`;
}

const KEYS = [
  ["n", "step: to the next move"], ["i", "into: one request and its reply"], ["o", ""],
  ["c", "continue, or pause"], ["b", "back: show the previous move (nothing runs)"], ["m", "show the next move"],
  ["Home / End", "show the beginning / follow the engine"], ["[ / ]", "show the previous / next breakpoint"],
  ["f", "fork from this position"], ["x", "interrupt the turn"], ["/", "search"], ["1 – 5", "tabs of the inspector"], ["?", "this help"],
];

/** Where *step over* leads. */
export const overWords = (over) => (over ? "over: to the next request to the model" : "over: out of this state, however often it is repeated");

export function Help({ lag, over, onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <table class="keys"><tbody>${KEYS.map(([key, text]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${text || overWords(over)}</td></tr>`)}</tbody></table>
    <p class="quiet">On the map: click a state or an arrow for a breakpoint, Shift-click to run to there. On the lanes: drag to move, wheel to zoom. The address of the page contains the position: bookmark it to come back.</p>
    ${lag && html`<p class="quiet">From an event of the engine to this page: ${lag}.</p>`}<//>`;
}
