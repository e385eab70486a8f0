// What is known of one position: the move that led there, the turn's state, its messages, the request on the wire.
import { get, turnPath } from "./api.js";
import { Breakpoints } from "./breakpoints.js";
import { useDrawn } from "./fetched.js";
import { Markdown } from "./markdown.js";
import { Button, Exit, Fold, html, Parts, plural, pretty, Rest, seconds, short, State, Term, Text, useEffect, useState, words } from "./ui.js";
import { WhatIf } from "./whatif.js";

const TABS = ["move", "state", "messages", "wire", "breakpoints"];
export const tabsOf = (talks) => TABS.filter((name) => talks || !["messages", "wire"].includes(name));
const NAMES = { move: "Move", state: "State", messages: "Messages", wire: "Wire", breakpoints: "Breaks" };

export function Inspector(props) {
  const { tab, onTab, position } = props;
  const tabs = tabsOf(props.talks);
  const shown = position.data;
  const old = !props.running && Boolean(shown) && position.old; // of the position before: nothing in it can be clicked
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
    <p class="line"><code>${move.row}</code> <span class="quiet">${seconds(move.seconds)} in ${move.source}${waitWords(shown.waits)}</span>
      <${Button} label=${`breakpoint on row ${move.row}`} kind="link" onClick=${() => props.onBreak("row", move.row)}>break here<//></p>
    ${row && html`<p class="why">${move.exit ? html`<${Exit} name=${move.exit} mark="⇥ " />` : !row.rung.startsWith("→") && html`<b>${row.rung}</b>`} <span class="quiet">${row.why}</span></p>`}
    <${Guards} guards=${move.guards} />
    <${WhatIf} key=${`${props.turn} ${move.seq}`} turn=${props.turn} move=${move} choices=${shown.choices} flags=${props.flags} onBreak=${props.onBreak} onFork=${props.onFork} />
    <${Changes} shown=${shown} />
    <${Visit} title=${`What ${move.source} asked for`} entries=${shown.visit} ...${props} />
    ${shown.now.length > 0 && html`<${Visit} title=${`${shown.state}, the visit after this move`} entries=${shown.now} after=${true} ...${props} />`}
  </div>`;
}

function Guards({ guards }) {
  return html`<section><h3><${Term} word="guard">Guards<//> <span class="quiet">in the order they were checked</span></h3>
    ${guards.length === 0 ? html`<p class="quiet">none: this event has only one row</p>`
      : html`<ul class="guards">${guards.map(([label, value]) => html`<li class=${value ? "yes" : "no"}><span aria-hidden="true">${value ? "✓" : "✗"}</span> ${label} <span class="sr">${value ? "true" : "false"}</span></li>`)}</ul>`}
  </section>`;
}

const WAITED = { people: "people", model: "the model", tools: "tools", pauses: "pauses" };

/** What a visit waited for, beside the engine's own time. */
const waitWords = (waits) => Object.entries(waits).filter(([, took]) => took > 0).map(([kind, took]) => `, ${seconds(took)} for ${WAITED[kind]}`).join("");

function Changes({ shown }) {
  const counters = shown.move.changes;
  const added = shown.messages - shown.messagesBefore;
  const fields = shown.changed.filter(({ field }) => !["history", "rows", ...Object.keys(shown.counters)].includes(field));
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

function Visit({ title, entries, shown, talks, onFork, cannot, after }) {
  const loud = entries.filter((one) => !QUIET.has(one.kind));
  const quiet = entries.filter((one) => QUIET.has(one.kind));
  return html`<section><h3>${title}</h3>
    ${entries.length === 0 && html`<p class="quiet">nothing yet</p>`}
    ${loud.map((one) => html`<${Effect} one=${one} onFork=${onFork} cannot=${cannot} talks=${talks} at=${after ? shown.at : shown.at - 1} />`)}
    ${quiet.length > 0 && html`<${Fold} title=${html`<span class="quiet">${plural(quiet.length, "small request")}</span>`} extra=${[...new Set(quiet.map((one) => one.kind))].join(", ")}>
      ${quiet.map((one) => html`<${Effect} one=${one} onFork=${onFork} cannot=${cannot} talks=${talks} at=${after ? shown.at : shown.at - 1} />`)}<//>`}
  </section>`;
}

/** What a reply of another table's says, as far as one can know: its first text. */
const firstText = (reply) => Object.entries(reply || {}).find(([name, value]) => name !== "is" && typeof value === "string" && value)?.[1];

function Effect({ one, onFork, cannot, at, talks }) {
  const { kind, name, status, request, reply } = one;
  const bad = reply?.is === "Failure" || ["error", "denied", "unknown", "timeout"].includes(reply?.status) || status === "unknown";
  const said = talks ? { Failure: reply?.message, ModelReply: reply?.text, ToolOutcome: reply?.text, Approval: reply?.granted ? "granted" : `denied: ${reply?.reason || ""}` }[reply?.is] : firstText(reply);
  const title = html`<b>${kind}</b> ${name && html`<code>${name}</code>`} ${reply?.is === "Failure" && html`<span class="tag bad">${reply.kind}${reply.status ? ` ${reply.status}` : ""}</span>`}${status === "in_flight" && html`<span class="tag">in flight</span>`}${["by hand", "taken over"].includes(status) && html`<span class="tag">${status}</span>`}`;
  return html`<div class=${`effect${bad ? " bad" : ""}`}>
    <${Fold} title=${title} extra=${seconds(one.seconds)}>
      <h4>request</h4>${talks ? html`<${Text} value=${request} label=${`request of ${kind}`} />` : html`<${Parts} value=${request} />`}
      <h4>reply</h4>${reply === null ? html`<p class="quiet">none yet</p>` : html`<${Text} value=${reply} label=${`reply to ${kind}`} />`}
    <//>
    ${said && html`<div class="said"><${Markdown} text=${said} most=${400} /></div>`}
    ${calls(reply)}
    ${kind === "RunTool" && reply && html`<${Button} label=${`fork with another result of ${name}`} kind="link" why=${cannot} onClick=${() => onFork(at, { results: { [request.call_id]: reply.text } })}>answer otherwise and fork<//>`}
    ${kind === "CallModel" && request.request?.purpose !== "summary" && reply && html`<${Button} label="fork with another answer of the model" kind="link" why=${cannot} onClick=${() => onFork(at, { reply: { text: reply.text || "", tool_calls: reply.tool_calls || [] } })}>answer otherwise and fork<//>`}
  </div>`;
}

const calls = (reply) => reply?.tool_calls?.length > 0 && html`<ul class="calls">${reply.tool_calls.map((call) => html`<li><code>${call.name}(${short(call.arguments, 160)})</code></li>`)}</ul>`;

// The turn's state

/** Is it what the page says elsewhere already: the counters, their limits, or a place in a transcript that is missing? */
function said(name, value, { counters, limits }) {
  const same = (known) => value && typeof value === "object" && Object.keys(value).length === Object.keys(known).length && Object.entries(value).every(([key, one]) => known[key] === one);
  return name === "history" || name === "rows" || same(counters) || same(limits);
}

function StateView(props) {
  const { shown, onFork, flags, cannot } = props;
  const names = Object.keys(shown.counters);
  const changed = new Map((shown.move?.changes || []).map(([name, before, after]) => [name, [before, after]]));
  const weight = (name) => (changed.has(name) ? 2 : shown.counters[name] ? 1 : 0);
  const rest = Object.entries(shown.snapshot).filter(([name, value]) => !names.includes(name) && name !== "limits" && (props.talks || !said(name, value, shown)));
  return html`<div>
    <h2>State of the turn <span class="quiet">after ${plural(shown.at, "move")}</span></h2>
    <section><h3>Counters <${Button} label="fork with other counters" kind="link" why=${cannot} onClick=${() => onFork(shown.at, { counters: {} })}>edit and fork<//></h3>
      <table class="counters"><tbody>${[...names].sort((a, b) => weight(b) - weight(a)).map((name) => html`<${Counter} name=${name} value=${shown.counters[name]} limit=${shown.limits[name]} flag=${flags.includes(name)} changed=${changed.get(name)} />`)}</tbody></table>
    </section>
    <section><h3>Fields${!props.talks && html` <${Button} label="fork with other fields" kind="link" why=${cannot} onClick=${() => onFork(shown.at, { fields: {} })}>edit and fork<//>`}</h3>${rest.map(([name, value]) => html`<${Field} name=${name} value=${value} changed=${shown.changed.some((one) => one.field === name)} />`)}</section>
  </div>`;
}

/** A flag is set or not; only what is counted up to a limit can be spent. */
function Counter({ name, value, limit, flag, changed }) {
  const share = limit ? Math.min(1, value / limit) : 0;
  return html`<tr class=${changed ? "changed" : value ? "" : "zero"}><th scope="row"><${Term} word=${name}>${words(name)}<//></th>
    <td class="num">${changed && changed[0] !== changed[1] && html`<del>${changed[0]}</del> `}${value}${limit !== undefined && !flag && html`<span class="quiet"> / ${limit}</span>`}</td>
    <td class="bar">${flag ? html`<span class="quiet">${value ? "set" : "not set"}</span>` : html`<progress max="1" value=${share} aria-label=${`${name} spent`} class=${share >= 1 ? "full" : ""}></progress>`}</td></tr>`;
}

function Field({ name, value, changed }) {
  const text = JSON.stringify(value);
  if (text.length < 48 && (value === null || typeof value !== "object"))
    return html`<p class=${`field${changed ? " changed" : ""}`}><code><${Term} word=${name}>${name}<//></code> <span class="value">${value === "" ? html`<span class="quiet">empty</span>` : String(value)}</span></p>`;
  return html`<div class=${`field${changed ? " changed" : ""}`}><${Fold} title=${html`<code>${name}</code>`} extra=${short(text, 40)}><${Text} value=${value} label=${name} /><//></div>`;
}

// Messages

function MessagesView({ turn, shown, onFork, cannot }) {
  const [first, setFirst] = useState(null);
  useEffect(() => setFirst(null), [turn]);
  const from = first === null ? Math.max(0, shown.messages - 40) : Math.min(first, Math.max(0, shown.messages - 40));
  const path = shown.messages ? turnPath(turn, `/at/${shown.at}/messages?first=${from}&last=${shown.messages - 1}`) : "";
  const none = html`<p class="quiet">No messages yet.</p>`;
  return useDrawn(path, ({ data, error }) => !path ? none : html`<div><h2>${plural(shown.messages, "message")} <span class="quiet">after ${plural(shown.at, "move")}</span></h2>
    ${from > 0 && html`<${Button} label="show earlier messages" kind="link" onClick=${() => setFirst(Math.max(0, from - 100))}>show earlier messages (${from})<//>`}
    ${error && html`<p class="problem">${error}</p>`}${data?.messages.map((row, i) => html`<${Message} turn=${turn} key=${data.first + i} row=${row} index=${data.first + i} fresh=${data.first + i >= shown.messagesBefore && shown.at > 0} onFork=${onFork} cannot=${cannot} at=${shown.at} />`)}
  </div>`);
}

function Message({ turn, row, index, fresh, onFork, cannot, at }) {
  const [problem, setProblem] = useState("");
  const text = typeof row.content === "string" ? row.content : row.content ? pretty(row.content) : "";
  const edit = row.role === "tool" ? { results: { [row.tool_call_id]: text } } : { messages: { [index]: row } };
  const answer = { text, tool_calls: (row.tool_calls || []).map(({ id, function: called }) => ({ id, name: called.name, arguments: called.arguments })) };
  const begin = async (run) => {
    try {
      const before = await get(turnPath(turn, `/at/${at}/messages/${index}`));
      if (row.role === "assistant" && before.written !== null)
        return onFork(before.written, { reply: answer }, { run, why: `Message #${index} is the model's answer to the request after ${plural(before.written, "move")}: the fork begins there, with your answer in its place.` });
      return onFork(before.at, edit, { run, why: `Message #${index} was first read after ${plural(before.at, "move")}, in ${before.state}: the fork begins there.` });
    } catch (error) {
      return setProblem(error.message);
    }
  };
  return html`<article class=${`message ${row.role}${fresh ? " fresh" : ""}`} aria-label=${`${row.role} message ${index}`}>
    <header><b>${row.role}</b>${row.name && html` <code>${row.name}</code>`}${row.summary && html` <span class="tag">summary</span>`}${row.wire === false && html` <span class="tag">not sent</span>`}${row.interrupted && html` <span class="tag">interrupted</span>`}
      <span class="quiet">#${index}${fresh ? " · new" : ""}</span>
      <${Button} label=${`edit ${row.role} message ${index} and fork`} kind="link" why=${cannot} onClick=${() => begin(false)}>edit<//>
      <${Button} label=${`edit ${row.role} message ${index} and run again`} kind="link" why=${cannot} onClick=${() => begin(true)}>edit and run again<//></header>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${row.reasoning && html`<${Fold} title=${html`<span class="quiet">reasoning</span>`}><${Text} value=${row.reasoning} label="reasoning" /><//>`}
    ${text && (row.role === "assistant" ? html`<${Markdown} text=${text} />` : html`<${Long} text=${text} />`)}
    ${row.tool_calls && html`<ul class="calls">${row.tool_calls.map((call) => html`<li><code>${call.function.name}(${short(call.function.arguments, 300)})</code></li>`)}</ul>`}
  </article>`;
}

/** A text as it is, its line breaks kept; a long one begins short. */
function Long({ text }) {
  const [whole, setWhole] = useState(false);
  const cut = text.length > LONG && !whole;
  return html`<p class="content">${cut ? text.slice(0, LONG) : text}</p>${cut && html`<${Rest} left=${text.length - LONG} onAll=${() => setWhole(true)} />`}`;
}

const LONG = 1500;

// The wire

function WireView({ turn, shown }) {
  const asked = shown.visit.filter((one) => one.kind === "CallModel");
  const source = shown.move?.source;
  const at = source === "CallLLM" ? shown.at - 1 : shown.state === "CallLLM" ? shown.at : null;
  return useDrawn(at === null ? "" : turnPath(turn, `/at/${at}/wire`), ({ data, error }) => html`<div><h2>On the <${Term} word="wire">wire<//></h2>
    ${at === null && html`<p class="quiet">Neither this move nor the next asks the model. Requests go out from CallLLM; summaries, which Compress asks for, are not kept.</p>`}
    ${error && html`<p class="problem">${error}</p>`}
    ${at !== null && data && (data.body ? html`<section><h3>Request <span class="quiet">composed again · ${data.mode} · ${data.bytes.toLocaleString("en")} bytes · about ${data.estimate.toLocaleString("en")} tokens</span></h3>
      ${data.note && html`<p class="problem">${data.note}</p>`}<${Body} body=${data.body} /></section>` : html`<p class="quiet">${data.why}</p>`)}
    ${asked.map((one) => html`<section><h3>Reply <span class="quiet">${seconds(one.seconds)}</span></h3><${Text} value=${one.reply} label="raw reply" /></section>`)}
  </div>`);
}

/** A request's body, its long lists folded. */
function Body({ body }) {
  const long = new Set(["messages", "tools", "input", "system"]);
  const plain = Object.fromEntries(Object.entries(body).filter(([name]) => !long.has(name)));
  return html`<${Text} value=${plain} label="request without messages and tools" />
    ${Object.entries(body).filter(([name]) => long.has(name)).map(([name, value]) => html`<${Fold} title=${html`<code>${name}</code>`} extra=${Array.isArray(value) ? plural(value.length, "entry", "entries") : ""}><${Text} value=${value} label=${name} /><//>`)}`;
}

const VIEWS = { move: MoveView, state: StateView, messages: MessagesView, wire: WireView };
