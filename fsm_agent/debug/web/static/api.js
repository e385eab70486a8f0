// Talking with the program that served this page; it answers JSON, and tells what happens as server-sent events.
export class Refused extends Error {}

const KEPT = "fsm-agent-token";
const RETRY = 3000; // milliseconds

// The token comes behind the # of the address, which no server receives; this tab keeps it for this origin alone.
// The rest behind it is the position that is shown: a link to a move is #at=6.
const given = parts().get("token");
if (given) {
  sessionStorage.setItem(KEPT, given);
  keepHash("token", null);
}
addEventListener("hashchange", () => parts().get("token") && location.reload()); // another address was typed over this one

function parts() {
  return new URLSearchParams(location.hash.slice(1));
}

/** The part of the address behind the # that is called `name`, or null. */
export const inHash = (name) => parts().get(name);

/** Write a part of the address behind the #, without a new entry in the history; null takes it out. */
export function keepHash(name, value) {
  const kept = parts();
  if (value === null) kept.delete(name);
  else kept.set(name, value);
  const text = kept.toString();
  history.replaceState(null, "", `${location.pathname}${location.search}${text && `#${text}`}`);
}

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
  asked.catch(() => {}); // its receiver handles it
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

/** Ask with a body, which changes nothing. */
export const submit = async (path, body) =>
  answered(
    await ask(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    }),
  );

let before = Promise.resolve();

/** Change something, after all that was to be changed before. A `body` that depends on the answers to that is a function. */
export function post(path, body = {}) {
  const done = before.then(async () => submit(path, typeof body === "function" ? await body() : body));
  before = done.catch(() => {});
  return done;
}

export const turnPath = (turn, rest = "") => `/api/turns/${encodeURIComponent(turn)}${rest}`;

/** Calls `hear(kind, data, sent)` for each event of a stream, as that of a turn, until the function that this returns is called; `lost` when it cannot be heard, with what the program says against it, if it says anything. */
export function listen(path, hear, lost) {
  const end = new AbortController();
  const heard = async () => {
    const response = await ask(path, { signal: end.signal });
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) await answered(response);
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
  const again = (error) => {
    if (end.signal.aborted) return;
    lost(error instanceof Refused ? error : null);
    setTimeout(listening, RETRY);
  };
  const listening = () => end.signal.aborted || heard().then(again, again);
  listening();
  return () => end.abort();
}
