// The list of moves. Only the rows in sight are in the document, and only the pages around them are fetched.
import { get, turnPath } from "./api.js";
import { Exit, html, money, plural, rem, seconds, short, State, useEffect, useLayoutEffect, useRef, useState, words } from "./ui.js";

const NARROW = matchMedia("(max-width: 34em)"); // a move takes two lines then
const AROUND = 6;
const TYPING = 250; // milliseconds

export function MoveList({ turn, moves, count, at, engine, states, rows, found, talks, onLook, version }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(200);
  const [narrow, setNarrow] = useState(NARROW.matches);
  const [left, setLeft] = useState(null); // the moves that a filter leaves; null without one
  useEffect(() => setLeft(null), [turn]);
  useEffect(() => {
    const changed = () => setNarrow(NARROW.matches);
    NARROW.addEventListener("change", changed);
    return () => NARROW.removeEventListener("change", changed);
  }, []);
  const ROW = rem(narrow ? 43 : 25);
  const total = left ? left.length : count + 1;
  const seqOf = (place) => (left ? left[place] : place);

  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight || 200));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current;
    const place = left ? left.indexOf(at) : at;
    if (place < 0) return;
    const row = place * ROW;
    if (row < element.scrollTop + ROW) element.scrollTop = Math.max(0, row - ROW);
    else if (row + 2 * ROW > element.scrollTop + element.clientHeight) element.scrollTop = row + 2 * ROW - element.clientHeight;
  }, [at, height, left, ROW]);

  const from = Math.max(0, Math.floor(top / ROW) - AROUND);
  const to = Math.min(total - 1, Math.ceil((top + height) / ROW) + AROUND);
  const shown = [];
  for (let place = from; place <= to; place += 1) shown.push(place);
  const marks = new Set(found);
  return html`<section class=${`moves${talks ? "" : " own"}`} aria-label="moves">
    <${Filter} turn=${turn} count=${count} talks=${talks} left=${left} onLeft=${setLeft} />
    <div class="moves-head" aria-hidden="true"><span>#</span><span>state</span><span>event</span><span>to</span><span>${talks ? "calls, or because" : "because"}</span><span class="num tokens">tokens</span><span class="num took">took</span></div>
    <div class="moves-box" ref=${box} onScroll=${(event) => setTop(event.currentTarget.scrollTop)} role="listbox" tabindex="0"
      aria-label="list of moves" aria-activedescendant=${`move-${at}`}>
      <div class="moves-room" style=${{ height: `${total * ROW}px` }}>
        ${shown.map((place) => [place, seqOf(place)]).map(([place, seq]) => html`<${Row} key=${seq} seq=${seq} top=${place * ROW} move=${seq ? moves.at(seq) : null} rows=${rows} states=${states}
          looked=${seq === at} engine=${seq === engine} hit=${marks.has(seq)} onLook=${onLook} version=${version} />`)}
      </div>
    </div>
  </section>`;
}

/** Which moves are listed: those that called a tool, those in which a text occurs. */
function Filter({ turn, count, talks, left, onLeft }) {
  const [tools, setTools] = useState([]);
  const [tool, setTool] = useState("");
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  useEffect(() => (setTool(""), setText(""), setProblem("")), [turn]);
  useEffect(() => {
    if (!talks || !turn) return undefined;
    let over = false;
    const asked = setTimeout(() => get(turnPath(turn, "/tools")).then((said) => over || setTools(said.tools), () => {}), TYPING);
    return () => ((over = true), clearTimeout(asked));
  }, [turn, count]);
  useEffect(() => {
    if (!tool && !text.trim()) return onLeft(null), setProblem("");
    let over = false;
    const path = turnPath(turn, `/filter?tool=${encodeURIComponent(tool)}&text=${encodeURIComponent(text)}`);
    const heard = [(said) => over || (onLeft(said.moves), setProblem("")), (error) => over || setProblem(error.message)];
    const asked = setTimeout(() => get(path).then(...heard), TYPING);
    return () => ((over = true), clearTimeout(asked));
  }, [turn, count, tool, text]);
  return html`<div class="filter" role="search" aria-label="filter of the moves">
    ${tools.length > 0 && html`<select aria-label="only moves that called" value=${tool} onChange=${(event) => setTool(event.currentTarget.value)}><option value="">every tool</option>${tools.map(([name, times]) => html`<option value=${name}>${name} (${times})</option>`)}</select>`}
    <input type="search" aria-label="only moves with this text" placeholder="filter moves: words of a call, a reply, a state" value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
    <span class=${problem ? "problem" : "quiet"} role="status">${problem || (left ? `${plural(left.length, "move")} of ${count.toLocaleString("en")}` : "")}</span></div>`;
}

/** `{"name":"a.log","more":1}` as `name: "a.log", more: 1`. */
const argumentsOf = (text) => text.replace(/^\{(.*?)\}?$/s, "$1").replace(/"([A-Za-z_]\w*)":\s*/g, "$1: ").replace(/,(?=\w+: )/g, ", ");

const callsOf = (move) => `${move.calls.map(([name, given]) => `${name}(${short(argumentsOf(given), 120)})`).join(", ")}${move.more ? ` and ${move.more} more` : ""}`;

function Row({ seq, top, move, rows, states, looked, engine, hit, onLook }) {
  const kind = `move-row${looked ? " looked" : ""}${engine ? " engine" : ""}${hit ? " hit" : ""}${move?.exit ? " exit" : ""}`;
  const place = { transform: `translateY(${top}px)` };
  const act = () => onLook(seq);
  if (seq === 0)
    return html`<div class=${kind} id="move-0" role="option" aria-selected=${looked} style=${place} onClick=${act}><span class="num">0</span><span class="quiet wide">the turn begins</span></div>`;
  if (!move)
    return html`<div class=${kind} id=${`move-${seq}`} role="option" aria-selected=${looked} style=${place} onClick=${act}><span class="num">${seq}</span><span class="quiet wide">…</span></div>`;
  const row = rows[move.row];
  return html`<div class=${kind} id=${`move-${seq}`} role="option" aria-selected=${looked} style=${place} onClick=${act}>
    <span class="num">${seq}</span><${State} name=${move.source} states=${states} /><span>${words(move.event)}</span>
    <${State} name=${move.dest} states=${states} />
    ${move.calls?.length ? html`<code class="because calls-of" title=${callsOf(move)}>${callsOf(move)}</code>` : html`<span class="because" title=${move.row}>${move.exit ? html`<${Exit} name=${move.exit} />` : rungWords(row, move)}</span>`}
    <span class="num tokens" title=${move.tokens ? money(move.cost) : ""}>${move.tokens ? `${move.tokens.toLocaleString("en")}${move.cost ? ` · ${money(move.cost)}` : ""}` : ""}</span>
    <span class="num took">${seconds(move.seconds)}</span>
  </div>`;
}

export function rungWords(row, move) {
  if (!row) return move.row;
  return row.rung.startsWith("→") ? row.why : row.rung;
}
