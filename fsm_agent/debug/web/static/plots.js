// Plots as SVG, each with its figures in a table beside it: lines over days, bars by name.
import { html } from "./ui.js";

const [WIDE, HIGH, LEFT, ABOVE, BELOW] = [420, 130, 54, 8, 20]; // units of the picture

/** A line over `points`, {label, value}, with gaps where the value is null. `said` writes a value. */
export function Trend({ title, points, said }) {
  const known = points.filter((one) => one.value !== null);
  const most = Math.max(...known.map((one) => one.value), 0) || 1;
  const x = (index) => LEFT + (points.length < 2 ? (WIDE - LEFT) / 2 : (index * (WIDE - LEFT - 8)) / (points.length - 1));
  const y = (value) => ABOVE + (1 - value / most) * (HIGH - ABOVE - BELOW);
  const lines = [[]];
  points.forEach((one, index) => (one.value === null ? lines.push([]) : lines.at(-1).push(`${x(index)},${y(one.value)}`)));
  const words = known.length ? `${title}: from ${said(known[0].value)} on ${known[0].label} to ${said(known.at(-1).value)} on ${known.at(-1).label}, at most ${said(Math.max(...known.map((one) => one.value)))}` : `${title}: nothing is known`;
  return html`<figure class="plot"><figcaption>${title}</figcaption><div class="plot-parts">
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} role="img" aria-label=${words}>
      <path class="axis" d=${`M${LEFT},${ABOVE} V${HIGH - BELOW} H${WIDE}`} /><text x=${LEFT - 6} y=${ABOVE + 8} class="end">${known.length ? said(most) : "?"}</text><text x=${LEFT - 6} y=${HIGH - BELOW} class="end">0</text>
      <text x=${LEFT} y=${HIGH - 5}>${points[0]?.label}</text>${points.length > 1 && html`<text x=${WIDE} y=${HIGH - 5} class="end">${points.at(-1).label}</text>`}
      ${lines.filter((line) => line.length > 1).map((line) => html`<polyline points=${line.join(" ")} />`)}
      ${points.map((one, index) => one.value !== null && html`<circle cx=${x(index)} cy=${y(one.value)} r="2.5"><title>${one.label}: ${said(one.value)}</title></circle>`)}
    </svg><${Figures} title=${title} head="day" points=${points} said=${said} /></div></figure>`;
}

/** A bar for each of `points`. */
export function Bars({ title, head, points, said, children }) {
  const most = Math.max(...points.map((one) => one.value || 0), 0) || 1;
  const high = points.length * 18 + 4;
  const words = points.length ? `${title}: most is ${points[0].label} with ${said(points[0].value)}` : `${title}: nothing is known`;
  return html`<figure class="plot"><figcaption>${title}</figcaption><div class="plot-parts">
    <svg viewBox=${`0 0 ${WIDE} ${high}`} role="img" aria-label=${words}>${points.map((one, index) => html`<rect x="0" y=${index * 18 + 2} width=${Math.max(1, ((one.value || 0) / most) * WIDE)} height="14"><title>${one.label}: ${said(one.value)}</title></rect><text x="4" y=${index * 18 + 13}>${one.label}</text>`)}</svg>
    ${children || html`<${Figures} title=${title} head=${head} points=${points} said=${said} />`}</div></figure>`;
}

function Figures({ title, head, points, said }) {
  return html`<div class="plot-table" tabindex="0" role="region" aria-label=${`figures of ${title}`}><table><thead><tr><th scope="col">${head}</th><th scope="col" class="num">${title}</th></tr></thead>
    <tbody>${points.map((one) => html`<tr><th scope="row">${one.label}</th><td class="num">${one.value === null ? "unknown" : said(one.value)}</td></tr>`)}</tbody></table></div>`;
}
