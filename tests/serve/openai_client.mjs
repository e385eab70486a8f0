// What the official SDK for JavaScript gets of a server: one JSON object on standard output.
// Arguments: the folder of the package, the base address, a key.
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [folder, baseURL, apiKey] = process.argv.slice(2);
const { default: OpenAI } = await import(pathToFileURL(join(folder, "index.mjs")));
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = "agent";
const schema = {
  type: "object", properties: { name: { type: "string" }, people: { type: "integer" } },
  required: ["name", "people"], additionalProperties: false,
};
const got = {};

got.models = (await client.models.list()).data.map((one) => one.id);

const whole = await client.responses.create({ model, input: "1+2" });
got.whole = { text: whole.output_text, items: whole.output.map((one) => one.type), status: whole.status };
const next = await client.responses.create({ model, input: "and?", previous_response_id: whole.id });
got.next = { text: next.output_text, same: next.fsm_agent.session === whole.fsm_agent.session };

const stream = client.responses.stream({ model, input: "1+2" });
got.streamed = { types: [], deltas: "" };
for await (const event of stream) {
  got.streamed.types.push(event.type);
  if (event.type === "response.output_text.delta") got.streamed.deltas += event.delta;
}
const final = await stream.finalResponse();
got.streamed.final = final.output_text;
const back = await client.responses.retrieve(final.id, { stream: true, starting_after: 5 });
got.back = [];
for await (const event of back) got.back.push(event.type);

const typed = await client.responses.parse({
  model, input: "a city", text: { format: { type: "json_schema", name: "city", schema, strict: true } },
});
got.typed = typed.output_parsed ?? JSON.parse(typed.output_text);

const waits = await client.responses.create({ model, input: "Pay 7" });
const request = waits.output.find((one) => one.type === "mcp_approval_request");
got.waits = { status: waits.status, tool: request.name };
const paid = await client.responses.create({
  model, previous_response_id: waits.id,
  input: [{ type: "mcp_approval_response", approval_request_id: request.id, approve: true }],
});
got.paid = { status: paid.status, text: paid.output_text, same: paid.id === waits.id };

const messages = [{ role: "user", content: "1+2" }];
const completion = await client.chat.completions.create({ model, messages });
got.completion = { text: completion.choices[0].message.content, total: completion.usage.total_tokens };
const chat = client.chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
got.chat = { text: await chat.finalContent(), total: (await chat.totalUsage()).total_tokens };
const parsed = await client.chat.completions.parse({
  model, messages: [{ role: "user", content: "a city" }],
  response_format: { type: "json_schema", json_schema: { name: "city", schema, strict: true } },
});
got.parsed = parsed.choices[0].message.parsed ?? JSON.parse(parsed.choices[0].message.content);

got.refused = [];
for (const wrong of [
  () => client.responses.create({ model: "gpt-9", input: "hi" }),
  () => client.responses.retrieve("resp_no"),
  () => client.responses.create({ model, input: "hi", tools: [{ type: "function", name: "f", parameters: {} }] }),
  () => new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 }).models.list(),
]) {
  try {
    await wrong();
  } catch (error) {
    got.refused.push([error.constructor.name, error.status, error.code]);
  }
}
console.log(JSON.stringify(got));
