// What every part of the page uses: elements, words for figures, small pieces.
import { h, render, Fragment } from "./vendor/preact.mjs";
import { useState } from "./vendor/preact-hooks.mjs";
import { GLOSSARY } from "./glossary.js";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { h, render, Fragment };
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.mjs";

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 100 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
}

export function clock(value) {
  return value ? new Date(value * 1000).toLocaleTimeString([], { hour12: false }) : "";
}

/** Pixels at the text size of the reader. */
const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
export const rem = (pixels) => pixels * scale;

export const words = (name) => (name || "").replaceAll("_", " ");
export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

export function short(text, limit) {
  const line = String(text ?? "").replace(/\s+/g, " ").trim();
  return line.length <= limit ? line : `${line.slice(0, limit - 1)}…`;
}

/** A state's name with its color. */
export const State = ({ name, states }) => html`<span class="state-name ${tone(name, states)}">${name}</span>`;

export function tone(name, states) {
  const place = states.indexOf(name);
  return place < 0 ? "" : place === states.length - 1 ? "final" : `t${place % 7}`;
}

/** How a turn ended, in the color of its outcome. */
export const Exit = ({ name, mark = "" }) => html`<b class=${`exit-name ${outcomes[name] || ""}`}>${mark}${words(name)}</b>`;
export const outcomes = {};

/** A word with what it means, where the glossary has it. */
export function Term({ word, children }) {
  const means = GLOSSARY[word];
  return means ? html`<span class="term" tabindex="0" data-tip=${means}>${children || words(word)}</span>` : children || words(word);
}

export const money = (usd) => (usd === null ? "price unknown" : `$${usd.toFixed(usd && usd < 0.1 ? 4 : 2)}`);

/** A date that is short for today. */
export function when(value) {
  const then = new Date(value * 1000);
  const time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  if (then.toDateString() === new Date().toDateString()) return time;
  return `${then.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" })} ${time}`;
}

/** Plain text of any JSON value, long strings with their line breaks kept. */
export const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

const MOST = 40_000;

/** A block of text that may be long: the beginning, and the rest on demand. */
export function Text({ value, label, most = MOST }) {
  const text = pretty(value ?? "");
  const [whole, setWhole] = useState(false);
  const cut = text.length > most && !whole;
  return html`<pre class="text" tabindex="0" role="region" aria-label=${label}>${cut ? text.slice(0, most) : text}</pre>${cut && html`<${Rest} left=${text.length - most} onAll=${() => setWhole(true)} />`}`;
}

export const Rest = ({ left, onAll }) => html`<${Button} label="show all of the text" kind="link" onClick=${onAll}>show all (${left.toLocaleString("en")} more characters)<//>`;

/** An object by its parts: short ones beside their names, long texts with their line breaks. */
export function Parts({ value }) {
  return html`<dl class="parts">${Object.entries(value).filter(([name]) => name !== "is").map(([name, part]) => {
    const text = pretty(part ?? null);
    const long = text.length > 60 || text.includes("\n");
    return html`<div class=${long ? "long" : ""}><dt>${name}</dt><dd>${long ? html`<${Text} value=${text} label=${name} />` : html`<code>${text}</code>`}</dd></div>`;
  })}</dl>`;
}

/** A part that opens and closes; what is in it is made when it is first opened. */
export function Fold({ title, open = false, children, extra }) {
  const [made, setMade] = useState(open);
  return html`<details class="fold" open=${open} onToggle=${(event) => event.currentTarget.open && setMade(true)}>
    <summary>${title}${extra && html`<span class="quiet extra">${extra}</span>`}</summary>${made && children}</details>`;
}

/** `why`: it cannot work now, and this says why, to those who point at it and those who press it. */
export const Button = ({ label, hint, disabled, why, onClick, kind = "", children, pressed }) => html`<button type="button" class=${kind}
  aria-label=${label} title=${why || hint || label} disabled=${disabled} aria-disabled=${why ? "true" : null} aria-pressed=${pressed}
  onClick=${why ? () => refused.tell(why) : onClick}>${children}</button>`;

/** Where it is said that something was not done; the page puts its own in the place of this. */
export const refused = { tell: () => {} };

/** JSON that a person typed. */
export function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${what} is not JSON`);
  }
}
