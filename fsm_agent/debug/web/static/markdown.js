// Markdown that a model wrote, from the tree that the program reads it into: only elements that are made here, never markup of its own.
import { submit } from "./api.js";
import { Button, html, Rest, useEffect, useState } from "./ui.js";

const known = new Map();
const KEPT = 200;

/** The blocks of a text; undefined while they are being read, null where there are none. */
function useBlocks(text) {
  const [, redraw] = useState(0);
  useEffect(() => {
    if (known.has(text)) return;
    let gone = false;
    submit("/api/markdown", { text }).then(({ blocks }) => keep(text, blocks), () => keep(text, null)).then(() => gone || redraw((n) => n + 1));
    return () => {
      gone = true;
    };
  }, [text]);
  return known.get(text);
}

function keep(text, blocks) {
  if (known.size >= KEPT) known.delete(known.keys().next().value);
  known.set(text, blocks);
}

const SHORT = 1500;

/** A text with its line breaks; as Markdown, or as it was written. A long one begins short. */
export function Markdown({ text, most = SHORT, kind = "content" }) {
  const [whole, setWhole] = useState(false);
  const [raw, setRaw] = useState(false);
  const cut = text.length > most && !whole;
  const shown = cut ? text.slice(0, most) : text;
  const blocks = useBlocks(shown);
  const plain = raw || !blocks;
  const formatted = blocks && (blocks.length > 1 || blocks.some((one) => one.tag !== "p" || one.parts.some((part) => part.tag && part.tag !== "br")));
  return html`${plain ? html`<p class=${kind}>${shown}</p>` : html`<div class=${`markdown ${kind}`}>${blocks.map(drawn)}</div>`}
    ${(cut || formatted) && html`<p class="text-more">${cut && html`<${Rest} left=${text.length - most} onAll=${() => setWhole(true)} />`}
      ${formatted && html`<${Button} label=${raw ? "show it formatted" : "show it as it was written"} kind="link" onClick=${() => setRaw(!raw)}>${raw ? "formatted" : "as written"}<//>`}</p>`}`;
}

const HEADS = { h1: "h3", h2: "h4", h3: "h5", h4: "h6", h5: "h6", h6: "h6" };
const TAGS = new Set(["p", "ul", "ol", "li", "blockquote", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td", "code", "br", "hr"]);

function drawn(node) {
  if (node.text !== undefined) return node.text;
  const parts = node.parts.map(drawn);
  if (HEADS[node.tag]) return html`<p class=${`md-head md-${HEADS[node.tag]}`}>${parts}</p>`;
  if (node.tag === "pre") return html`<pre class="text" tabindex="0" role="region" aria-label="code">${parts}</pre>`;
  if (node.tag === "a") return node.href ? html`<a href=${node.href} target="_blank" rel="noopener noreferrer nofollow" title=${node.href}>${parts}</a>` : html`<span>${parts}</span>`;
  if (!TAGS.has(node.tag)) return parts;
  return html`<${node.tag}>${parts}<//>`;
}
