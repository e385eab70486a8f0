// The colors of the system, and those that are shown: chosen here, or the system's.
import { useEffect, useState } from "./ui.js";

const THEME = "fsm-agent-theme";
const systems = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function shownTheme() {
  return (document.documentElement.dataset.theme = localStorage.getItem(THEME) || systems());
}
shownTheme();

/** The theme that is shown, and what turns it. */
export function useTheme() {
  const [theme, setTheme] = useState(shownTheme);
  const turn = () => {
    const next = theme === "dark" ? "light" : "dark";
    if (next === systems()) localStorage.removeItem(THEME); // from now on as the system is
    else localStorage.setItem(THEME, next);
    setTheme(shownTheme());
  };
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setTheme(shownTheme());
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return [theme, turn];
}
