// A field for a condition: names are completed while it is typed, and what cannot be read is said beside it.
import { get, turnPath } from "./api.js";
import { html, useRef, useState } from "./ui.js";

const WORD = /[A-Za-z_]\w*$/;
const MOST = 8;

/** What may come where the cursor is: [text, what it is]. */
function offers(before, names) {
  if (/["'][^"']*$/.test(before) && (before.match(/["']/g) || []).length % 2) return [];
  const word = WORD.exec(before)?.[0] || "";
  const rest = before.slice(0, before.length - word.length).trimEnd();
  const previous = /(\w+)$/.exec(rest)?.[1];
  const after = rest && !/(\b(and|or|not)|\()$/.test(rest);
  const compares = /(==|!=|>=|<=|<|>|contains)$/.test(rest);
  let all;
  if (compares) all = Object.entries(names.numbers);
  else if (after && previous in names.texts && !word) all = [['contains "', "has this text in it"], ['== "', "is this text"], ['!= "', "is another text"]];
  else if (after && previous in names.numbers && !word) all = [">=", "<=", "==", ">", "<"].map((sign) => [`${sign} `, "compared"]);
  else if (after && !word && !/\s$/.test(before)) all = [];
  else if (after && !word) all = [["and ", "both"], ["or ", "one of them"]];
  else all = [...Object.entries(names.texts), ...Object.entries(names.numbers)];
  return all.filter(([text]) => text.startsWith(word) && text !== word).slice(0, MOST);
}

/** `onSet(text)` is a promise that is refused with what is wrong; what was typed stays then. */
export function Condition({ label, name, hint, value, names, turn, onSet }) {
  const [typed, setTyped] = useState(null);
  const [problem, setProblem] = useState("");
  const [offered, setOffered] = useState([]);
  const [chosen, setChosen] = useState(-1);
  const field = useRef(null);
  const checked = useRef(0);
  const id = `offers-${name.replace(/\W/g, "-")}`;
  const offer = (element) => {
    setOffered(offers(element.value.slice(0, element.selectionStart), names));
    setChosen(-1);
  };
  const check = (text) => {
    const number = (checked.current += 1);
    if (!text.trim()) return setProblem("");
    setTimeout(() => number === checked.current && get(turnPath(turn, `/condition?text=${encodeURIComponent(text)}`)).then(
      () => number === checked.current && setProblem(""), (error) => number === checked.current && setProblem(error.message)), 300);
  };
  const type = (event) => {
    setTyped(event.currentTarget.value);
    offer(event.currentTarget);
    check(event.currentTarget.value);
  };
  const take = (text) => {
    const element = field.current;
    const at = element.selectionStart;
    const before = element.value.slice(0, at).replace(WORD, "");
    const whole = before + (before && !/[\s(]$/.test(before) ? " " : "") + text;
    const gap = /[\s"]$/.test(text) ? "" : " ";
    setTyped(whole + gap + element.value.slice(at));
    setOffered([]);
    requestAnimationFrame(() => {
      element.focus();
      element.setSelectionRange(whole.length + gap.length, whole.length + gap.length);
      offer(element);
    });
  };
  const leave = async () => {
    checked.current += 1;
    setOffered([]);
    if (typed === null) return;
    if (typed.trim() === value) return void (setTyped(null), setProblem(""));
    try {
      await onSet(typed.trim());
      setTyped(null);
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  const keys = (event) => {
    event.stopPropagation();
    if (event.key === "Escape" && offered.length) return void (event.preventDefault(), setOffered([]));
    if (event.key === "Enter") {
      event.preventDefault();
      return chosen >= 0 ? take(offered[chosen][0]) : leave();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !offered.length) return undefined;
    event.preventDefault();
    return setChosen((chosen + step + offered.length) % offered.length);
  };
  return html`<div class="condition"><label><span class="quiet">${label}</span><input type="text" ref=${field} role="combobox" aria-label=${name} aria-autocomplete="list" aria-expanded=${offered.length > 0 ? "true" : "false"}
      aria-controls=${id} aria-activedescendant=${chosen >= 0 ? `${id}-${chosen}` : null} aria-invalid=${problem ? "true" : null} placeholder=${hint} value=${typed ?? value} spellcheck=${false} autocomplete="off"
      onInput=${type} onFocus=${(event) => offer(event.currentTarget)} onBlur=${leave} onKeyDown=${keys} /></label>
    <ul class="offers" id=${id} role="listbox" aria-label="what may be written" hidden=${!offered.length}>${offered.map(([text, means], i) => html`<li id=${`${id}-${i}`} role="option" aria-selected=${i === chosen} class=${i === chosen ? "chosen" : ""}
      onPointerDown=${(event) => { event.preventDefault(); take(text); }}><code>${text}</code> <span class="quiet">${means}</span></li>`)}</ul>
    ${problem && !offered.length && html`<p class="problem" role="alert">${problem}</p>`}</div>`;
}
