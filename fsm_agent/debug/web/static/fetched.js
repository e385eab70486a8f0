// What the program says, fetched as it is wanted.
import { get } from "./api.js";
import { useEffect, useRef, useState } from "./ui.js";

/** Milliseconds between two answers while a turn runs: a person reads no faster. */
export const WHILE_RUNNING = 250;

/** The answer to `path`: one request at a time, at most one in `least` milliseconds, and the newest wanted one last, however fast
 *  it changes. `again` asks for the same once more; `old` while the answer is to another path. */
export function useFetched(path, again = 0, least = 0) {
  const [found, setFound] = useState({ path: "", data: null, error: "" });
  const state = useRef({ wanted: "", busy: false, gone: false });
  state.current.least = least;
  useEffect(() => () => {
    state.current.gone = true;
  }, []);
  useEffect(() => {
    const work = state.current;
    work.wanted = path && `${path} ${again}`;
    const run = async () => {
      if (work.busy) return;
      work.busy = true;
      while (work.wanted && !work.gone) {
        const now = work.wanted;
        const asked = now.slice(0, now.lastIndexOf(" "));
        try {
          setFound({ path: asked, data: await get(asked), error: "" });
        } catch (error) {
          setFound({ path: asked, data: null, error: error.message });
        }
        if (work.wanted === now) work.wanted = "";
        if (work.least) await new Promise((resolve) => setTimeout(resolve, work.least));
      }
      work.busy = false;
    };
    run();
  }, [path, again]);
  return { ...found, old: found.path !== path };
}

/** What `draw` makes of the answer to `path`. The drawing before stays until the answer is there, so that no view has parts of two positions. */
export function useDrawn(path, draw) {
  const drawn = useRef(null);
  const found = useFetched(path);
  if (!path || !found.old) drawn.current = draw(found);
  return drawn.current;
}
