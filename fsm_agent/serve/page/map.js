// The map of a turn: drawn once by the server; afterwards only classes change, so that it lights up as the turn moves.
import { html, useLayoutEffect, useRef } from "./parts.js";

const LARGEST = 23; // of the names of states, in the units of the map
const WIDE = 0.63; // of a letter, in its height

export function TurnMap({ svg, state, path, running }) {
  const place = useRef();
  useLayoutEffect(() => {
    place.current.innerHTML = svg;
    place.current.firstElementChild?.setAttribute("aria-hidden", "true"); // its state is said beside it
    for (const one of place.current.querySelectorAll("[data-state]")) {
      const name = one.querySelector(".name");
      const room = Number(one.querySelector(".box").getAttribute("width")) - 22;
      name.style.fontSize = `${Math.min(LARGEST, room / (WIDE * name.textContent.length))}px`;
    }
  }, [svg]);
  useLayoutEffect(() => {
    const last = path.at(-1);
    const seen = new Set(path.flatMap((one) => [one.source, one.dest]));
    const ways = new Set(path.map((one) => `${one.source}→${one.dest}`));
    for (const one of place.current.querySelectorAll("[data-state]")) {
      const name = one.dataset.state;
      one.classList.toggle("seen", seen.has(name));
      one.classList.toggle("now", name === state?.state);
      one.classList.toggle("beats", name === state?.state && running);
    }
    for (const one of place.current.querySelectorAll("[data-dest]")) {
      const way = `${one.dataset.source}→${one.dataset.dest}`;
      one.classList.toggle("seen", ways.has(way));
      one.classList.toggle("last", Boolean(last) && way === `${last.source}→${last.dest}`);
    }
  });
  return html`<div class="map" ref=${place}></div>`;
}
