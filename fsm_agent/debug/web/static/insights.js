// What recent turns took: by day, by row, and the turns whose path is improbable.
import { get } from "./api.js";
import { Dialog } from "./dialogs.js";
import { Bars, Trend } from "./plots.js";
import { Button, html, money, plural, seconds, useEffect, useState } from "./ui.js";

const PERIODS = [7, 30, 90, 365];
const ROWS = 12;
const number = (value) => value.toLocaleString("en");

export function Insights({ onClose, onOpen }) {
  const [days, setDays] = useState(30);
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let wanted = true;
    get(`/api/insights?days=${days}`).then((answer) => wanted && (setFound(answer), setProblem("")), (error) => wanted && setProblem(error.message));
    return () => (wanted = false);
  }, [days]);
  return html`<${Dialog} title="What recent turns took" onClose=${onClose} wide=${true}><div class="insights">
    <label>the last <select value=${days} onChange=${(event) => setDays(Number(event.target.value))}>${PERIODS.map((one) => html`<option value=${one}>${one} days</option>`)}</select></label>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <p class="quiet" role="status">${!found ? "counting …" : found.days.length ? `${plural(found.days.reduce((sum, one) => sum + one.turns, 0), "turn")} on ${plural(found.days.length, "day")}` : "There were no turns."}</p>
    ${found?.days.length > 0 && html`<${Plots} found=${found} onOpen=${onOpen} />`}</div><//>`;
}

function Plots({ found, onOpen }) {
  const by = (name) => found.days.map((one) => ({ label: one.date, value: one[name] }));
  const costs = found.rows.slice(0, ROWS);
  const priced = costs.some((one) => one.cost_usd !== null);
  return html`<p class="quiet">Requests count if their provider reported what they used: one that failed or was cut off may be missing.</p>
    <${Trend} title="requests by day" points=${by("requests")} said=${number} />
    <${Trend} title="money by day" points=${by("cost")} said=${money} />
    <${Trend} title="seconds by day" points=${by("seconds")} said=${seconds} />
    ${costs.length > 0 && html`<${Bars} title=${priced ? "money by the row that ended the visit" : "requests by the row that ended the visit"} head="row" points=${costs.map((one) => ({ label: one.row, value: priced ? one.cost_usd : one.requests }))} said=${priced ? money : number} />`}
    ${found.improbable.length > 0 ? html`<${Bars} title="improbable turns, in bits more than expected" points=${found.improbable.map((one) => ({ label: one.row, value: one.bits }))} said=${(bits) => bits.toFixed(1)}>
      <div class="plot-table" tabindex="0" role="region" aria-label="improbable turns"><table><thead><tr><th scope="col">turn</th><th scope="col">by this row</th><th scope="col" class="num">its event</th><th scope="col" class="num">bits</th></tr></thead><tbody>
        ${found.improbable.map((one) => html`<tr><th scope="row"><${Button} kind="link" label=${`open ${one.turn}`} onClick=${() => onOpen(one.turn)}>${one.turn}<//></th><td><code>${one.row}</code></td><td class="num">1 in ${Math.round(1 / one.probability).toLocaleString("en")}</td><td class="num">${one.bits.toFixed(1)}</td></tr>`)}</tbody></table></div><//>`
      : html`<p class="quiet">No turn has an improbable path, or there are too few to tell.</p>`}`;
}
