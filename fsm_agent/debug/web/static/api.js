// Talking with the program that served this page; it answers JSON, and tells what happens as server-sent events.
export class Refused extends Error {}

async function answered(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    throw new Refused(`the debugger answered ${response.status}`);
  }
  if (!response.ok || body.error) throw new Refused(body.error || `the debugger answered ${response.status}`);
  return body;
}

const early = new Map();

/** Ask already now for what `get` will be asked for once. */
export function ahead(path) {
  const asked = fetch(path, { credentials: "same-origin" }).then(answered);
  asked.catch(() => {}); // whoever gets it hears of it
  early.set(path, asked);
}

export async function get(path) {
  const known = early.get(path);
  if (known) {
    early.delete(path);
    return known;
  }
  return answered(await fetch(path, { credentials: "same-origin" }));
}

export const post = async (path, body = {}) =>
  answered(
    await fetch(path, {
      method: "POST",
      credentials: "same-origin",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    }),
  );

export const turnPath = (turn, rest = "") => `/api/turns/${encodeURIComponent(turn)}${rest}`;

/** Calls `hear(kind, data, sent)` for each event of a turn until the function that this returns is called; `lost` when it cannot be heard. */
export function listen(turn, hear, lost) {
  const source = new EventSource(turnPath(turn, "/events"));
  source.onmessage = (message) => {
    const { kind, data, sent } = JSON.parse(message.data);
    hear(kind, data, sent);
  };
  source.onerror = lost; // it tries again by itself
  return () => source.close();
}
