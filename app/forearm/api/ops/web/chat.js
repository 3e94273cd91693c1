// One answer of the server as it streams: its text, reasoning and tool calls, and how fast they come.

import { kindOf } from "./models.js";

const BASE_TOKENS = 256; // of a base model, which seldom ends by itself; the API's own default is 16
const WITHOUT_WORDS = {
  413: "The question is longer than a proxy before the server takes.", 429: "The server has too much to do.",
  502: "A proxy answers in place of the server, which is starting or gone.", 503: "The server takes no requests: it is starting or stopping.",
  504: "A proxy before the server has waited too long for the answer.",
};

// Raised for an answer that is an error; `status` is HTTP's, 0 where there was no answer at all.
export class Refused extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

export function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

export async function models(root, key) {
  const reply = await asked(fetch(new URL("v1/models", root), { headers: headers(key), cache: "no-store" }));
  return (await reply.json()).data;
}

// What is asked of a model, and where. settings: other fields of the request; begun: the last turn is to be continued.
export function requestOf(card, settings, system, turns, begun = false) {
  const messages = messagesOf(turns), kind = kindOf(card), model = card?.id ?? "";
  if (kind === "embedding") return { path: "v1/embeddings", body: { model, input: messages.at(-1).content.split("\n").filter((line) => line.trim()) } };
  if (kind === "base") {
    const { max_completion_tokens: most = BASE_TOKENS, tools, reasoning_effort, ...rest } = settings; // what only chats take
    const texts = messages.map(({ content }) => content ?? "");
    return { path: "v1/completions", body: { model, max_tokens: most, ...rest, prompt: [system && `${system}\n\n`, ...texts].join("") } };
  }
  const how = begun ? { continue_final_message: true, add_generation_prompt: false } : {};
  return { path: "v1/chat/completions", body: { model, ...settings, ...how, messages: [...(system ? [{ role: "system", content: system }] : []), ...messages] } };
}

// Fill `answer` (see `blank`) with what comes, and call `changed` each time.
export async function stream(root, key, { path, body }, signal, answer, changed) {
  Object.assign(answer, { sent: performance.now(), first: 0, last: 0, finish: null, error: null, stopped: false });
  const post = (content) => asked(fetch(new URL(path, root), { method: "POST", headers: headers(key), body: JSON.stringify(content), signal }));
  if (path === "v1/embeddings") {
    const { data, usage } = await (await post(body)).json();
    Object.assign(answer, { content: similarities(body.input, data.map(({ embedding }) => embedding)), usage, finish: "stop" });
    return;
  }
  const reply = await post({ ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } });
  try {
    for await (const data of events(reply.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(chunk.error.message, chunk.error.code ?? 500);
      take(answer, chunk);
      changed();
    }
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
  }
  throw new Refused("The connection to the server broke before the answer ended.", 0);
}

export function blank() {
  return { role: "assistant", content: "", reasoning: "", calls: [], finish: null, usage: null, sent: 0, first: 0, last: 0, error: null };
}

// As the server wants it back in the next turn.
function asMessage(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.id, content: turn.content };
  if (turn.role !== "assistant") return { role: turn.role, content: turn.content };
  const message = { role: "assistant", content: turn.content };
  if (turn.calls.length) {
    message.content ||= null;
    message.tool_calls = turn.calls.map(({ id, name, text }) => ({ id, type: "function", function: { name, arguments: text } }));
  }
  return message;
}

// The messages of a conversation. A question whose answer failed, or was stopped, without a word is left out with it, unless it is the last:
// the next one would send it again.
export function messagesOf(turns) {
  const lost = (turn) => turn?.role === "assistant" && (turn.error || turn.stopped) && !turn.content && !turn.calls.length;
  return turns.filter((turn, i) => !lost(turn) && !(turn.role === "user" && lost(turns[i + 1]))).map(asMessage);
}

// Milliseconds to the first token; tokens a second after it; what there is to count.
export function pace(answer) {
  const tokens = answer.usage?.completion_tokens ?? 0;
  const first = answer.first ? answer.first - answer.sent : null;
  const span = (answer.last - answer.first) / 1000;
  // What comes within a frame or two tells of the network, not of the model.
  return { tokens, first, rate: tokens > 1 && span > 0.03 ? (tokens - 1) / span : null };
}

async function asked(request) {
  let reply;
  try {
    reply = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(inWords(error), 0);
  }
  if (reply.ok) return reply;
  let message = WITHOUT_WORDS[reply.status] ?? `The server answers ${reply.status}.`;
  try {
    const error = (await reply.json()).error;
    message = error.message ?? message;
  } catch { /* no JSON: the status has to do */ }
  const wait = reply.headers.get("Retry-After");
  throw new Refused(/^\d+$/.test(wait ?? "") ? `${message} Try again after ${wait} s.` : message, reply.status);
}

// Why a request failed: a browser's own words for it ("Failed to fetch") say nothing.
export function inWords(error) {
  if (error.name === "TimeoutError") return "The server does not answer in time.";
  if (!(error instanceof TypeError)) return error.message;
  return navigator.onLine ? "The server cannot be reached: it has stopped, or the network is down." : "This browser is offline: the server cannot be reached.";
}

// How near each text is to the first one, as a table: the cosine of their vectors.
function similarities([first, ...texts], [vector, ...vectors]) {
  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
  const near = vectors.map((one) => dot(one, vector) / Math.sqrt(dot(one, one) * dot(vector, vector)));
  const plainly = (text) => text.replace(/[\\`*_{}[\]<>()#+\-.!|$~]/g, "\\$&");
  const rows = texts.map((text, i) => [near[i], text]).sort((a, b) => b[0] - a[0]).map(([value, text]) => `| ${value.toFixed(3)} | ${plainly(text)} |`);
  const head = `| Cosine | Compared with ${plainly(first)} |`;
  return rows.length ? [head, "|--:|---|", ...rows].join("\n") : `${vector.length} values. Write more lines to compare texts.`;
}

function take(answer, chunk) {
  if (chunk.usage) answer.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? { content: choice.text };
  const { content, tool_calls: calls = [] } = delta, reasoning = delta.reasoning ?? delta.reasoning_content;
  if (content || reasoning || calls?.length) {
    answer.last = performance.now();
    answer.first ||= answer.last;
  }
  answer.content += content ?? "";
  answer.reasoning += reasoning ?? "";
  for (const call of calls ?? []) {
    const own = (answer.calls[call.index] ??= { id: call.id, name: "", text: "" });
    own.id ??= call.id;
    own.name += call.function?.name ?? "";
    own.text += call.function?.arguments ?? "";
  }
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

// The data of server-sent events, one by one.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).replace(/^ /, ""));
      if (data.length) yield data.join("\n");
    }
  }
}
