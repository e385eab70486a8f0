// What a word means, beside it, while one points at it or has come to it with the keyboard; Escape takes it away.
const GAP = 6; // pixels

export function explain() {
  const tip = Object.assign(document.createElement("div"), { id: "tip", hidden: true });
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  let about = null;
  const hide = () => {
    about?.removeAttribute("aria-describedby");
    about = null;
    tip.hidden = true;
  };
  const show = (event) => {
    const word = event.target.closest?.("[data-tip]");
    if (word === about) return;
    hide();
    if (!word) return;
    about = word;
    (word.closest("dialog[open]") || document.body).append(tip); // above what lies over the page
    tip.textContent = word.dataset.tip;
    word.setAttribute("aria-describedby", "tip");
    tip.hidden = false;
    const [place, size] = [word.getBoundingClientRect(), tip.getBoundingClientRect()];
    const below = place.bottom + GAP;
    tip.style.left = `${Math.max(4, Math.min(innerWidth - size.width - 4, place.left))}px`;
    tip.style.top = `${below + size.height < innerHeight ? below : place.top - size.height - GAP}px`;
  };
  addEventListener("pointerover", show);
  addEventListener("focusin", show);
  addEventListener("focusout", hide);
  addEventListener("scroll", hide, true);
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
}
