// What waits for a person, and the answers. A call is shown exactly as it would run: nothing cut, nothing masked.
import { ReplyForm, replyOf, ResultForm } from "./forms.js";
import { Button, html, Parts, parsed, plural, useEffect, useRef, useState, words } from "./ui.js";

/** What waits for a person, at the top of the inspector. */
export function Waiting({ held, tools, onAnswer, onLet, onEdit }) {
  return held.map((one) => html`<${HeldCard} key=${one.id} one=${one} tools=${tools || []} onAnswer=${onAnswer} onLet=${onLet} onEdit=${onEdit} />`);
}

const STILL = 600; // milliseconds
const EARLY = "Not taken: this has only just appeared here, or moved. Read it, then press again.";

/** Have these buttons stood still, in sight, for `STILL` milliseconds? A click or a key before that was meant for what was there before.
 *
 *  The clock runs from the second frame in which they have a place: by then the first has been drawn. A click counts by the time at which
 *  it was made, not at which the page gets to it, so a page that is slow takes what its reader meant, and what it does not take it says.
 *  Without `placed` they may move: what a form of the reader's own says is his, wherever he scrolls it. `press(act)` gives the handler of a button; `still` says how the buttons look. */
export function useStill(buttons, what, placed = true) {
  const [still, setStill] = useState(false);
  const [refusal, setRefusal] = useState("");
  const seen = useRef({ place: "", since: Infinity });
  const placeNow = () => (placed ? placeOf(buttons.current) : document.hasFocus() ? "anywhere" : "");
  useEffect(() => {
    let [frame, frames] = [0, 0];
    seen.current = { place: "", since: Infinity };
    const look = () => {
      const here = placeNow();
      if (here !== seen.current.place || !here) [frames, seen.current] = [0, { place: here, since: Infinity }];
      else if (++frames === 1) seen.current.since = performance.now();
      setStill(performance.now() - seen.current.since >= STILL);
      frame = requestAnimationFrame(look);
    };
    setStill(false);
    setRefusal("");
    frame = requestAnimationFrame(look);
    return () => cancelAnimationFrame(frame);
  }, [what]);
  const press = (act) => (event) => {
    const { place, since } = seen.current;
    if (event.timeStamp - since < STILL || placeNow() !== place) return setRefusal(EARLY);
    setRefusal("");
    return act();
  };
  return { still, press, refusal };
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

/** A button that is pressed as `useStill` says: gray, but still in reach of the keyboard, while it may not be. */
export const StillButton = ({ label, children, kind = "", by, onClick, why = "" }) => html`<button type="button" class=${kind} aria-label=${label}
  title=${why || label} aria-disabled=${why || !by.still ? "true" : null} onClick=${why ? () => {} : by.press(onClick)}>${children}</button>`;

const LET = { model: ["send the request", "Send it"], tool: ["run the tool", "Run it"], request: ["let it be done", "Let it be done"] };
const TITLES = { approval: "May this run?", model: "The model is about to be asked", tool: "A tool is about to run" };
const HOW = "the reply: its first field as text, or all of them as JSON";

function HeldCard({ one, onAnswer, onLet, onEdit, tools }) {
  const [doing, setDoing] = useState(""); // "answer" by hand, or "edit" what goes out
  const [said, setSaid] = useState(null);
  const [problem, setProblem] = useState("");
  const buttons = useRef(null);
  const by = useStill(buttons, doing, !doing);
  const title = one.kind === "event" ? `What does ${one.name} report?` : TITLES[one.kind] || "A request is about to be made";
  const begin = (what, value) => {
    setSaid(value);
    setProblem("");
    setDoing(what);
  };
  const send = (act, value) => async () => {
    try {
      await act(one.id, value());
    } catch (error) {
      setProblem(error.message);
    }
  };
  const button = (label, shown, onClick, kind = "", why = "") => html`<${StillButton} key=${label} label=${label} kind=${kind} by=${by} why=${why} onClick=${onClick}>${shown}<//>`;
  const plain = (label, shown, onClick) => html`<${Button} key=${label} label=${label} onClick=${onClick}>${shown}<//>`;
  const say = (value) => send(onAnswer, () => value);
  const early = one.allowable ? "" : "the rules have not decided yet";
  return html`<section class="held" role="alertdialog" aria-label=${title}>
    <h2>${title}</h2>
    ${one.question ? html`<${Call} asked=${one.question} approval=${one.kind === "approval"} />`
      : one.kind === "model" ? html`<p class="line"><code>${one.name}</code> <span class="quiet">about ${(one.estimate || 0).toLocaleString("en")} tokens</span></p>
      ${doing !== "edit" && html`<details class="fold"><summary>the exact body</summary><pre class="text" tabindex="0" role="region" aria-label="body of the request">${bodyOf(one.wire)}</pre></details>`}`
      : one.kind === "event" ? html`<p class="quiet">No code runs this table: you choose what each state reports.</p>`
      : html`<p class="line"><code>${one.name}</code></p><${Parts} value=${one.request} />`}
    ${doing === "edit" && html`<label class="stack"><span class="quiet">what goes out instead, as JSON</span><textarea rows="12" aria-label="body to send" spellcheck=${false} value=${said} onInput=${(event) => setSaid(event.currentTarget.value)} onKeyDown=${(event) => event.stopPropagation()}></textarea></label>`}
    ${doing === "answer" && html`<div onKeyDown=${(event) => event.stopPropagation()}>${one.kind === "model" ? html`<${ReplyForm} value=${said} tools=${tools} onChange=${setSaid} failures=${true} />`
      : one.kind === "tool" ? html`<${ResultForm} value=${said} onChange=${setSaid} />`
      : html`<label class="stack"><span class="quiet">${HOW}</span><textarea rows="4" aria-label="answer by hand" value=${said} onInput=${(event) => setSaid(event.currentTarget.value)}></textarea></label>`}</div>`}
    ${(problem || by.refusal) && html`<p class="problem" role="alert">${problem || by.refusal}</p>`}
    ${one.kind === "approval" && !one.allowable && html`<p class="quiet">The rules have not decided yet. Until then you can only deny.</p>`}
    ${one.kind === "approval" && one.elsewhere && one.allowable && html`<p class="quiet">The process that runs the turn asks, too; the first answer counts.</p>`}
    <div class="buttons" ref=${buttons}>
      ${one.kind === "approval" ? [
        button("allow once", "Allow once", say("once"), "primary", early),
        one.question.remembered && button("allow for this session", "Allow for the session", say("session"), "", early),
        button("deny", "Deny", say("deny"), "danger"),
      ]
        : one.kind === "event" ? one.events.map((name, i) => button(`report ${words(name)}`, words(name), say(name), i ? "" : "primary"))
        : doing === "answer" ? [button("give this answer", "Give this answer", send(onAnswer, () => answerOf(one, said)), "primary"), plain("do not answer by hand", "Back", () => setDoing(""))]
        : doing === "edit" ? [button("send what is written here", "Send this", send(onEdit, () => parsed(said, "the body")), "primary"), plain("do not edit", "Back", () => setDoing(""))]
        : [button(LET[one.kind][0], LET[one.kind][1], send((id) => onLet(id), () => null), "primary"),
          one.editable && plain("edit the request", "Edit …", () => begin("edit", bodyOf(one.wire))),
          one.answerable !== false && plain("answer by hand", "Answer by hand …", () => begin("answer", EMPTY[one.kind] ?? ""))]}
    </div></section>`;
}

const EMPTY = { model: { text: "", tool_calls: [] }, tool: { text: "", status: "ok" } };

/** What was written, as the engine takes it. */
function answerOf(one, said) {
  if (one.kind === "model") return replyOf(said);
  return one.kind !== "tool" && said.trim().startsWith("{") ? parsed(said, "the answer") : said;
}

const LONG = { characters: 400, lines: 8 };

/** A call as it would run: the place of each argument, and its text or its JSON. */
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
    ${escapes && html`<p class="quiet"><code>\\x1b</code> and the like are invisible characters, <code>\\x5c</code> is a backslash.</p>`}
    ${asked.remembered && html`<p class="quiet">“For the session” would remember${alone}</p><${Shown} text=${asked.remembered} kind="call-remembered" label="what would be remembered" />`}
    ${approval && !asked.remembered && html`<p class="quiet">This can be allowed once only.</p>`}</div>`;
}

const ESCAPE = /\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})(?:⟨[0-9,]+ times⟩)?|↵|⇥/;
const MARKED = 200_000;

/** A text as it was made visible, with the signs that replace something else in another color. */
export function Shown({ text, kind, label }) {
  const parts = text.length > MARKED ? [text] : text.split(new RegExp(`(${ESCAPE.source})`));
  return html`<pre class=${`text exact ${kind}`} tabindex="0" role="region" aria-label=${label}>${parts.map((part, i) => (i % 2 ? html`<b class="escape">${part}</b>` : part))}</pre>`;
}

function bodyOf(wire) {
  try {
    return JSON.stringify(JSON.parse(wire), null, 2);
  } catch {
    return wire;
  }
}
