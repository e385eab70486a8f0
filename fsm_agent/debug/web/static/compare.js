// Two runs side by side, lined up move by move; both sides by windows, like the list of moves.
import { get, turnPath } from "./api.js";
import { useDrawn } from "./fetched.js";
import { Moves } from "./pages.js";
import { rungWords } from "./moves.js";
import { Button, Exit, html, plural, rem, seconds, short, State, Text, useEffect, useLayoutEffect, useMemo, useRef, useState, words } from "./ui.js";

const ROW = rem(27);

export function Compare({ left, right, states, rows, onClose, onOpen }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState("");
  const [, redraw] = useState(0);
  const [chosen, setChosen] = useState(0);
  const [top, setTop] = useState(0);
  const box = useRef(null);
  const sides = useMemo(() => [left, right].map((turn) => new Moves(turn, () => redraw((n) => n + 1))), [left, right]);
  useEffect(() => {
    get(`/api/compare?left=${encodeURIComponent(left)}&right=${encodeURIComponent(right)}`).then((said) => {
      setFound(said);
      const first = Math.min(said.parted ?? Infinity, said.said ?? Infinity);
      setChosen(Number.isFinite(first) ? first - 1 : 0);
    }, (error) => setProblem(error.message));
  }, [left, right]);
  const total = found ? found.stretches.reduce((sum, one) => sum + length(one), 0) : 0;
  useLayoutEffect(() => {
    if (found && box.current) box.current.scrollTop = Math.max(0, (chosen - 4) * ROW);
  }, [found]);
  const keys = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    setChosen(Math.max(0, Math.min(total - 1, chosen + step)));
  };
  const from = Math.max(0, Math.floor(top / ROW) - 5);
  const shown = found ? Array.from({ length: Math.min(total - from, 50) }, (_, i) => from + i) : [];
  const pair = found ? pairAt(found.stretches, chosen) : null;
  const whole = useRef(null);
  useLayoutEffect(() => {
    whole.current.showModal();
    box.current.focus();
  }, []);
  return html`<dialog class="compare" ref=${whole} aria-label="two runs compared" onClose=${onClose}>
    <div class="compare-head"><h2>Two runs</h2>
      <p role="status">${found && verdict(found)}</p>
      <${Button} label="close the comparison" onClick=${() => whole.current.close()}>Close<//></div>
    ${problem && html`<p class="problem">${problem}</p>`}
    <div class="compare-names">${[left, right].map((turn, i) => html`<div><b>${i ? "right" : "left"}</b> <code>${turn}</code> <${Button} label=${`open ${i ? "right" : "left"} run`} kind="link" onClick=${() => onOpen(turn)}>open<//></div>`)}</div>
    <div class="compare-box" ref=${box} tabindex="0" role="listbox" aria-label="moves of both runs" onKeyDown=${keys} onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
      <div class="moves-room" style=${{ height: `${total * ROW}px` }}>${shown.map((index) => {
        const [tag, a, b] = pairAt(found.stretches, index);
        const kind = `compare-row ${tag}${index === chosen ? " looked" : ""}${found.said && tag === "same" && a === found.said ? " said" : ""}`;
        return html`<div key=${index} class=${kind} role="option" aria-selected=${index === chosen} style=${{ transform: `translateY(${index * ROW}px)` }} onClick=${() => setChosen(index)}>
          <${Side} seq=${a} moves=${sides[0]} states=${states} rows=${rows} /><span class="mark" title=${TITLES[tag]}>${MARKS[tag]}</span><${Side} seq=${b} moves=${sides[1]} states=${states} rows=${rows} /></div>`;
      })}</div></div>
    ${pair && html`<div class="compare-details"><${Details} turn=${left} seq=${pair[1]} side="left" /><${Details} turn=${right} seq=${pair[2]} side="right" /></div>`}
  </dialog>`;
}

const MARKS = { same: "=", changed: "≠", only_left: "←", only_right: "→" };
const TITLES = { same: "the same move", changed: "other moves", only_left: "only in the left run", only_right: "only in the right run" };
const size = ([first, last]) => Math.max(0, last - first + 1);
const length = (one) => Math.max(size(one.left), size(one.right));

function pairAt(stretches, index) {
  let before = 0;
  for (const one of stretches) {
    const long = length(one);
    if (index < before + long) {
      const offset = index - before;
      return [one.tag, offset < size(one.left) ? one.left[0] + offset : null, offset < size(one.right) ? one.right[0] + offset : null];
    }
    before += long;
  }
  return ["same", null, null];
}

function verdict({ parted, said, shared }) {
  const parts = [shared ? `${plural(shared, "move")} in common before the fork` : ""];
  if (said) parts.push(`first different answer: move ${said}`);
  parts.push(parted ? `first different move: ${parted}` : "all moves are the same");
  return parts.filter(Boolean).join(" · ");
}

function Side({ seq, moves, states, rows }) {
  const move = seq ? moves.at(seq) : null;
  if (!seq) return html`<span class="compare-side empty"></span>`;
  if (!move) return html`<span class="compare-side"><span class="num">${seq}</span> …</span>`;
  return html`<span class="compare-side"><span class="num">${seq}</span> <${State} name=${move.source} states=${states} /> <span class="quiet">${words(move.event)} →</span> <${State} name=${move.dest} states=${states} />
    <span class="because">${move.exit ? html`<${Exit} name=${move.exit} />` : rungWords(rows[move.row], move)}</span></span>`;
}

const SHOWN = new Set(["CallModel", "RunTool", "AskApproval", "Wait", "SwitchProvider"]);

function Details({ turn, seq, side }) {
  const none = html`<div class="details"><p class="quiet">This run has no such move.</p></div>`;
  return useDrawn(seq ? turnPath(turn, `/at/${seq}`) : "", ({ data, error }) => !seq ? none : error ? html`<div class="details"><p class="problem">${error}</p></div>` : html`<div class="details" aria-label=${`${side} move`}><h3>Move ${seq} <code>${data.move.row}</code> <span class="quiet">${seconds(data.move.seconds)}</span></h3>
    <ul class="guards">${data.move.guards.map(([label, value]) => html`<li class=${value ? "yes" : "no"}>${value ? "✓" : "✗"} ${label}</li>`)}</ul>
    ${data.visit.filter((one) => SHOWN.has(one.kind)).map((one) => html`<div class="effect"><b>${one.kind}</b> <code>${one.name}</code>${["by hand", "taken over"].includes(one.status) && html` <span class="tag">${one.status}</span>`}<${Text} value=${answerOf(one)} label=${`${side} reply`} /></div>`)}</div>`);
}

function answerOf({ reply }) {
  if (!reply) return "no reply";
  const calls = (reply.tool_calls || []).map((call) => `${call.name}(${call.arguments})`).join("\n");
  return short(reply.message ?? "", 2000) || [reply.text, calls].filter(Boolean).join("\n") || JSON.stringify(reply, null, 2);
}
