// What a client of the protocol's own library sees of a server: each step that is asked for, as a line of JSON.
// Its verifier refuses events that are in no order, and the client keeps messages, state and interrupts.
import { pathToFileURL } from "node:url";
import path from "node:path";
import { createInterface } from "node:readline";

const [folder, url, key, thread] = process.argv.slice(2);
const { HttpAgent } = await import(pathToFileURL(path.join(folder, "dist", "index.mjs")));
const agent = new HttpAgent({ url: `${url}/agui`, threadId: thread, headers: { authorization: `Bearer ${key}` } });

async function done({ say, resume, more = {}, forget, stopAfter }) {
  if (forget) Object.assign(agent, { messages: [], state: {}, pendingInterrupts: [] });
  if (say) agent.addMessage({ id: `u-${agent.messages.length}-${more.runId || ""}`, role: "user", content: say });
  const events = [];
  const errors = [];
  const hear = {
    onEvent: ({ event }) => {
      events.push(event.type);
      if (stopAfter && event.type === stopAfter) agent.abortRun();
    },
    onRunErrorEvent: ({ event }) => void errors.push(event.message),
  };
  let failed = "";
  let result = null;
  try {
    ({ result } = await agent.runAgent({ ...more, ...(resume ? { resume } : {}) }, hear));
  } catch (error) {
    failed = String(error.message || error);
  }
  return { events, errors, failed, result, messages: agent.messages, state: agent.state, interrupts: agent.pendingInterrupts };
}

console.error = () => {};
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await done(JSON.parse(line)))}\n`);
}
