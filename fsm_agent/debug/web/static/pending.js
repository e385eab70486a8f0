// What suspended turns wait for, of any process, and the answers: a dialog. All of a question is shown.
import { get, post } from "./api.js";
import { Dialog } from "./dialogs.js";
import { Shown, StillButton, useStill } from "./held.js";
import { Button, html, useEffect, useRef, useState, words } from "./ui.js";

export function Pending({ onClose, onOpen }) {
  const [items, setItems] = useState(null);
  const [said, setSaid] = useState("");
  const load = () => get("/api/pending").then((found) => setItems(found.pending), (error) => setSaid(error.message));
  useEffect(() => void load(), []);
  const answer = async (item, value) => {
    try {
      const { told } = await post(`/api/pending/${encodeURIComponent(item.id)}`, { said: value });
      setSaid(`${item.id} is answered: ${told}. Its turn continues when it is resumed.`);
    } catch (error) {
      setSaid(error.message);
    }
    load();
  };
  return html`<${Dialog} title="What turns wait for" onClose=${onClose} wide=${true}>
    <p role="status" class="quiet">${said || (items && !items.length ? "No turn waits for an answer." : "")}</p>
    ${(items || []).map((item) => html`<${Item} key=${item.id} item=${item} onAnswer=${(value) => answer(item, value)} onOpen=${() => onOpen(item.turn)} />`)}<//>`;
}

const SAYS = { once: "Allow once", session: "Allow for the session", always: "Always allow", deny: "Deny", never: "Never allow" };
const KINDS = { once: "primary", deny: "danger", never: "danger" };
const FIELDS = { question: "your answer", result: "the result, as the model reads it", timer: "" };

function Item({ item, onAnswer, onOpen }) {
  const [text, setText] = useState("");
  const buttons = useRef(null);
  const by = useStill(buttons, item.id);
  const button = (label, shown, said, kind = "") => html`<${StillButton} key=${label} label=${`${label} ${item.id}`} kind=${kind} by=${by} onClick=${() => onAnswer(said)}>${shown}<//>`;
  const field = FIELDS[item.kind];
  return html`<section class="held" aria-label=${item.id}>
    <p class="line"><b>${words(item.what)}</b> <span class="quiet">${item.id}, since ${new Date(item.since * 1000).toLocaleString()}${item.due ? `, until ${new Date(item.due * 1000).toLocaleString()}` : ""}</span>
      <${Button} label=${`open the turn of ${item.id}`} kind="link" onClick=${onOpen}>open its turn<//></p>
    <${Shown} text=${item.asked} kind="call-text" label="what is asked" />
    ${field && html`<label class="stack"><span class="quiet">${field}</span><textarea rows="2" aria-label=${`${field} ${item.id}`} value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea></label>`}
    ${by.refusal && html`<p class="problem" role="alert">${by.refusal}</p>`}
    <div class="buttons" ref=${buttons}>
      ${item.kind === "approval" ? item.choices.map((one) => button(words(one), SAYS[one], one, KINDS[one]))
        : item.kind === "timer" ? button("continue now", "Continue now", "")
        : [...item.choices.map((one) => button(`choose ${one}`, one, one)), button("give this answer", "Give this answer", text, "primary")]}
    </div></section>`;
}
