// What openai-node does with a running server: node openai_node.mjs URL KEY FOLDER (of its node_modules)
// Prints one line of JSON: {check: "" or how it failed}.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [url, key, folder] = process.argv.slice(2);
const { default: OpenAI } = createRequire(`${folder}/package.json`)("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const model = "demo_model";
const messages = [{ role: "user", content: "What is ice?" }];
const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 8 } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

const checks = {
  async whole() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 6, temperature: 0 });
    assert.equal(answer.usage.completion_tokens, 6);
    assert.ok(answer._request_id);
  },
  async stream() {
    const asked = { model, messages, max_tokens: 6, temperature: 0 };
    const whole = await client.chat.completions.create(asked);
    let text = "";
    for await (const piece of await client.chat.completions.create({ ...asked, stream: true }))
      text += piece.choices[0].delta.content ?? "";
    assert.equal(text, whole.choices[0].message.content);
  },
  async tools() {
    const named = { type: "function", function: { name: "weather" } };
    const asked = { model, messages, tools: [weather], tool_choice: named, temperature: 0, max_tokens: 1000 };
    const { message } = (await client.chat.completions.create(asked)).choices[0];
    assert.equal(typeof JSON.parse(message.tool_calls[0].function.arguments).city, "string");
    const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.tool_calls[0].function.arguments, message.tool_calls[0].function.arguments);
  },
  async abort() {
    const endless = { model, messages, ignore_eos: true, max_tokens: 1900, stream: true };
    const stream = await client.chat.completions.create(endless);
    for await (const _ of stream) stream.controller.abort();
    for (let i = 0; ; i++) {
      const text = await (await fetch(`${url}/metrics`)).text();
      const running = [...text.matchAll(/^vllm:num_requests_running\{.*\} (\S+)$/gm)];
      assert.ok(running.length);
      if (running.every((found) => Number(found[1]) === 0)) break;
      assert.ok(i < 100, "it still runs");
      await new Promise((done) => setTimeout(done, 50));
    }
  },
  async errors() {
    await assert.rejects(client.chat.completions.create({ model, messages, max_tokens: 100000 }), OpenAI.BadRequestError);
    await assert.rejects(client.chat.completions.create({ model: "nothing", messages }), OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  },
  async models() {
    assert.equal((await client.models.retrieve(model)).id, model);
  },
};

const ended = {};
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    ended[name] = "";
  } catch (error) {
    ended[name] = String(error.stack).slice(0, 2000);
  }
}
console.log(JSON.stringify(ended));
