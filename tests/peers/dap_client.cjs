// Microsoft's test client for debug adapters, driving a server as VS Code does.
// Arguments: the client's folder, python, the server's script, the table's file, a scene, and JSON with lines of the table.
// Every message that the server sends is printed, one a line, so that it can be checked by the schema.
const [, , folder, python, server, table, scene, given] = process.argv;
const { DebugClient } = require(folder);
const assert = require("assert");
const at = JSON.parse(given);

const client = new DebugClient(python, server, "fsm-agent", { env: process.env }, false);
client.defaultTimeout = 60_000; // a machine that does other things too is slow, not wrong
const dispatch = client.dispatch.bind(client);
client.dispatch = (raw) => {
  process.stdout.write(raw.replace(/\n/g, " ") + "\n");
  dispatch(raw);
};

const refused = (promise) => promise.then(() => assert.fail("it was not refused"), (error) => String(error.message));
const source = { path: table };
const names = async (threadId = 1) => (await client.stackTraceRequest({ threadId })).body.stackFrames.map((one) => one.name);
const started = (args, points) =>
  Promise.all([
    client.waitForEvent("initialized").then(async () => {
      if (points) await client.setBreakpointsRequest({ source, breakpoints: points });
      await client.setExceptionBreakpointsRequest({ filters: ["failed", "crashed", "approval", "unknown"] });
      await client.configurationDoneRequest();
    }),
    client.launch(args),
  ]);
const after = async (request, event = "stopped") => {
  const [body] = await Promise.all([client.waitForEvent(event), request]);
  return body.body;
};
const scope = async (name, frameId) =>
  (await client.scopesRequest({ frameId })).body.scopes.find((one) => one.name === name).variablesReference;

const scenes = {
  async breakpoints() {
    await client.hitBreakpoint({ task: "what is x?" }, { path: table, line: at.error, verified: true });
    assert.strictEqual((await names())[0], "6: CallLLM –error→ ClassifyError");
    await after(client.terminateRequest(), "terminated");
  },

  async conditions() {
    const points = [
      { line: at.error, condition: "retries >= 1" },
      { line: at.built, hitCondition: "3", logMessage: "third: {seq}" },
    ];
    const noted = [];
    client.on("output", (event) => noted.push(event.body.output));
    const [stopped] = await Promise.all([
      client.assertStoppedLocation("breakpoint", { path: table, line: at.error }),
      started({ task: "what is x?" }, points),
    ]);
    assert.ok(noted.includes("third: 8\n"), noted.join(""));
    const { result } = (await client.evaluateRequest({ expression: "retries", frameId: stopped.body.stackFrames[0].id })).body;
    assert.strictEqual(result, "1");
    await client.continueRequest({ threadId: 1 });
    await client.waitForEvent("terminated");
  },

  async back() {
    const points = [{ line: at.tools }, { line: at.error }];
    await Promise.all([client.waitForEvent("stopped"), started({ task: "what is x?" }, points)]);
    await after(client.continueRequest({ threadId: 1 }));
    const newest = (await names())[0];
    assert.strictEqual((await after(client.stepBackRequest({ threadId: 1 }))).reason, "step");
    assert.strictEqual((await names())[0], "5: BuildMessages –built→ CallLLM · send");
    assert.strictEqual((await after(client.reverseContinueRequest({ threadId: 1 }))).reason, "breakpoint");
    assert.strictEqual((await names())[0], "3: CallLLM –tools→ ExecuteTools");
    assert.strictEqual((await after(client.nextRequest({ threadId: 1 }))).reason, "step");
    assert.strictEqual((await after(client.continueRequest({ threadId: 1 }))).reason, "breakpoint");
    assert.strictEqual((await names())[0], newest);
    await after(client.terminateRequest(), "terminated");
  },

  async change() {
    await Promise.all([client.waitForEvent("stopped"), started({ task: "what is x?" }, [{ line: at.error }])]);
    const frames = (await client.stackTraceRequest({ threadId: 1 })).body.stackFrames;
    const counters = await scope("Counters", frames[0].id);
    const made = await after(client.setVariableRequest({ variablesReference: counters, name: "retries", value: "2" }));
    assert.strictEqual(made.threadId, 2);
    const top = (await client.stackTraceRequest({ threadId: 2 })).body.stackFrames[0];
    assert.strictEqual((await client.evaluateRequest({ expression: "retries", frameId: top.id })).body.result, "2");
    assert.strictEqual((await client.evaluateRequest({ expression: "retries", frameId: frames[0].id })).body.result, "0");
    const read = await refused(client.setVariableRequest({ variablesReference: counters, name: "retries", value: "many" }));
    assert.ok(read.includes("a whole number"), read);
    await after(client.terminateRequest(), "terminated");
  },

  async restart() {
    await Promise.all([client.waitForEvent("stopped"), started({ task: "what is x?" }, [{ line: at.error }])]);
    const frames = (await client.stackTraceRequest({ threadId: 1 })).body.stackFrames;
    const before = frames.find((one) => one.name.startsWith("2:"));
    const again = client.waitForEvent("stopped");
    await client.restartFrameRequest({ frameId: before.id });
    assert.strictEqual((await again).body.threadId, 1);
    for (let waited = 0; (await client.threadsRequest()).body.threads.length < 2; waited += 1) assert.ok(waited < 100);
    assert.strictEqual((await names(2))[0], before.name);
    await after(client.terminateRequest(), "terminated");
  },

  async evaluate() {
    await Promise.all([client.waitForEvent("stopped"), started({ task: "what is x?" }, [{ line: at.error }])]);
    const frameId = (await client.stackTraceRequest({ threadId: 1 })).body.stackFrames[0].id;
    const said = async (expression, context) => (await client.evaluateRequest({ expression, frameId, context })).body.result;
    assert.strictEqual(await said("iterations == 2", "watch"), "true");
    assert.strictEqual(await said("messages[-1].content", "hover"), '"x: 42"');
    assert.ok((await said(":help", "repl")).includes(":approve"));
    assert.ok((await refused(said("nothing", "watch"))).includes("no such name"));
    const { targets } = (await client.completionsRequest({ frameId, text: "retr", column: 5 })).body;
    assert.deepStrictEqual(targets.map((one) => one.label), ["retries"]);
    await after(client.terminateRequest(), "terminated");
  },

  async cli() {
    const [stopped] = await Promise.all([
      client.assertStoppedLocation("entry", {}),
      started({ task: "List the files here", model: "offline:demo", stopOnEntry: true }),
    ]);
    assert.strictEqual(stopped.body.stackFrames[0].name, "Prepare");
    await after(client.continueRequest({ threadId: 1 }), "terminated");
  },
};

(async () => {
  await client.start();
  await scenes[scene]();
  await client.disconnectRequest();
  await client.stop();
})().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
