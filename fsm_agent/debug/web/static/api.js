// Talking with the program that served this page; it answers JSON, and tells what happens as server-sent events.
export class Refused extends Error {}

const KEPT = "fsm-agent-token";
const RETRY = 3000; // milliseconds

// The token stands behind the # of the address, which is sent to nobody; this tab keeps it for this origin alone.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEPT, given);
  history.replaceState(null, "", location.pathname + location.search);
}
addEventListener("hashchange", () => location.reload()); // another address was typed over this one

/** Ask, and show that it is us. */
const ask = (path, options = {}) =>
  fetch(path, {
    ...options,
    credentials: "omit",
    headers: { ...options.headers, "x-fsm-agent-token": sessionStorage.getItem(KEPT) || "" },
  });

async function answered(response) {
  const text = await response.text();
  let body = {};
  try {
    body = JSON.parse(text);
  } catch {
    throw new Refused(text.trim() || `the debugger answered ${response.status}`);
  }
  if (!response.ok || body.error) throw new Refused(body.error || `the debugger answered ${response.status}`);
  return body;
}

const early = new Map();

/** Ask already now for what `get` will be asked for once. */
export function ahead(path) {
  const asked = ask(path).then(answered);
  asked.catch(() => {}); // whoever gets it hears of it
  early.set(path, asked);
}

export async function get(path) {
  const known = early.get(path);
  if (known) {
    early.delete(path);
    return known;
  }
  return answered(await ask(path));
}

export const post = async (path, body = {}) =>
  answered(
    await ask(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    }),
  );

export const turnPath = (turn, rest = "") => `/api/turns/${encodeURIComponent(turn)}${rest}`;

/** Calls `hear(kind, data, sent)` for each event of a turn until the function that this returns is called; `lost` when it cannot be heard. */
export function listen(turn, hear, lost) {
  const end = new AbortController();
  const heard = async () => {
    const response = await ask(turnPath(turn, "/events"), { signal: end.signal });
    if (!response.ok) throw new Refused(`the debugger answered ${response.status}`);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      const messages = (rest + value).split("\n\n");
      rest = messages.pop();
      for (const message of messages.filter((one) => one.startsWith("data: "))) {
        const { kind, data, sent } = JSON.parse(message.slice(6));
        hear(kind, data, sent);
      }
    }
  };
  const again = () => {
    if (end.signal.aborted) return;
    lost();
    setTimeout(listening, RETRY);
  };
  const listening = () => end.signal.aborted || heard().then(again, again);
  listening();
  return () => end.abort();
}
