// Talking with the server: a key in a header, JSON, and runs as server-sent events.
export class Refused extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const KEPT = "fsm-agent-key";

// The token comes behind the # of the address, which no server receives; this tab keeps it for this origin alone.
const given = inHash("token");
if (given) {
  keepKey(given);
  keepHash("token", null);
}

function parts() {
  return new URLSearchParams(location.hash.slice(1));
}

/** The part of the address behind the # that is called `name`, or null. */
export function inHash(name) {
  return parts().get(name);
}

/** Write a part of the address behind the #; null takes it out. */
export function keepHash(name, value) {
  const kept = parts();
  if (value === null) kept.delete(name);
  else kept.set(name, value);
  const text = kept.toString();
  history.replaceState(null, "", `${location.pathname}${location.search}${text && `#${text}`}`);
}

export function keepKey(key) {
  sessionStorage.setItem(KEPT, key);
}

export const hasKey = () => Boolean(sessionStorage.getItem(KEPT));

async function ask(path, options = {}) {
  const headers = { ...options.headers, authorization: `Bearer ${sessionStorage.getItem(KEPT) || ""}` };
  const response = await fetch(path, { ...options, credentials: "omit", headers });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const told = body.error || body; // ours, and the protocol's
  throw new Refused(told.message || `the server answered ${response.status}`, response.status, told.code);
}

export const get = async (path) => (await ask(path)).json();

const posted = (path, body, more = {}) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), ...more });

export const post = async (path, body = {}) => (await posted(path, body)).json();

/** A name that no other run or message has, also where the page has no secure context. */
export const fresh = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");

/** Run the agent: `hear` is called with each event of the protocol. Resolves when the stream has ended. */
export async function run(input, hear, signal) {
  const response = await posted("/agui", { tools: [], context: [], state: null, protocolVersion: "1.0", ...input }, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const told = (rest + value).split("\n\n");
    rest = told.pop();
    for (const one of told) {
      const data = one.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data) hear(JSON.parse(data));
    }
  }
}
