// What waits for a person, and the answers. A call is shown exactly as it would run: nothing cut, nothing masked.
import { Button, html, Parts, parsed, plural, useEffect, useRef, useState, words } from "./ui.js";

/** What waits for a person, at the top of the inspector. */
export function Waiting({ held, onAnswer, onLet }) {
  return held.map((one) => html`<${HeldCard} key=${one.id} one=${one} onAnswer=${onAnswer} onLet=${onLet} />`);
}

const STILL = 600;
const ASLEEP = 1000;

/** Have these buttons stood still, in sight, for so many milliseconds? A click or a key before that was meant for what was there before. */
export function useStill(buttons, what) {
  const [still, setStill] = useState(false);
  useEffect(() => {
    let [frame, place, since, last] = [0, "", 0, 0];
    const look = (now) => {
      const here = placeOf(buttons.current);
      if (here !== place || !here || now - last > ASLEEP) [place, since] = [here, now];
      last = now;
      setStill(now - since >= STILL);
      frame = requestAnimationFrame(look);
    };
    setStill(false);
    frame = requestAnimationFrame(look);
    return () => cancelAnimationFrame(frame);
  }, [what]);
  return still;
}

/** Where the buttons are; empty while the reader is elsewhere, or something lies over them. Those that are yet to be scrolled to are not covered: they move when they are reached. */
function placeOf(buttons) {
  if (!buttons || !document.hasFocus()) return "";
  const boxes = [...buttons.children].map((one) => [one, one.getBoundingClientRect()]);
  const frame = buttons.closest(".notices")?.getBoundingClientRect();
  const covered = ([one, box]) => {
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const top = frame && (y < frame.top || y > frame.bottom) ? null : document.elementFromPoint(x, y);
    return top && !one.contains(top);
  };
  return boxes.some(covered) ? "" : boxes.map(([, box]) => `${box.left},${box.top},${box.width}`).join(" ");
}

const LET = { model: ["send the request", "Send it"], tool: ["run the tool", "Run it"], request: ["let it be done", "Let it be done"] };
const TITLES = { approval: "May this run?", model: "The model is about to be asked", tool: "A tool is about to run" };
const HOW = {
  model: 'a text, or {"text", "tool_calls": [{"name", "arguments"}]}', tool: "the result, as the model reads it",
  request: "the reply: its first field as text, or all of them as JSON",
};

function HeldCard({ one, onAnswer, onLet }) {
  const [byHand, setByHand] = useState(false);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const buttons = useRef(null);
  const still = useStill(buttons, byHand);
  const title = one.kind === "event" ? `What does ${one.name} report?` : TITLES[one.kind] || "A request is about to be made";
  const give = () => {
    try {
      onAnswer(one.id, one.kind !== "tool" && text.trim().startsWith("{") ? parsed(text, "the answer") : text);
    } catch (error) {
      setProblem(error.message);
    }
  };
  const button = (label, shown, onClick, kind = "", allowed = still) => html`<${Button} key=${label} label=${label} kind=${kind} disabled=${!allowed} onClick=${onClick}>${shown}<//>`;
  const say = (said) => () => onAnswer(one.id, said);
  return html`<section class="held" role="alertdialog" aria-label=${title}>
    <h2>${title}</h2>
    ${one.question ? html`<${Call} asked=${one.question} approval=${one.kind === "approval"} />`
      : one.kind === "model" ? html`<p class="line"><code>${one.name}</code> <span class="quiet">about ${(one.estimate || 0).toLocaleString("en")} tokens</span></p>
      <details class="fold"><summary>the exact body</summary><pre class="text" tabindex="0" aria-label="body of the request">${bodyOf(one.wire)}</pre></details>`
      : one.kind === "event" ? html`<p class="quiet">Nobody runs this table: you say what each state reports.</p>`
      : html`<p class="line"><code>${one.name}</code></p><${Parts} value=${one.request} />`}
    ${byHand && html`<label class="stack"><span class="quiet">${HOW[one.kind]}</span><textarea rows="4" aria-label="answer by hand" value=${text} onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${(event) => event.stopPropagation()}></textarea></label>`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${one.kind === "approval" && !one.allowable && html`<p class="quiet">The rules have not spoken yet. Until then one can only deny.</p>`}
    ${one.kind === "approval" && one.elsewhere && one.allowable && html`<p class="quiet">Somebody is asked where the turn runs, too; the first answer counts.</p>`}
    <div class="buttons" ref=${buttons}>
      ${one.kind === "approval" ? [
        button("allow once", "Allow once", say("once"), "primary", still && one.allowable),
        one.question.remembered && button("allow for this session", "Allow for the session", say("session"), "", still && one.allowable),
        button("deny", "Deny", say("deny"), "danger"),
      ]
        : one.kind === "event" ? one.events.map((name, i) => button(`report ${words(name)}`, words(name), say(name), i ? "" : "primary"))
        : byHand ? [button("give this answer", "Give this answer", give, "primary"), button("do not answer by hand", "Back", () => setByHand(false), "", true)]
        : [button(LET[one.kind][0], LET[one.kind][1], () => onLet(one.id), "primary"), one.answerable !== false && button("answer by hand", "Answer by hand …", () => setByHand(true), "", true)]}
    </div></section>`;
}

const LONG = { characters: 400, lines: 8 };

/** A call as it would run: of every argument where it stands, and its text or its JSON. */
function Call({ asked, approval }) {
  const long = asked.characters > LONG.characters || asked.lines > LONG.lines;
  const escapes = [asked.name, asked.task, asked.remembered, ...asked.parts.flatMap((part) => [part.place, part.shown])].some((text) => new RegExp(ESCAPE).test(text));
  const alone = /\(#[0-9a-f]{64}\)$/.test(asked.remembered) ? " this call alone" : "";
  return html`<div class="call">
    <p class="line"><code class="call-name">${asked.name}</code> <span class="quiet">${asked.parts.length ? "" : "without arguments"}${long && `${plural(asked.characters, "character")} in ${plural(asked.lines, "line")}; all of it is here, scroll to see it`}</span></p>
    ${asked.task && html`<p class="quiet">for the delegated task</p><${Shown} text=${asked.task} kind="call-task" label="task" />`}
    ${asked.where && html`<p class="quiet">runs</p><${Shown} text=${asked.where} kind="call-task" label="where it runs" />`}
    ${asked.why && html`<p class="quiet">asked because</p><${Shown} text=${asked.why} kind="call-task" label="why it is asked" />`}
    ${asked.parts.map((part) => html`<div class="call-part"><span class="call-place">${part.place}</span>${part.words ? html`<${Shown} text=${part.shown} kind="call-text" label=${part.place} />` : html` <code class="call-json">= ${part.shown}</code>`}</div>`)}
    ${escapes && html`<p class="quiet"><code>\\x1b</code> and the like stand for unseen characters, <code>\\x5c</code> for a backslash.</p>`}
    ${asked.remembered && html`<p class="quiet">“For the session” would remember${alone}</p><${Shown} text=${asked.remembered} kind="call-remembered" label="what would be remembered" />`}
    ${approval && !asked.remembered && html`<p class="quiet">This can be allowed once only.</p>`}</div>`;
}

const ESCAPE = /\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})(?:⟨[0-9,]+ times⟩)?|↵|⇥/;
const MARKED = 200_000;

/** A text as it was made visible, with the signs that stand for something else in another colour. */
export function Shown({ text, kind, label }) {
  const parts = text.length > MARKED ? [text] : text.split(new RegExp(`(${ESCAPE.source})`));
  return html`<pre class=${`text exact ${kind}`} tabindex="0" aria-label=${label}>${parts.map((part, i) => (i % 2 ? html`<b class="escape">${part}</b>` : part))}</pre>`;
}

function bodyOf(wire) {
  try {
    return JSON.stringify(JSON.parse(wire), null, 2);
  } catch {
    return wire;
  }
}
