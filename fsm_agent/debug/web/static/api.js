// Talking with the program that served this page; it answers JSON, and tells what happens as server-sent events.
export class Refused extends Error {}

async function answered(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    throw new Refused(`the debugger answered ${response.status}`);
  }
  if (!response.ok) throw new Refused(body.error || `the debugger answered ${response.status}`);
  return body;
}

export const get = async (path) => answered(await fetch(path, { credentials: "same-origin" }));

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

/** Calls `hear(kind, data, sent)` for each event of a turn until the function that this returns is called. */
export function listen(turn, hear, lost) {
  const source = new EventSource(turnPath(turn, "/events"));
  source.onmessage = (message) => {
    const { kind, data, sent } = JSON.parse(message.data);
    hear(kind, data, sent);
  };
  source.onerror = () => lost(source.readyState === EventSource.CLOSED);
  return () => source.close();
}
