// What every part of the page uses, and the parts of a conversation.
import { h, render } from "./vendor/preact.mjs";
import { useEffect, useState } from "./vendor/preact-hooks.mjs";
import htm from "./vendor/htm.mjs";
import { post } from "./client.js";

export const html = htm.bind(h);
export { render };
export { useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-hooks.mjs";

export const words = (name) => (name || "").replace(/([a-z])([A-Z])/g, "$1 $2").replaceAll("_", " ");
export const plural = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

/** A button that a keyboard reaches also while it cannot be pressed. */
export const Button = ({ kind = "", onClick, disabled, label, children, submit }) =>
  html`<button type=${submit ? "submit" : "button"} class=${kind} onClick=${onClick} disabled=${disabled} aria-label=${label}>${children}</button>`;

// Markdown, from the tree that the server reads it into: only elements that are made here, never markup of a model.

const TAGS = new Set(["p", "ul", "ol", "li", "blockquote", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td", "code", "br", "hr"]);
const known = new Map();

function drawn(node) {
  if (node.text !== undefined) return node.text;
  const inside = node.parts.map(drawn);
  if (/^h[1-6]$/.test(node.tag)) return html`<p class="head">${inside}</p>`;
  if (node.tag === "pre") return html`<pre tabindex="0" role="group" aria-label="code">${inside}</pre>`;
  if (node.tag === "a") return node.href ? html`<a href=${node.href} target="_blank" rel="noopener noreferrer nofollow">${inside}</a>` : html`<span>${inside}</span>`;
  return TAGS.has(node.tag) ? html`<${node.tag}>${inside}<//>` : inside;
}

export function Markdown({ text, open }) {
  const [, redraw] = useState(0);
  useEffect(() => {
    if (open || known.has(text)) return;
    let gone = false;
    const keep = (blocks) => {
      if (known.size > 300) known.delete(known.keys().next().value);
      known.set(text, blocks);
      if (!gone) redraw((n) => n + 1);
    };
    post("/agui/markdown", { text }).then(({ blocks }) => keep(blocks), () => keep(null));
    return () => {
      gone = true;
    };
  }, [text, open]);
  const blocks = open ? null : known.get(text);
  return blocks ? html`<div class="text">${blocks.map(drawn)}</div>` : html`<div class="text plain">${text}</div>`;
}

// Messages

const plain = (content) => (typeof content === "string" ? content : (content || []).map((one) => one.text ?? `[${one.type}]`).join("\n"));

function shortly(text) {
  const line = text.replace(/\s+/g, " ");
  return line.length > 90 ? `${line.slice(0, 89)}…` : line;
}

function argumentsOf(call) {
  try {
    const given = JSON.parse(call.function.arguments || "{}");
    const values = Object.values(given);
    return { line: values.length === 1 ? String(values[0]) : Object.entries(given).map(([name, one]) => `${name}: ${typeof one === "string" ? one : JSON.stringify(one)}`).join(", "), whole: JSON.stringify(given, null, 2) };
  } catch {
    return { line: call.function.arguments, whole: call.function.arguments };
  }
}

export function Call({ call, result, running }) {
  const given = argumentsOf(call);
  const status = result ? result.metadata?.status || "ok" : running ? "running" : "waits";
  return html`<details class=${`call ${status}`}>
    <summary><span class="sign" aria-hidden="true"></span><b>${call.function.name}</b> <code>${shortly(given.line)}</code><span class="status">${status}</span></summary>
    <pre tabindex="0" role="group" aria-label="arguments">${given.whole}</pre>
    ${result && html`<pre tabindex="0" role="group" aria-label="result">${plain(result.content)}</pre>`}
  </details>`;
}

export function Message({ message, results, running }) {
  if (message.role === "tool") return null;
  if (message.role === "reasoning") return html`<details class="thought"><summary>Thoughts</summary><div class="text plain">${message.content}</div></details>`;
  if (message.role === "user") return html`<article class="message user" aria-label="you"><div class="text plain">${plain(message.content)}</div></article>`;
  return html`<article class="message assistant" aria-label="agent">
    ${message.content && html`<${Markdown} text=${message.content} open=${message.open} />`}
    ${(message.toolCalls || []).map((call) => html`<${Call} key=${call.id} call=${call} result=${results.get(call.id)} running=${running} />`)}
  </article>`;
}

// What the agent waits for

const SAID = { once: "Allow once", session: "Allow in this chat", always: "Always allow", deny: "Deny", never: "Never allow" };

export function Ask({ ask, given, onGiven, busy }) {
  const [text, setText] = useState("");
  const about = ask.metadata?.fsm_agent || {};
  const approval = about.kind === "approval";
  const choices = about.choices || [];
  const say = (payload, label) => onGiven({ interruptId: ask.id, status: "resolved", payload }, label);
  if (given) return html`<section class="ask given" aria-label="answered"><p>${approval ? about.tool : ask.message} <b>${given}</b></p></section>`;
  const submit = (event) => {
    event.preventDefault();
    if (text.trim()) say({ answer: text }, text);
  };
  return html`<section class="ask" aria-label=${approval ? `may ${about.tool} run?` : "a question"}>
    <h2>${approval ? html`May <code>${about.tool}</code> run?` : "A question"}</h2>
    ${approval ? html`<pre tabindex="0" role="group" aria-label="what would run">${ask.message}</pre>` : html`<p class="question">${ask.message}</p>`}
    <div class="answers">
      ${approval
        ? choices.map((one) => html`<${Button} key=${one} kind=${one === "once" ? "primary" : one === "deny" ? "danger" : "soft"} disabled=${busy}
            onClick=${() => say({ approved: !["deny", "never"].includes(one), choice: one }, SAID[one])}>${SAID[one] || one}<//>`)
        : choices.map((one) => html`<${Button} key=${one} disabled=${busy} onClick=${() => say({ answer: one }, one)}>${one}<//>`)}
    </div>
    ${!approval && html`<form class="own" onSubmit=${submit}><input aria-label="your answer" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="Your answer" /><${Button} submit kind="primary" disabled=${busy || !text.trim()}>Answer<//></form>`}
  </section>`;
}
