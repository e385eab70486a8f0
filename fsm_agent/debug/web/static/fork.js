// The dialog in which a turn is forked, with what is changed in the fork.
import { turnPath } from "./api.js";
import { Dialog } from "./dialogs.js";
import { useFetched } from "./fetched.js";
import { CountersForm, MessageForm, ReplyForm, replyOf } from "./forms.js";
import { Button, html, parsed, pretty, useState } from "./ui.js";

const FORK_HELP = "The turn up to this move becomes a new turn, in a session of its own. The old one stays as it is, and nothing that has run runs again.";
const OWN_HELP = "The turn up to this move becomes a new turn, which enters that state again: its requests are made again. The old one stays as it is.";

/** `why`: why the fork begins there; `run`: whether it continues at once, which is offered first then. */
export function Fork({ turn, at, edit, state, why, run, talks, over, flags, onFork, onClose }) {
  const [parts, setParts] = useState(() => partsOf(edit, state));
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const { data: there } = useFetched(turnPath(turn, `/at/${at}`));
  const change = (index, values) => setParts(parts.map((part, i) => (i === index ? { ...part, ...values } : part)));
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await onFork(at, editOf(parts), event.submitter?.value === "run");
    } catch (error) {
      setProblem(error.message);
      setBusy(false);
    }
  };
  const here = there?.state ?? state;
  const kinds = Object.keys(PARTS).filter((kind) => (talks ? kind !== "reply" || here === over : ["counters", "fields"].includes(kind)));
  return html`<${Dialog} title=${`Fork after ${at} ${at === 1 ? "move" : "moves"}`} onClose=${onClose}>
    <form onSubmit=${send}>
      ${why && html`<p class="fork-why">${why}</p>`}
      <p class="quiet">${talks ? FORK_HELP : OWN_HELP}</p>
      ${parts.map((part, index) => html`<fieldset key=${index}><legend>${PARTS[part.kind].title}</legend>
        ${PARTS[part.kind].key && html`<label class="stack"><span class="quiet">${PARTS[part.kind].key}</span><input type="text" aria-label=${PARTS[part.kind].key} value=${part.key} spellcheck=${false} onInput=${(event) => change(index, { key: event.currentTarget.value })} /></label>`}
        <${Part} part=${part} there=${there} flags=${flags} onChange=${(value) => change(index, { value })} />
        <p class="line"><span class="quiet">${PARTS[part.kind].hint || ""}</span><${Button} label=${`leave out: ${PARTS[part.kind].title}`} kind="link" onClick=${() => setParts(parts.filter((_, i) => i !== index))}>leave out<//></p>
      </fieldset>`)}
      <label class="stack"><span class="quiet">Change something else</span><select aria-label="add a change" value="" onChange=${(event) => { const kind = event.currentTarget.value; if (kind) setParts([...parts, { kind, key: "", value: PARTS[kind].empty ?? "" }]); event.currentTarget.value = ""; }}>
        <option value="">add a change …</option>${kinds.map((kind) => html`<option value=${kind}>${PARTS[kind].title}</option>`)}</select></label>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <footer><button type="submit" class=${run ? "" : "primary"} disabled=${busy}>${parts.length ? "Fork with these changes" : "Fork"}</button>
        <button type="submit" value="run" class=${run ? "primary" : ""} disabled=${busy}>Fork and run</button></footer>
    </form><//>`;
}

/** The field, or the form, of one change. */
function Part({ part, there, flags, onChange }) {
  const { kind, value } = part;
  const tools = there?.snapshot.tools || [];
  const text = (rows) => html`<textarea aria-label=${PARTS[kind].title} rows=${rows} spellcheck=${false} value=${value} onInput=${(event) => onChange(event.currentTarget.value)}></textarea>`;
  if (kind === "rerun_tools") return null;
  if (kind === "counters") return there ? html`<${CountersForm} counters=${there.counters} limits=${there.limits} flags=${flags} value=${value} onChange=${onChange} />` : html`<p class="quiet">…</p>`;
  if (kind === "reply") return html`<${ReplyForm} value=${value} tools=${tools} onChange=${onChange} />`;
  if (kind === "messages")
    return html`<label class="check"><input type="checkbox" aria-label="remove the message" checked=${value === null} onChange=${(event) => onChange(event.currentTarget.checked ? null : { role: "user", content: "" })} /> take it out</label>
      ${value !== null && html`<${MessageForm} value=${value} tools=${tools} onChange=${onChange} />`}`;
  return text(PARTS[kind].rows || 5);
}

const PARTS = {
  results: { title: "Result of a tool", key: "call id", hint: "The text that the model reads as the result." },
  reply: { title: "Answer of the model", empty: { text: "", tool_calls: [] } },
  messages: { title: "A message", key: "number of the message", empty: { role: "user", content: "" } },
  user_message: { title: "What the user said" },
  counters: { title: "Counters", empty: {} },
  settings: { title: "Settings", hint: 'JSON, nested as in the settings: {"compression": {"enabled": true}}', rows: 3 },
  system_prompt: { title: "System prompt", rows: 8 },
  fields: { title: "Other fields", hint: "JSON: names of stored fields and their values", rows: 3 },
  rerun_tools: { title: "Run the tools of this visit again", hint: "Instead of taking the results that are recorded." },
};
const JSONS = new Set(["settings", "fields"]);

function partsOf(edit) {
  return Object.entries(edit || {}).flatMap(([kind, value]) => {
    if (kind === "results" || kind === "messages") return Object.entries(value).map(([key, one]) => ({ kind, key, value: one }));
    if (kind === "reply") return [{ kind, key: "", value: typeof value === "string" ? { text: value, tool_calls: [] } : value }];
    return [{ kind, key: "", value: kind === "counters" ? value : pretty(value) }];
  });
}

function editOf(parts) {
  const edit = {};
  for (const { kind, key, value } of parts) {
    if (kind === "results" || kind === "messages") (edit[kind] ||= {})[key] = value;
    else if (kind === "rerun_tools") edit.rerun_tools = true;
    else if (kind === "reply") edit.reply = replyOf(value);
    else edit[kind] = JSONS.has(kind) ? parsed(value, PARTS[kind].title) : value;
  }
  return edit;
}
