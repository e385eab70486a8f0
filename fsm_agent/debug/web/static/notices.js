// What is shown above everything else: how a turn ended, or that its process died.
import { Markdown } from "./markdown.js";
import { Button, html, money, plural, Text, Term, when, words } from "./ui.js";

/** How a turn ended, in plain words. */
export function Ending({ info }) {
  const result = info?.result;
  if (!result || !info.ended) return null;
  const outcome = info.outcome || "ended";
  const bad = !["completed", "ended"].includes(outcome);
  return html`<section class=${`ending ${outcome}`} aria-label="how the turn ended">
    <h2>${outcome[0].toUpperCase()}${outcome.slice(1)}: <span>${words(info.exit)}</span></h2>
    ${result.error && !result.final_response?.includes(result.error) && html`<p class="error">${result.error}</p>`}
    ${result.final_response && html`<${Markdown} text=${result.final_response} most=${600} kind="final" />`}
    ${result.model && html`<p class="quiet">${plural(result.attempts ?? 0, "request")} · ${(result.total_tokens ?? 0).toLocaleString("en")} tokens · ${result.provider}:${result.model}</p>`}
    ${bad && html`<p class="quiet">Go back (b) to see how it got here, and fork before it went wrong.</p>`}
  </section>`;
}

const LOUD = { CallModel: "a request to the model", RunTool: "a call of", AskApproval: "a question about" };

/** The process died: what was under way, and what becomes of it. */
export function Crash({ crash, why, onResume }) {
  if (!crash) return null;
  const doubt = crash.under_way.filter((one) => one.resumed === "in doubt");
  return html`<section class="ending failed crash" role="alert" aria-label="the process died">
    <h2>The process died in <span>${crash.state}</span></h2>
    <p>Nothing was heard of it since ${when(crash.moved)}, after ${plural(crash.seq, "move")}. ${doubt.length ? html`<b>${plural(doubt.length, "effect is", "effects are")} <${Term} word="in doubt">in doubt<//>.</b>` : "Nothing is in doubt."}</p>
    ${crash.under_way.length > 0 && html`<ul class="under-way">${crash.under_way.map((one) => html`<li class=${one.resumed === "in doubt" ? "doubt" : ""}>
      <b>${LOUD[one.kind] || one.kind}${one.name && html` <code>${one.name}</code>`}</b> <span class="quiet">${one.effect && html`<${Term} word="effect class">${one.effect}<//>, `}begun ${when(one.begun)}</span>
      ${one.request?.arguments && html`<${Text} value=${one.request.arguments} label=${`arguments of ${one.name}`} />`}<p>${one.words}</p></li>`)}</ul>`}
    <p class="line"><${Button} label="resume the turn" kind="primary" why=${why} onClick=${onResume}>Resume<//> <span class="quiet">continues in ${crash.state}, paused before its first request.</span></p>
  </section>`;
}

export const spentWords = (spent) => `${plural(spent.requests, "request")} · ${plural(spent.tokens, "token")} · ${money(spent.cost)}`;
