// The field of the search: Enter goes from hit to hit, and around; the list has all of them.
import { get, turnPath } from "./api.js";
import { html, plural, useEffect, useRef, useState } from "./ui.js";

/** `field` is a ref to the input; `onFound(positions)` and `onLook(at)` receive the hits. */
export function Search({ turn, at, field, lost, onFound, onLook }) {
  const [said, setSaid] = useState({ text: "", found: null, more: false, index: -1 });
  const [problem, setProblem] = useState("");
  const [open, setOpen] = useState(false);
  const box = useRef(null);
  useEffect(() => box.current?.querySelector(".current")?.scrollIntoView({ block: "nearest" }), [said.index, said.found, open]);
  const clear = () => {
    setSaid({ text: "", found: null, more: false, index: -1 });
    setProblem("");
    setOpen(false);
    onFound([]);
  };
  useEffect(clear, [turn]);
  useEffect(() => {
    const away = (event) => box.current?.contains(event.target) || setOpen(false);
    addEventListener("pointerdown", away);
    return () => removeEventListener("pointerdown", away);
  }, []);
  const go = (found, index, more, text) => {
    setSaid({ text, found, more, index });
    if (found.length) onLook(found[index].at);
  };
  const search = async (back) => {
    const text = field.current.value.trim();
    if (!text) return clear();
    if (text === said.text && said.found?.length) {
      const length = said.found.length;
      return go(said.found, (said.index + (back ? -1 : 1) + length) % length, said.more, text);
    }
    try {
      const { found, more } = await get(turnPath(turn, `/find?text=${encodeURIComponent(text)}`));
      setProblem(found.length ? "" : `“${text}” is in no move.`);
      onFound(found.map((one) => one.at));
      setOpen(true);
      const next = found.findIndex((one) => one.at > at); // the first behind where one looks, or else from the beginning
      go(found, Math.max(0, next), more, text);
    } catch (error) {
      setProblem(error.message);
    }
    return undefined;
  };
  const keys = (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      search(event.shiftKey);
    } else if (event.key === "Escape") {
      setOpen(false);
      event.currentTarget.blur();
    }
  };
  const { found, index, more } = said;
  return html`<form class="search" role="search" ref=${box} onSubmit=${(event) => event.preventDefault()}>
    <input name="text" type="search" placeholder="Search  /" aria-label="search moves, requests and replies" title=${lost || "Enter: next hit, Shift-Enter: previous hit"} disabled=${Boolean(lost)} ref=${field} onKeyDown=${keys} onInput=${(event) => event.currentTarget.value || clear()} onFocus=${() => found?.length && setOpen(true)} />
    <span class="quiet hits-count" role="status">${found?.length ? `${index + 1} of ${found.length}${more ? "+" : ""}` : problem && "none"}</span>
    ${problem && html`<p class="drop problem" role="alert">${problem}</p>`}
    ${open && found?.length > 0 && html`<div class="drop hits"><p class="quiet">${plural(found.length, "hit")}${more ? " and more" : ""}; Enter shows the next one</p><ol>${found.map((one, i) => html`<li key=${i}><button type="button" class=${i === index ? "current" : ""} aria-current=${i === index ? "true" : null} onClick=${() => go(found, i, more, said.text)}>
      <span class="num">${one.at}</span><span><b>${one.where}</b> <code>${one.kind}</code></span><span class="quiet">${one.text}</span></button></li>`)}</ol></div>`}
  </form>`;
}
