// What is known of one position: the move that led there, the turn's state, its messages, the request on the wire.
import { turnPath } from "./api.js";
import { Breakpoints } from "./breakpoints.js";
import { useFetched, WHILE_RUNNING } from "./fetched.js";
import { Button, Exit, Fold, html, Parts, plural, pretty, seconds, short, State, Text, useEffect, useState, words } from "./ui.js";

const TABS = ["move", "state", "messages", "wire", "breakpoints"];
export const tabsOf = (talks) => TABS.filter((name) => talks || !["messages", "wire"].includes(name));
const NAMES = { move: "Move", state: "State", messages: "Messages", wire: "Wire", breakpoints: "Breaks" };

export function Inspector(props) {
  const { turn, at, tab, onTab, again } = props;
  const tabs = tabsOf(props.talks);
  const position = useFetched(turn && turnPath(turn, `/at/${at}`), again, props.running ? WHILE_RUNNING : 0);
  const shown = position.data;
  const old = !props.running && Boolean(shown) && shown.at !== at; // of the position before: nothing in it can be clicked
  const choose = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.stopPropagation();
    event.preventDefault();
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    onTab(next);
    event.currentTarget.querySelector(`#tab-${next}`)?.focus();
  };
  return html`<aside class="inspector" aria-label="inspector">
    <div class="tabs" role="tablist" aria-label="what to inspect" onKeyDown=${choose}>${tabs.map((name) => html`<button type="button" role="tab"
      id=${`tab-${name}`} aria-selected=${tab === name} tabindex=${tab === name ? 0 : -1} aria-controls="panel"
      onClick=${() => onTab(name)}>${NAMES[name]}${badge(name, shown, props)}</button>`)}</div>
    <div class="panel" id="panel" role="tabpanel" aria-labelledby=${`tab-${tab}`} aria-busy=${old} tabindex="0">
      ${position.error && html`<p class="problem">${position.error}</p>`}
      ${tab === "breakpoints" ? html`<${Breakpoints} ...${props} />` : shown && html`<${VIEWS[tab]} ...${props} shown=${shown} />`}
    </div>
  </aside>`;
}

function badge(name, shown, { breakpoints }) {
  const count = { messages: shown?.messages, breakpoints: breakpoints.length }[name];
  return count ? html`<span class="count">${count}</span>` : null;
}

// The move

function MoveView(props) {
  const { shown, states, rows } = props;
  const { move } = shown;
  if (!move) return html`<div><h2>The turn begins</h2><p class="quiet">In <${State} name=${shown.state} states=${states} />, before the first move.</p><${Visit} title="This visit so far" entries=${shown.now} ...${props} /></div>`;
  const row = rows[move.row];
  return html`<div>
    <h2><${State} name=${move.source} states=${states} /> <span class="quiet">–${words(move.event)}→</span> <${State} name=${move.dest} states=${states} /></h2>
    <p class="line"><code>${move.row}</code> <span class="quiet">${seconds(move.seconds)} in ${move.source}</span>
      <${Button} label=${`breakpoint on row ${move.row}`} kind="link" onClick=${() => props.onBreak("row", move.row)}>break here<//></p>
    ${row && html`<p class="why">${move.exit ? html`<${Exit} name=${move.exit} mark="⇥ " />` : !row.rung.startsWith("→") && html`<b>${row.rung}</b>`} <span class="quiet">${row.why}</span></p>`}
    <${Guards} guards=${move.guards} />
    <${Ladder} move=${move} rows=${rows} onBreak=${props.onBreak} />
    <${Changes} shown=${shown} />
    <${Visit} title=${`What ${move.source} asked for`} entries=${shown.visit} ...${props} />
    ${shown.now.length > 0 && html`<${Visit} title=${`${shown.state}, the visit after this move`} entries=${shown.now} after=${true} ...${props} />`}
  </div>`;
}

function Guards({ guards }) {
  return html`<section><h3>Guards <span class="quiet">in the order they were looked at</span></h3>
    ${guards.length === 0 ? html`<p class="quiet">none: this event leads one way only</p>`
      : html`<ul class="guards">${guards.map(([label, value]) => html`<li class=${value ? "yes" : "no"}><span aria-hidden="true">${value ? "✓" : "✗"}</span> ${label} <span class="sr">${value ? "true" : "false"}</span></li>`)}</ul>`}
  </section>`;
}

/** The whole decision list of the event: what was taken, and what was not. */
function Ladder({ move, rows, onBreak }) {
  const line = `${move.source}.${move.event}`;
  const rungs = Object.entries(rows).filter(([id]) => id === line || id.startsWith(`${line}/`));
  if (rungs.length < 2) return null;
  return html`<section><h3>Choices of “${words(move.event)}” <span class="quiet">the first whose guard holds is taken</span></h3>
    <ol class="ladder">${rungs.map(([id, row]) => html`<li class=${id === move.row ? "taken" : ""}><button type="button" class="rung" aria-label=${`breakpoint on row ${id}`} title=${`${id}: click for a breakpoint`} onClick=${() => onBreak("row", id)}>
      <span class="rung-name">${id === move.row ? "▸ " : ""}${row.exit ? html`<${Exit} name=${row.exit} mark="⇥ " />` : row.rung}</span> <span class="quiet">${row.guard}</span></button></li>`)}</ol></section>`;
}

function Changes({ shown }) {
  const counters = shown.move.changes;
  const added = shown.messages - shown.messagesBefore;
  const fields = shown.changed.filter(({ field }) => !["history", "rows", "block", ...Object.keys(shown.counters)].includes(field));
  return html`<section><h3>Changed</h3>
    ${counters.length + fields.length === 0 && !added && html`<p class="quiet">nothing</p>`}
    ${counters.length > 0 && html`<ul class="changes">${counters.map(([name, before, after]) => html`<li><span class="name">${words(name)}</span> <del>${before}</del> → <ins>${after}</ins></li>`)}</ul>`}
    ${added !== 0 && html`<p class="line">${added > 0 ? `+ ${plural(added, "message")}` : `− ${plural(-added, "message")}: the transcript was made shorter`}</p>`}
    ${fields.map(({ field, before, after }) => html`<${Fold} title=${html`<code>${field}</code>`} extra=${short(brief(after), 44)}>
      <div class="before-after"><div><h4>before</h4><${Text} value=${before} label=${`${field} before`} /></div><div><h4>after</h4><${Text} value=${after} label=${`${field} after`} /></div></div><//>`)}
  </section>`;
}

const brief = (value) => (typeof value === "string" ? value : JSON.stringify(value));

// What a visit asked for

const QUIET = new Set(["Tell", "CheckSignals", "Persist", "CloseTurn", "Transform", "NoteCompaction", "SyncMemory"]);

function Visit({ title, entries, shown, talks, onFork, after }) {
  const loud = entries.filter((one) => !QUIET.has(one.kind));
  const quiet = entries.filter((one) => QUIET.has(one.kind));
  return html`<section><h3>${title}</h3>
    ${entries.length === 0 && html`<p class="quiet">nothing yet</p>`}
    ${loud.map((one) => html`<${Effect} one=${one} onFork=${onFork} talks=${talks} at=${after ? shown.at : shown.at - 1} />`)}
    ${quiet.length > 0 && html`<${Fold} title=${html`<span class="quiet">${plural(quiet.length, "small request")}</span>`} extra=${[...new Set(quiet.map((one) => one.kind))].join(", ")}>
      ${quiet.map((one) => html`<${Effect} one=${one} onFork=${onFork} talks=${talks} at=${after ? shown.at : shown.at - 1} />`)}<//>`}
  </section>`;
}

/** What a reply of another table's says, as far as one can know: its first text. */
const firstText = (reply) => Object.entries(reply || {}).find(([name, value]) => name !== "is" && typeof value === "string" && value)?.[1];

function Effect({ one, onFork, at, talks }) {
  const { kind, name, status, request, reply } = one;
  const bad = reply?.is === "Failure" || ["error", "denied", "unknown", "timeout"].includes(reply?.status) || status === "unknown";
  const said = talks ? { Failure: reply?.message, ModelReply: reply?.text, ToolOutcome: reply?.text, Approval: reply?.granted ? "granted" : `denied: ${reply?.reason || ""}` }[reply?.is] : firstText(reply);
  const title = html`<b>${kind}</b> ${name && html`<code>${name}</code>`} ${reply?.is === "Failure" && html`<span class="tag bad">${reply.kind}${reply.status ? ` ${reply.status}` : ""}</span>`}${status === "in_flight" && html`<span class="tag">in flight</span>`}${["by hand", "taken over"].includes(status) && html`<span class="tag">${status}</span>`}`;
  return html`<div class=${`effect${bad ? " bad" : ""}`}>
    <${Fold} title=${title} extra=${seconds(one.seconds)}>
      <h4>request</h4>${talks ? html`<${Text} value=${request} label=${`request of ${kind}`} />` : html`<${Parts} value=${request} />`}
      <h4>reply</h4>${reply === null ? html`<p class="quiet">none yet</p>` : html`<${Text} value=${reply} label=${`reply to ${kind}`} />`}
    <//>
    ${said && html`<p class="said">${short(said, 400)}</p>`}
    ${calls(reply)}
    ${kind === "RunTool" && reply && html`<${Button} label=${`fork with another result of ${name}`} kind="link" onClick=${() => onFork(at, { results: { [request.call_id]: reply.text } })}>answer otherwise and fork<//>`}
    ${kind === "CallModel" && request.request?.purpose !== "summary" && reply && html`<${Button} label="fork with another answer of the model" kind="link" onClick=${() => onFork(at, { reply: reply.text || "" })}>answer otherwise and fork<//>`}
  </div>`;
}

const calls = (reply) => reply?.tool_calls?.length > 0 && html`<ul class="calls">${reply.tool_calls.map((call) => html`<li><code>${call.name}(${short(call.arguments, 160)})</code></li>`)}</ul>`;

// The turn's state

/** Is it what the page says elsewhere already: the counters, their limits, or a place in a transcript that there is none of? */
function said(name, value, { counters, limits }) {
  const same = (known) => value && typeof value === "object" && Object.keys(value).length === Object.keys(known).length && Object.entries(value).every(([key, one]) => known[key] === one);
  return name === "history" || name === "rows" || same(counters) || same(limits);
}

function StateView(props) {
  const { shown, onFork } = props;
  const names = Object.keys(shown.counters);
  const changed = new Map((shown.move?.changes || []).map(([name, before, after]) => [name, [before, after]]));
  const weight = (name) => (changed.has(name) ? 2 : shown.counters[name] ? 1 : 0);
  const rest = Object.entries(shown.snapshot).filter(([name, value]) => !names.includes(name) && !["limits", "block"].includes(name) && (props.talks || !said(name, value, shown)));
  return html`<div>
    <h2>State of the turn <span class="quiet">after ${plural(shown.at, "move")}</span></h2>
    <section><h3>Counters <${Button} label="fork with other counters" kind="link" onClick=${() => onFork(shown.at, { counters: nonzero(shown.counters) })}>edit and fork<//></h3>
      <table class="counters"><tbody>${[...names].sort((a, b) => weight(b) - weight(a)).map((name) => html`<${Counter} name=${name} value=${shown.counters[name]} limit=${shown.limits[name]} changed=${changed.get(name)} />`)}</tbody></table>
    </section>
    <section><h3>Fields${!props.talks && html` <${Button} label="fork with other fields" kind="link" onClick=${() => onFork(shown.at, { fields: {} })}>edit and fork<//>`}</h3>${rest.map(([name, value]) => html`<${Field} name=${name} value=${value} changed=${shown.changed.some((one) => one.field === name)} />`)}</section>
  </div>`;
}

const nonzero = (counters) => Object.fromEntries(Object.entries(counters).filter(([, value]) => value > 0));

function Counter({ name, value, limit, changed }) {
  const share = limit ? Math.min(1, value / limit) : 0;
  return html`<tr class=${changed ? "changed" : value ? "" : "zero"}><th scope="row">${words(name)}</th>
    <td class="num">${changed && changed[0] !== changed[1] && html`<del>${changed[0]}</del> `}${value}${limit !== undefined && html`<span class="quiet"> / ${limit}</span>`}</td>
    <td class="bar"><progress max="1" value=${share} aria-label=${`${name} spent`} class=${share >= 1 ? "full" : ""}></progress></td></tr>`;
}

function Field({ name, value, changed }) {
  const text = JSON.stringify(value);
  if (text.length < 48 && (value === null || typeof value !== "object"))
    return html`<p class=${`field${changed ? " changed" : ""}`}><code>${name}</code> <span class="value">${value === "" ? html`<span class="quiet">empty</span>` : String(value)}</span></p>`;
  return html`<div class=${`field${changed ? " changed" : ""}`}><${Fold} title=${html`<code>${name}</code>`} extra=${short(text, 40)}><${Text} value=${value} label=${name} /><//></div>`;
}

// Messages

function MessagesView({ turn, at, shown, onFork }) {
  const [first, setFirst] = useState(null);
  useEffect(() => setFirst(null), [turn]);
  const from = first === null ? Math.max(0, shown.messages - 40) : Math.min(first, Math.max(0, shown.messages - 40));
  const { data } = useFetched(turnPath(turn, `/at/${shown.at}/messages?first=${from}&last=${Math.max(from, shown.messages - 1)}`));
  if (!shown.messages) return html`<p class="quiet">No messages yet.</p>`;
  return html`<div><h2>${plural(shown.messages, "message")} <span class="quiet">after ${plural(shown.at, "move")}</span></h2>
    ${from > 0 && html`<${Button} label="show earlier messages" kind="link" onClick=${() => setFirst(Math.max(0, from - 100))}>show earlier messages (${from})<//>`}
    ${data && data.messages.map((row, i) => html`<${Message} key=${data.first + i} row=${row} index=${data.first + i} fresh=${data.first + i >= shown.messagesBefore && at > 0} onFork=${onFork} at=${shown.at} />`)}
  </div>`;
}

function Message({ row, index, fresh, onFork, at }) {
  const text = typeof row.content === "string" ? row.content : row.content ? pretty(row.content) : "";
  const edit = row.role === "tool" ? { results: { [row.tool_call_id]: text } } : { messages: { [index]: row } };
  return html`<article class=${`message ${row.role}${fresh ? " fresh" : ""}`} aria-label=${`${row.role} message ${index}`}>
    <header><b>${row.role}</b>${row.name && html` <code>${row.name}</code>`}${row.summary && html` <span class="tag">summary</span>`}${row.wire === false && html` <span class="tag">not sent</span>`}${row.interrupted && html` <span class="tag">interrupted</span>`}
      <span class="quiet">#${index}${fresh ? " · new" : ""}</span>
      <${Button} label=${`edit ${row.role} message ${index} and fork`} kind="link" onClick=${() => onFork(at, edit)}>edit<//></header>
    ${row.reasoning && html`<${Fold} title=${html`<span class="quiet">reasoning</span>`}><${Text} value=${row.reasoning} label="reasoning" /><//>`}
    ${text && (text.length > 1500 ? html`<${Fold} title=${short(text, 300)} extra=${`${text.length.toLocaleString("en")} characters`}><${Text} value=${text} label="message" /><//>` : html`<p class="content">${text}</p>`)}
    ${row.tool_calls && html`<ul class="calls">${row.tool_calls.map((call) => html`<li><code>${call.function.name}(${short(call.function.arguments, 300)})</code></li>`)}</ul>`}
  </article>`;
}

// The wire

function WireView({ turn, shown }) {
  const asked = shown.visit.filter((one) => one.kind === "CallModel");
  const source = shown.move?.source;
  const at = source === "CallLLM" ? shown.at - 1 : shown.state === "CallLLM" ? shown.at : null;
  const { data, error } = useFetched(at === null ? "" : turnPath(turn, `/at/${at}/wire`));
  return html`<div><h2>On the wire</h2>
    ${at === null && html`<p class="quiet">Neither this move nor the next asks the model. Requests go out from CallLLM; summaries, which Compress asks for, are not kept.</p>`}
    ${error && html`<p class="problem">${error}</p>`}
    ${at !== null && data && (data.body ? html`<section><h3>Request <span class="quiet">composed again · ${data.mode} · ${data.bytes.toLocaleString("en")} bytes · about ${data.estimate.toLocaleString("en")} tokens</span></h3>
      ${data.note && html`<p class="problem">${data.note}</p>`}<${Body} body=${data.body} /></section>` : html`<p class="quiet">${data.why}</p>`)}
    ${asked.map((one) => html`<section><h3>Reply <span class="quiet">${seconds(one.seconds)}</span></h3><${Text} value=${one.reply} label="raw reply" /></section>`)}
  </div>`;
}

/** A request's body, its long lists folded. */
function Body({ body }) {
  const long = new Set(["messages", "tools", "input", "system"]);
  const plain = Object.fromEntries(Object.entries(body).filter(([name]) => !long.has(name)));
  return html`<${Text} value=${plain} label="request without messages and tools" />
    ${Object.entries(body).filter(([name]) => long.has(name)).map(([name, value]) => html`<${Fold} title=${html`<code>${name}</code>`} extra=${Array.isArray(value) ? plural(value.length, "entry", "entries") : ""}><${Text} value=${value} label=${name} /><//>`)}`;
}

const VIEWS = { move: MoveView, state: StateView, messages: MessagesView, wire: WireView };
