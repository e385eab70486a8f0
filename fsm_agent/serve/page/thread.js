// One conversation: its messages and its state, from the events of runs.
import { fresh, post, Refused, run } from "./client.js";

const RETRY = [500, 1000, 2000, 4000]; // milliseconds
const MOST = 400; // moves that are shown

/** What an event of the protocol makes of a thread. */
const REDUCED = {
  RUN_STARTED: (t) => Object.assign(t, { error: null, asks: [] }),
  MESSAGES_SNAPSHOT: (t, e) => (t.messages = e.messages),
  STATE_SNAPSHOT: (t, e) => {
    if (!e.snapshot.moves) t.path = []; // else the turn continues
    t.state = e.snapshot;
  },
  STATE_DELTA: (t, e) => {
    t.state = patched(t.state, e.delta);
    if (e.delta.some((one) => one.path === "/move")) t.path = [...t.path, t.state.move].slice(-MOST);
  },
  TEXT_MESSAGE_START: (t, e) => t.messages.push({ id: e.messageId, role: e.role || "assistant", content: "", open: true }),
  TEXT_MESSAGE_CONTENT: (t, e) => (named(t, e.messageId).content += e.delta),
  TEXT_MESSAGE_END: (t, e) => (named(t, e.messageId).open = false),
  TOOL_CALL_START: (t, e) => {
    let holder = named(t, e.parentMessageId);
    if (!holder) t.messages.push((holder = { id: e.parentMessageId, role: "assistant" }));
    holder.toolCalls = [...(holder.toolCalls || []), { id: e.toolCallId, function: { name: e.toolCallName, arguments: "" } }];
  },
  TOOL_CALL_ARGS: (t, e) => (callOf(t, e.toolCallId).function.arguments += e.delta),
  TOOL_CALL_RESULT: (t, e) => t.messages.push({ id: e.messageId, role: "tool", toolCallId: e.toolCallId, content: e.content, metadata: e.metadata }),
  REASONING_MESSAGE_START: (t, e) => t.messages.push({ id: e.messageId, role: "reasoning", content: "" }),
  REASONING_MESSAGE_CONTENT: (t, e) => (named(t, e.messageId).content += e.delta),
  SUBAGENT_STARTED: (t, e) => (t.children = [...t.children, { id: e.subagentRunId, goal: e.description, doing: "", over: "" }]),
  SUBAGENT_FINISHED: (t, e) => child(t, e.subagentRunId, { over: e.outcome?.type === "suspended" ? "waits" : "done", doing: "" }),
  SUBAGENT_ERROR: (t, e) => child(t, e.subagentRunId, { over: e.message, doing: "" }),
  STEP_STARTED: (t, e) => e.subagentRunId && child(t, e.subagentRunId, { doing: e.stepName }),
  CUSTOM: (t, e) => e.name === "status" && (t.note = e.value),
  RUN_FINISHED: (t, e) => {
    t.asks = e.outcome?.type === "interrupt" ? e.outcome.interrupts : [];
    if (e.outcome?.type === "cancelled") t.note = "Stopped.";
  },
  RUN_ERROR: (t, e) => (t.error = e.message),
};

const named = (t, id) => t.messages.find((one) => one.id === id);
const callOf = (t, id) => t.messages.flatMap((one) => one.toolCalls || []).find((one) => one.id === id);
const child = (t, id, more) => (t.children = t.children.map((one) => (one.id === id ? { ...one, ...more } : one)));

/** A JSON patch; the server sends `add` and `replace` alone. */
function patched(state, delta) {
  const made = structuredClone(state);
  for (const { path, value } of delta) {
    const way = path.slice(1).split("/").map((one) => one.replaceAll("~1", "/").replaceAll("~0", "~"));
    const last = way.pop();
    way.reduce((place, name) => place[name], made)[last] = value;
  }
  return made;
}

export class Thread {
  /** `changed` is called after each change, `over` when a run has ended. */
  constructor(id, changed, over = () => {}) {
    Object.assign(this, { id, changed, over, messages: [], state: null, path: [], asks: [], children: [], error: null, note: "", running: false, lost: false });
    this.end = new AbortController();
  }

  close() {
    this.end.abort();
  }

  /** Show the thread as it is, and what runs in it. */
  join = () => this.go({});

  send(text) {
    this.messages.push({ id: fresh(), role: "user", content: text });
    return this.go({ messages: this.spoken() });
  }

  answer(resume) {
    return this.go({ messages: this.spoken(), resume });
  }

  async stop() {
    if (this.state?.turn) await post(`/api/turns/${encodeURIComponent(this.state.turn)}/interrupt`, {});
  }

  spoken = () => this.messages.filter((one) => one.role !== "reasoning").map(({ open, ...one }) => one);

  async go(input) {
    Object.assign(this, { running: true, error: null, note: "", children: [] });
    const runId = fresh();
    for (let again = 0; !this.end.signal.aborted; again++) {
      let over = false;
      try {
        this.changed();
        // the same run again joins it, if it had begun: nothing is done twice
        await run({ threadId: this.id, runId, messages: [], ...input }, (event) => {
          this.lost = false;
          again = 0;
          over = event.type === "RUN_FINISHED" || (event.type === "RUN_ERROR" && event.code !== "leaving");
          REDUCED[event.type]?.(this, event);
          this.changed();
        }, this.end.signal);
      } catch (error) {
        if (this.end.signal.aborted) return;
        if (error instanceof Refused && error.status !== 503) {
          over = true;
          if (!(error.status === 400 && !input.messages)) this.error = error.message; // a new thread is not there yet
          if (error.status === 401) this.refused?.();
        }
      }
      if (over) break;
      this.lost = true;
      this.changed();
      await new Promise((resolve) => setTimeout(resolve, RETRY[Math.min(again, RETRY.length - 1)]));
    }
    this.running = false;
    this.over();
    this.changed();
  }
}
