// The strip of lanes, one a state, like a logic analyser. It asks for as many columns as it has pixels, never for all moves.
import { turnPath } from "./api.js";
import { useFetched, WHILE_RUNNING } from "./fetched.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const LEFT = 122;
/** Height of a lane: many share the room, few do not fill it. */
const laneOf = (states) => Math.max(5, Math.min(15, Math.floor(96 / states.length)));

export function Lanes({ turn, count, at, engine, states, onLook, theme, running }) {
  const canvas = useRef(null);
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  const [span, setSpan] = useState(null); // {first, last} when zoomed
  const first = span ? span.first : 0;
  const last = span ? Math.min(span.last, count) : count;
  const wide = Math.max(1, width - LEFT - 12);
  const lane = laneOf(states);

  useEffect(() => setSpan(null), [turn]);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setWidth(box.current?.clientWidth || 0));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const path = turn && width ? turnPath(turn, `/lanes?first=${first}&last=${last}&buckets=${Math.floor(wide)}`) : "";
  const { data } = useFetched(path, 0, running ? WHILE_RUNNING : 0);

  useLayoutEffect(() => {
    const element = canvas.current;
    const scale = window.devicePixelRatio || 1;
    const height = states.length * lane;
    element.width = Math.max(1, wide * scale);
    element.height = height * scale;
    element.style.height = `${height}px`;
    const pen = element.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, wide, height);
    if (!data || !data.masks.length) return;
    const style = getComputedStyle(document.documentElement);
    const colours = states.map((_, i) => style.getPropertyValue(i === states.length - 1 ? "--final" : `--t${i % 7}`));
    const step = wide / data.masks.length;
    const grid = style.getPropertyValue("--line");
    states.forEach((_, i) => {
      pen.fillStyle = grid;
      pen.fillRect(0, i * lane + lane / 2 - 0.5, wide, 1);
    });
    states.forEach((_, i) => {
      pen.fillStyle = colours[i];
      data.masks.forEach((mask, bucket) => {
        if (Math.floor(mask / 2 ** i) % 2) pen.fillRect(bucket * step, i * lane + 1, Math.max(1, step > 6 ? step - 1 : step), lane - 2);
      });
    });
  }, [data, width, theme, turn]);

  const placeOf = (seq) => LEFT + ((seq - first + 0.5) / (last - first + 1)) * wide;
  const seqOf = (x) => Math.round(first + ((x - LEFT) / wide) * (last - first + 1) - 0.5);
  const inSight = (seq) => seq >= first && seq <= last;

  const scrub = (event) => {
    const x = event.clientX - box.current.getBoundingClientRect().left;
    onLook(Math.max(0, Math.min(count, seqOf(x))));
  };
  const press = (event) => {
    if (event.button !== 0 || event.target.closest("button")) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    scrub(event);
  };
  const zoom = (factor, centre = at) => {
    const size = Math.max(20, Math.round((last - first + 1) * factor));
    if (size >= count + 1) return setSpan(null);
    const start = Math.max(0, Math.min(count - size + 1, Math.round(centre - ((centre - first) / (last - first + 1)) * size)));
    setSpan({ first: start, last: start + size - 1 });
  };
  const wheel = (event) => {
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

  return html`<section class="lanes" ref=${box} aria-label="lanes of the states" onPointerDown=${press}
    onPointerMove=${(event) => event.buttons === 1 && event.currentTarget.hasPointerCapture(event.pointerId) && scrub(event)}>
    <ul class="lane-names" aria-hidden="true" style=${{ "--lane": `${lane}px`, "--words": `${Math.min(lane, 11)}px` }}>${states.map((name, i) => html`<li class=${i === states.length - 1 ? "final" : `t${i % 7}`} title=${name}><span>${name}</span></li>`)}</ul>
    <canvas ref=${canvas} class="lane-canvas" role="img" aria-label="the state at every position, as columns"></canvas>
    <div class="marker engine" hidden=${!inSight(engine)} style=${{ transform: `translateX(${placeOf(engine)}px)` }} title="where the engine is"></div>
    <div class="marker look" hidden=${!inSight(at)} style=${{ transform: `translateX(${placeOf(at)}px)` }} role="slider" tabindex="0"
      aria-label="position looked at" aria-valuemin="0" aria-valuemax=${count} aria-valuenow=${at} onKeyDown=${keys}></div>
    <div class="zoom">
      <button type="button" aria-label="zoom in" title="zoom in (wheel)" onClick=${() => zoom(0.5)}>+</button>
      <button type="button" aria-label="zoom out" title="zoom out" disabled=${!span} onClick=${() => zoom(2)}>−</button>
      <button type="button" aria-label="show all positions" title="show all" disabled=${!span} onClick=${() => setSpan(null)}>all</button>
    </div>
  </section>`;
}
