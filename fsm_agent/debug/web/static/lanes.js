// The strip of lanes, one a state, like a logic analyser, over moves or over time. It asks for as many columns as it has pixels, never for all moves.
import { turnPath } from "./api.js";
import { useFetched, WHILE_RUNNING } from "./fetched.js";
import { html, seconds, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const WIDE = 122;
const NARROW = 88;
const AXIS = 24; // pixels of the axis below the lanes
const WAITS = [["people", "people", "--t6"], ["model", "the model", "--t2"], ["tools", "tools", "--t5"], ["pauses", "pauses", "--t4"]];
/** Height of a lane: many share the room, few do not fill it. */
const laneOf = (states) => Math.max(5, Math.min(15, Math.floor(96 / states.length)));

export function Lanes({ turn, count, at, engine, states, onLook, theme, running }) {
  const canvas = useRef(null);
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  const [span, setSpan] = useState(null); // {first, last} when zoomed
  const [axis, setAxis] = useState("moves");
  const timed = axis === "time";
  const first = span && !timed ? span.first : 0;
  const last = span && !timed ? Math.min(span.last, count) : count;
  const left = width && width < 480 ? NARROW : WIDE;
  const wide = Math.max(1, width - left - 12);
  const lane = laneOf(states);
  const lanes = states.length + (timed ? 1 : 0);
  const height = lanes * lane + AXIS;

  useEffect(() => setSpan(null), [turn]);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setWidth(box.current?.clientWidth || 0));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const path = !turn || !width ? "" : timed ? turnPath(turn, `/time?buckets=${Math.floor(wide)}`) : turnPath(turn, `/lanes?first=${first}&last=${last}&buckets=${Math.floor(wide)}`);
  const { data: found, old } = useFetched(path, timed ? count : 0, running ? WHILE_RUNNING : 0);
  const data = found && Boolean(found.positions) === timed ? found : null;

  useLayoutEffect(() => {
    const element = canvas.current;
    const scale = window.devicePixelRatio || 1;
    element.width = Math.max(1, wide * scale);
    element.height = height * scale;
    element.style.height = `${height}px`;
    const pen = element.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, wide, height);
    if (!data || !data.masks.length) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name);
    const step = wide / data.masks.length;
    pen.fillStyle = color("--line");
    for (let i = 0; i < lanes; i += 1) pen.fillRect(0, i * lane + lane / 2 - 0.5, wide, 1);
    states.forEach((_, i) => {
      pen.fillStyle = color(i === states.length - 1 ? "--final" : `--t${i % 7}`);
      data.masks.forEach((mask, bucket) => {
        if (Math.floor(mask / 2 ** i) % 2) pen.fillRect(bucket * step, i * lane + 1, Math.max(1, step > 6 ? step - 1 : step), lane - 2);
      });
    });
    if (timed) drawWaits(pen, data, step, states.length * lane + 1, lane - 2, color);
    drawAxis(pen, timed ? data.seconds : data.last - data.first, wide, lanes * lane, data.first, color("--quiet"), timed);
  }, [data, width, theme, turn, lanes, height]);

  const columnOf = (seq) => {
    let found = 0;
    data?.positions.forEach((one, i) => {
      if (one <= seq) found = i;
    });
    return found;
  };
  const placeOf = (seq) => (timed ? left + (data ? ((columnOf(seq) + 0.5) / data.positions.length) * wide : 0) : left + ((seq - first + 0.5) / (last - first + 1)) * wide);
  const seqOf = (x) => (timed ? data?.positions[Math.max(0, Math.min(data.positions.length - 1, Math.floor(((x - left) / wide) * data.positions.length)))] ?? 0 : Math.round(first + ((x - left) / wide) * (last - first + 1) - 0.5));
  const inSight = (seq) => timed || (seq >= first && seq <= last);

  const scrub = (event) => {
    const x = event.clientX - box.current.getBoundingClientRect().left;
    onLook(Math.max(0, Math.min(count, seqOf(x))));
  };
  const press = (event) => {
    if (event.button !== 0 || event.target.closest("button")) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    scrub(event);
  };
  const zoom = (factor, center = at) => {
    const size = Math.max(20, Math.round((last - first + 1) * factor));
    if (size >= count + 1) return setSpan(null);
    const start = Math.max(0, Math.min(count - size + 1, Math.round(center - ((center - first) / (last - first + 1)) * size)));
    setSpan({ first: start, last: start + size - 1 });
  };
  const wheel = (event) => {
    if (timed) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.4 : 0.7, seqOf(event.clientX - box.current.getBoundingClientRect().left));
  };
  useEffect(() => {
    const element = box.current;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });
  useEffect(() => {
    if (span && !inSight(at)) {
      const size = span.last - span.first + 1;
      const start = Math.max(0, Math.min(count - size + 1, at - Math.floor(size / 2)));
      setSpan({ first: start, last: start + size - 1 });
    }
  }, [at]);

  const keys = (event) => {
    const jump = { ArrowLeft: -1, ArrowRight: 1, PageUp: -50, PageDown: 50 }[event.key];
    if (jump) onLook(at + jump);
    else if (event.key === "Home") onLook(0);
    else if (event.key === "End") onLook(count);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  return html`<section class=${`lanes${left === NARROW ? " narrow" : ""}`} ref=${box} style=${{ "--lanes": `${lanes * lane}px` }} aria-label="lanes of the states" onPointerDown=${press}
    onPointerMove=${(event) => event.buttons === 1 && event.currentTarget.hasPointerCapture(event.pointerId) && scrub(event)}>
    <ul class="lane-names" aria-hidden="true" style=${{ "--lane": `${lane}px`, "--words": `${Math.min(lane, 11)}px` }}>${states.map((name, i) => html`<li class=${i === states.length - 1 ? "final" : `t${i % 7}`} title=${name}><span>${name}</span></li>`)}${timed && html`<li title="what was waited for"><span>waited for</span></li>`}</ul>
    <canvas ref=${canvas} class="lane-canvas" role="img" aria-busy=${old || !data} aria-label=${timed ? `the states over time, ${seconds(data?.seconds)} in all` : "the state at every position, as columns"}></canvas>
    <div class="marker engine" hidden=${!inSight(engine)} style=${{ transform: `translateX(${placeOf(engine)}px)` }} title="where the engine is"></div>
    <div class="marker look" hidden=${!inSight(at)} style=${{ transform: `translateX(${placeOf(at)}px)` }} role="slider" tabindex="0"
      aria-label="position looked at" aria-valuemin="0" aria-valuemax=${count} aria-valuenow=${at} onKeyDown=${keys}></div>
    <div class="lane-foot">
      <span class="switch-axis" role="group" aria-label="axis of the lanes">${["moves", "time"].map((name) => html`<button type="button" aria-pressed=${axis === name} onClick=${() => setAxis(name)}>${name}</button>`)}</span>
      ${timed && data && html`<span class="waits-legend">${WAITS.filter(([kind]) => data.sums[kind] > 0).map(([kind, said]) => html`<span class=${`wait for-${kind}`}>${said} ${seconds(data.sums[kind])}</span>`)}<span class="wait">engine ${seconds(Math.max(0, data.sums.engine))}</span></span>`}
      ${!timed && html`<span class="zoom">
        <button type="button" aria-label="zoom in" title="zoom in (wheel)" onClick=${() => zoom(0.5)}>+</button>
        <button type="button" aria-label="zoom out" title="zoom out" disabled=${!span} onClick=${() => zoom(2)}>−</button>
        <button type="button" aria-label="show all positions" title="show all" disabled=${!span} onClick=${() => setSpan(null)}>all</button></span>`}
    </div>
  </section>`;
}

/** What was waited for in each column, as its share of the height. */
function drawWaits(pen, data, step, top, height, color) {
  const whole = data.seconds / data.waits.length || 1;
  WAITS.forEach(([, , name], kind) => {
    pen.fillStyle = color(name);
    data.waits.forEach((parts, column) => {
      const before = parts.slice(0, kind).reduce((sum, one) => sum + one, 0);
      const share = Math.min(1, parts[kind] / whole);
      if (share > 0) pen.fillRect(column * step, top + height * Math.min(1, before / whole), Math.max(1, step), Math.max(1, height * share));
    });
  });
}

/** Round values from `first` on, about eight of them in a range of `whole`. */
function ticks(first, whole, timed) {
  if (!(whole > 0)) return [first];
  const rough = whole / 8;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const step = timed ? size : Math.max(1, Math.round(size));
  const begin = Math.ceil(first / step);
  return Array.from({ length: Math.floor((first + whole) / step) - begin + 1 }, (_, i) => (begin + i) * step);
}

/** `whole`: what the axis is long, seconds or moves; those begin at `first`. */
function drawAxis(pen, whole, wide, top, first, color, timed) {
  pen.fillStyle = color;
  pen.font = '10px system-ui, "DejaVu Sans", sans-serif';
  pen.textBaseline = "top";
  let free = -1;
  for (const value of ticks(timed ? 0 : first, whole, timed)) {
    const x = (timed ? value / (whole || 1) : (value - first + 0.5) / (whole + 1)) * wide;
    const text = timed ? value ? seconds(value) : "0" : String(value);
    const width = pen.measureText(text).width;
    const place = Math.max(0, Math.min(wide - width, x - width / 2));
    pen.fillRect(Math.min(wide - 1, x), top, 1, 4);
    if (place > free) pen.fillText(text, place, top + 5);
    free = Math.max(free, place + width + 8);
  }
}
