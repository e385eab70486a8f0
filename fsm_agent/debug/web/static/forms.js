// Fields made from the types of what is asked for: counters, calls of tools by their schemas, messages, answers, results.
import { Button, html, parsed, useState, words } from "./ui.js";

/** One field for a value of a JSON schema. What it cannot show as a field of its own is JSON. `onChange(value)`; undefined leaves it out. */
function SchemaField({ name, schema, required, value, onChange }) {
  const label = `${name}${required ? "" : " (may be left out)"}`;
  const kind = kindOf(schema);
  const set = (event) => onChange(read(kind, event.currentTarget, required));
  const hint = schema.description && html`<span class="quiet">${schema.description}</span>`;
  if (kind === "choice")
    return html`<label class="stack"><span>${label}</span><select aria-label=${name} value=${value ?? ""} onChange=${(event) => onChange(event.currentTarget.value === "" ? undefined : schema.enum.find((one) => String(one) === event.currentTarget.value))}>
      <option value="">choose …</option>${schema.enum.map((one) => html`<option value=${String(one)}>${String(one)}</option>`)}</select>${hint}</label>`;
  if (kind === "boolean") return html`<label class="check"><input type="checkbox" aria-label=${name} checked=${Boolean(value)} onChange=${(event) => onChange(event.currentTarget.checked)} /> ${label} ${hint}</label>`;
  if (kind === "number") return html`<label class="stack"><span>${label}</span><input type="number" step=${schema.type === "integer" ? "1" : "any"} aria-label=${name} value=${value ?? ""} onInput=${set} />${hint}</label>`;
  if (kind === "text") return html`<label class="stack"><span>${label}</span><textarea rows="2" aria-label=${name} value=${value ?? ""} spellcheck=${false} onInput=${set}></textarea>${hint}</label>`;
  return html`<${JsonField} name=${name} label=${label} hint=${hint} value=${value} onChange=${onChange} />`;
}

const kindOf = (schema) => (schema.enum ? "choice" : { boolean: "boolean", integer: "number", number: "number", string: "text" }[schema.type] || "json");

function read(kind, field, required) {
  if (kind === "number") return field.value === "" ? undefined : Number(field.value);
  return field.value === "" && !required ? undefined : field.value;
}

/** Any JSON; what cannot be read stays in the field, with the reason beside it. */
function JsonField({ name, label, hint, value, onChange }) {
  const [typed, setTyped] = useState(() => (value === undefined ? "" : JSON.stringify(value)));
  const [problem, setProblem] = useState("");
  const type = (event) => {
    const text = event.currentTarget.value;
    setTyped(text);
    try {
      onChange(text.trim() ? parsed(text, name) : undefined);
      setProblem("");
    } catch (error) {
      setProblem(error.message);
      onChange(undefined);
    }
  };
  return html`<label class="stack"><span>${label} <span class="quiet">JSON</span></span><textarea rows="2" aria-label=${name} aria-invalid=${problem ? "true" : null} value=${typed} spellcheck=${false} onInput=${type}></textarea>${hint}
    ${problem && html`<span class="problem">${problem}</span>`}</label>`;
}

/** The arguments of a call by the schema of its tool. */
export function ArgumentsForm({ tool, value, onChange }) {
  const { properties = {}, required = [] } = tool.parameters || {};
  const names = Object.keys(properties);
  const set = (name, one) => {
    const { [name]: _, ...rest } = value;
    onChange(one === undefined ? rest : { ...rest, [name]: one });
  };
  return html`<div class="arguments">${tool.description && html`<p class="quiet">${tool.description}</p>`}
    ${names.length === 0 && html`<p class="quiet">without arguments</p>`}
    ${names.map((name) => html`<${SchemaField} key=${name} name=${name} schema=${properties[name]} required=${required.includes(name)} value=${value[name]} onChange=${(one) => set(name, one)} />`)}</div>`;
}

const objectOf = (text) => {
  try {
    const value = typeof text === "string" ? JSON.parse(text || "{}") : text;
    return value && typeof value === "object" ? value : {};
  } catch {
    return {};
  }
};

/** Calls of tools: which, and with what. */
function CallsForm({ calls, tools, onChange }) {
  const change = (index, values) => onChange(calls.map((one, i) => (i === index ? { ...one, ...values } : one)));
  return html`${calls.map((call, index) => {
    const tool = tools.find((one) => one.name === call.name) || { name: call.name, parameters: {} };
    return html`<fieldset key=${index}><legend>call <code>${call.name}</code></legend>
      <${ArgumentsForm} tool=${tool} value=${objectOf(call.arguments)} onChange=${(arguments_) => change(index, { arguments: arguments_ })} />
      <${Button} label=${`leave out the call of ${call.name}`} kind="link" onClick=${() => onChange(calls.filter((_, i) => i !== index))}>leave out<//></fieldset>`;
  })}
    ${tools.length > 0 && html`<select aria-label="add a call of a tool" value="" onChange=${(event) => { if (event.currentTarget.value) onChange([...calls, { name: event.currentTarget.value, arguments: {} }]); event.currentTarget.value = ""; }}>
      <option value="">add a call of a tool …</option>${tools.map((one) => html`<option value=${one.name}>${one.name}</option>`)}</select>`}`;
}

/** What the model says: a text and calls, or, where `failures` may be, an error of its provider. */
export function ReplyForm({ value, tools, onChange, failures = false }) {
  const failed = value.failure !== undefined;
  return html`<div class="reply-form">
    ${failures && html`<label class="check"><input type="checkbox" aria-label="an error of the provider instead" checked=${failed} onChange=${(event) => onChange(event.currentTarget.checked ? { failure: "", status: 503 } : { text: "", tool_calls: [] })} /> an error of the provider instead</label>`}
    ${failed ? html`<label class="stack"><span>message</span><input type="text" aria-label="message of the error" value=${value.failure} onInput=${(event) => onChange({ ...value, failure: event.currentTarget.value })} /></label>
      <label class="stack"><span>status</span><input type="number" min="400" max="599" aria-label="status of the error" value=${value.status ?? ""} onInput=${(event) => onChange({ ...value, status: event.currentTarget.value === "" ? undefined : Number(event.currentTarget.value) })} /></label>`
      : html`<label class="stack"><span class="quiet">what the model says</span><textarea rows="4" aria-label="answer by hand" value=${value.text || ""} onInput=${(event) => onChange({ ...value, text: event.currentTarget.value })}></textarea></label>
      <${CallsForm} calls=${value.tool_calls || []} tools=${tools} onChange=${(tool_calls) => onChange({ ...value, tool_calls })} />`}</div>`;
}

/** An answer as the engine takes it: without calls a text. */
export const replyOf = (value) => (value.failure !== undefined ? value : value.tool_calls?.length ? value : value.text || "");

const STATUSES = ["ok", "error", "timeout", "unknown"];

/** What a call gives back. */
export const ResultForm = ({ value, onChange }) => html`<label class="stack"><span class="quiet">the result, as the model reads it</span><textarea rows="4" aria-label="answer by hand" value=${value.text} onInput=${(event) => onChange({ ...value, text: event.currentTarget.value })}></textarea></label>
  <label class="stack"><span class="quiet">how it ended</span><select aria-label="status of the result" value=${value.status} onChange=${(event) => onChange({ ...value, status: event.currentTarget.value })}>${STATUSES.map((one) => html`<option>${one}</option>`)}</select></label>`;

/** Counters with their limits. Only those that are changed count; `value` has them by name. */
export function CountersForm({ counters, limits, flags, value, onChange }) {
  const names = Object.keys(counters).sort((a, b) => Boolean(counters[b]) - Boolean(counters[a]) || (a < b ? -1 : 1));
  const set = (name, count) => {
    const { [name]: _, ...rest } = value;
    onChange(count === counters[name] ? rest : { ...rest, [name]: count });
  };
  return html`<div class="counter-fields">${names.map((name) => html`<label key=${name}><span>${words(name)}</span>
    ${flags.includes(name) ? html`<input type="checkbox" aria-label=${name} checked=${Boolean(value[name] ?? counters[name])} onChange=${(event) => set(name, event.currentTarget.checked ? 1 : 0)} />`
      : html`<input type="number" min="0" step="1" aria-label=${name} value=${value[name] ?? counters[name]} onInput=${(event) => event.currentTarget.value !== "" && set(name, Number(event.currentTarget.value))} />`}
    <span class="quiet">${flags.includes(name) || limits[name] === undefined ? "" : `of ${limits[name]}`}</span></label>`)}</div>`;
}

const ROLES = ["user", "assistant", "tool", "system"];

/** One message of the transcript; its content where it is text, calls of an assistant's, all else as it was. */
export function MessageForm({ value, tools, onChange }) {
  const plain = value.content === null || value.content === undefined || typeof value.content === "string";
  const calls = (value.tool_calls || []).map((one) => ({ id: one.id, name: one.function.name, arguments: one.function.arguments }));
  const setCalls = (changed) => onChange({ ...value, tool_calls: changed.map((one, i) => ({ id: one.id || `call_by_hand_${i}`, type: "function", function: { name: one.name, arguments: typeof one.arguments === "string" ? one.arguments : JSON.stringify(one.arguments) } })) });
  return html`<label class="stack"><span class="quiet">who says it</span><select aria-label="role" value=${value.role} onChange=${(event) => onChange({ ...value, role: event.currentTarget.value })}>${ROLES.map((one) => html`<option>${one}</option>`)}</select></label>
    ${plain ? html`<label class="stack"><span class="quiet">text</span><textarea rows="6" aria-label="text of the message" value=${value.content || ""} onInput=${(event) => onChange({ ...value, content: event.currentTarget.value })}></textarea></label>`
      : html`<${JsonField} name="content" label="content" value=${value.content} onChange=${(content) => content !== undefined && onChange({ ...value, content })} />`}
    ${value.role === "assistant" && html`<${CallsForm} calls=${calls} tools=${tools} onChange=${setCalls} />`}`;
}
