// The list of moves. Only the rows in sight are in the document, and only the pages around them are fetched.
import { Exit, html, rem, seconds, State, useEffect, useLayoutEffect, useRef, useState, words } from "./ui.js";

export const ROW = rem(25);
const AROUND = 6;

export function MoveList({ moves, count, at, engine, states, rows, found, onLook, version }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(200);

  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight || 200));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current;
    const row = at * ROW;
    if (row < element.scrollTop + ROW) element.scrollTop = Math.max(0, row - ROW);
    else if (row + 2 * ROW > element.scrollTop + element.clientHeight) element.scrollTop = row + 2 * ROW - element.clientHeight;
  }, [at, height]);

  const from = Math.max(0, Math.floor(top / ROW) - AROUND);
  const to = Math.min(count, Math.ceil((top + height) / ROW) + AROUND);
  const shown = [];
  for (let seq = from; seq <= to; seq += 1) shown.push(seq);
  const marks = new Set(found);
  return html`<section class="moves" aria-label="moves">
    <div class="moves-head" aria-hidden="true"><span>#</span><span>state</span><span>event</span><span>to</span><span>because</span><span class="num took">took</span></div>
    <div class="moves-box" ref=${box} onScroll=${(event) => setTop(event.currentTarget.scrollTop)} role="listbox" tabindex="0"
      aria-label="list of moves" aria-activedescendant=${`move-${at}`}>
      <div class="moves-room" style=${{ height: `${(count + 1) * ROW}px` }}>
        ${shown.map((seq) => html`<${Row} key=${seq} seq=${seq} move=${seq ? moves.at(seq) : null} rows=${rows} states=${states}
          looked=${seq === at} engine=${seq === engine} hit=${marks.has(seq)} onLook=${onLook} version=${version} />`)}
      </div>
    </div>
  </section>`;
}

function Row({ seq, move, rows, states, looked, engine, hit, onLook }) {
  const kind = `move-row${looked ? " looked" : ""}${engine ? " engine" : ""}${hit ? " hit" : ""}${move?.exit ? " exit" : ""}`;
  const place = { transform: `translateY(${seq * ROW}px)` };
  const act = () => onLook(seq);
  if (seq === 0)
    return html`<div class=${kind} id="move-0" role="option" aria-selected=${looked} style=${place} onClick=${act}><span class="num">0</span><span class="quiet wide">the turn begins</span></div>`;
  if (!move)
    return html`<div class=${kind} id=${`move-${seq}`} role="option" aria-selected=${looked} style=${place} onClick=${act}><span class="num">${seq}</span><span class="quiet wide">…</span></div>`;
  const row = rows[move.row];
  return html`<div class=${kind} id=${`move-${seq}`} role="option" aria-selected=${looked} style=${place} onClick=${act}>
    <span class="num">${seq}</span><${State} name=${move.source} states=${states} /><span>${words(move.event)}</span>
    <${State} name=${move.dest} states=${states} />
    <span class="because" title=${move.row}>${move.exit ? html`<${Exit} name=${move.exit} />` : rungWords(row, move)}</span>
    <span class="num took">${seconds(move.seconds)}</span>
  </div>`;
}

export function rungWords(row, move) {
  if (!row) return move.row;
  return row.rung.startsWith("→") ? row.why : row.rung;
}
