// The decision list of a move: what each row's budgets had left, and which row other budgets would have taken. Asked of the table's own guards.
import { turnPath } from "./api.js";
import { useFetched } from "./fetched.js";
import { Button, Exit, Fold, html, plural, Term, useState, words } from "./ui.js";

export function WhatIf({ turn, move, choices, flags, onBreak, onFork }) {
  const [limits, setLimits] = useState({});
  const changed = Object.keys(limits).length > 0;
  const { data, error } = useFetched(changed ? turnPath(turn, `/at/${move.seq}/choices?limits=${encodeURIComponent(JSON.stringify(limits))}`) : "");
  if (changed && error) return html`<p class="problem">${error}</p>`;
  const lines = (changed && data?.lines) || choices;
  const rows = lines[move.event] || [];
  const asked = [...new Map(rows.flatMap((row) => row.left).filter((one) => !flags.includes(one.counter)).map((one) => [one.limit, one])).values()];
  const now = rows.find((row) => row.taken);
  const other = now && now.row !== move.row;
  const others = Object.entries(lines).filter(([event]) => event !== move.event);
  return html`<section class="whatif"><h3>Choices of “${words(move.event)}” <span class="quiet">the first <${Term} word="rung">rung<//> whose budget is left is taken</span></h3>
    <ol class="ladder">${rows.map((row) => html`<${Choice} key=${row.row} row=${row} taken=${move.row === row.row} now=${other && row.taken} flags=${flags} onBreak=${onBreak}
      onLimits=${(wanted) => setLimits({ ...limits, ...wanted })} onFork=${(counters) => onFork(move.seq - 1, { counters })} />`)}</ol>
    ${asked.length > 0 && html`<details class="fold"><summary>What if the budgets were others?</summary>
      <div class="counter-fields">${asked.map((one) => html`<label key=${one.limit}><span>${words(one.limit)}</span><input type="number" min="0" step="1" aria-label=${`limit of ${one.limit}`} value=${limits[one.limit] ?? one.most}
        onInput=${(event) => event.currentTarget.value !== "" && setLimits({ ...limits, [one.limit]: Number(event.currentTarget.value) })} /><span class="quiet">${one.count} spent</span></label>`)}</div>
      <p role="status" class="line">${other ? html`Then <b>${row(now)}</b> would be taken, to ${now.dest}.` : now ? html`<span class="quiet">The same row is taken.</span>` : "No row would be open."}
        ${changed && html` <${Button} label="the budgets as they were" kind="link" onClick=${() => setLimits({})}>as they were<//>`}</p></details>`}
    ${others.length > 0 && html`<${Fold} title=${html`<span class="quiet">if it had reported something else</span>`} extra=${plural(others.length, "event")}>
      <ul class="other-events">${others.map(([event, list]) => html`<li key=${event}><b>${words(event)}</b> <span class="quiet">→ ${resultOf(list)}</span></li>`)}</ul><//>`}
  </section>`;
}

const row = (one) => (one.exit ? words(one.exit) : one.rung.startsWith("→") ? one.dest : one.rung);

function resultOf(list) {
  const taken = list.find((one) => one.taken);
  return taken ? `${row(taken)}${taken.exit ? "" : `, to ${taken.dest}`}` : "no row is open";
}

function Choice({ row: one, taken, now, flags, onBreak, onLimits, onFork }) {
  const opens = one.opens;
  const wanted = opens ? [...Object.entries(opens.limits).map(([name, most]) => [name, most, "limit"]), ...Object.entries(opens.counters).map(([name, count]) => [name, count, "flag"])] : [];
  const counters = opens && countersFor(one);
  return html`<li class=${taken ? "taken" : now ? "now" : ""}><button type="button" class="rung" aria-label=${`breakpoint on row ${one.row}`} title=${`${one.row}: click for a breakpoint`} onClick=${() => onBreak("row", one.row)}>
      <span class="rung-name">${taken ? "▸ " : now ? "▹ " : ""}${one.exit ? html`<${Exit} name=${one.exit} mark="⇥ " />` : row(one)}</span> <span class="quiet">${one.guard}</span>${taken && html`<span class="sr"> (taken)</span>`}</button>
    ${one.left.length > 0 && html`<p class="left">${one.left.map((part) => html`<span class=${part.count < part.most ? "some" : "none"}>${flags.includes(part.counter) ? `${words(part.counter)}: ${part.count ? "yes" : "no"}` : html`${words(part.limit)}: <b>${Math.max(0, part.most - part.count)}</b> of ${part.most} left`}</span>`)}</p>`}
    ${!taken && wanted.length > 0 && html`<p class="opens">taken with ${wanted.map(([name, value, kind], i) => `${i ? ", " : ""}${kind === "flag" ? `${words(name)} ${value ? "set" : "not set"}` : `a limit of ${words(name)} of ${value}`}`)}
      ${Object.keys(opens.limits).length > 0 && html` <${Button} label=${`try the budgets of ${one.row}`} kind="link" onClick=${() => onLimits(opens.limits)}>try<//>`}
      ${counters && html` <${Button} label=${`fork so that ${one.row} is taken`} kind="link" onClick=${() => onFork(counters)}>fork so<//>`}</p>`}</li>`;
}

/** Counters with which the same row is open under the limits that there are: a fork can change those. */
function countersFor({ left, opens }) {
  const found = { ...opens.counters };
  for (const [limit, most] of Object.entries(opens.limits)) {
    const part = left.find((one) => one.limit === limit);
    const count = part.count + part.most - most;
    if (!part || count < 0) return null;
    found[part.counter] = count;
  }
  return found;
}
