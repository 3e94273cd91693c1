// A request as a line of curl and as a Python program, to run as they stand.

// Arguments of the openai package's own; others go into extra_body.
const OWN = new Set(("frequency_penalty logit_bias logprobs max_completion_tokens max_tokens messages model n parallel_tool_calls " +
  "presence_penalty prompt reasoning_effort response_format seed stop temperature tool_choice tools top_logprobs top_p").split(" "));
const CALLS = { "v1/chat/completions": "chat.completions", "v1/completions": "completions" };

// `keyed`: the server wants a key, which is not written down but read from the environment.
export function asCurl(root, path, body, keyed) {
  const lines = [`curl ${quoted(new URL(path, root).href)}`, `-H 'Content-Type: application/json'`];
  if (keyed) lines.push(`-H "Authorization: Bearer $OPENAI_API_KEY"`);
  return `${[...lines, "--data-binary @- <<'JSON'"].join(" \\\n  ")}\n${JSON.stringify(body, null, 2)}\nJSON`;
}

export function asPython(root, path, body, keyed) {
  const names = Object.keys(body), beyond = names.filter((name) => !OWN.has(name));
  const args = names.filter((name) => OWN.has(name)).map((name) => `    ${name}=${literal(body[name], "    ")},`);
  if (beyond.length) args.push(`    extra_body=${literal(Object.fromEntries(beyond.map((name) => [name, body[name]])), "    ")},`);
  const key = keyed ? "" : `, api_key="none"`; // else OPENAI_API_KEY
  const text = path === "v1/completions" ? "text" : "message.content";
  return [
    "from openai import OpenAI", "",
    `client = OpenAI(base_url=${literal(new URL("v1", root).href)}${key})`,
    `answer = client.${CALLS[path]}.create(`, ...args, ")", `print(answer.choices[0].${text})`,
  ].join("\n");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// A value of JSON in Python's form.
function literal(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value); // numbers and texts are written alike
  const deeper = `${indent}    `, list = Array.isArray(value);
  const parts = list ? value.map((one) => literal(one, deeper)) : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, deeper)}`);
  const [begin, end] = list ? "[]" : "{}", short = `${begin}${parts.join(", ")}${end}`;
  return short.length < 90 && !short.includes("\n") ? short : `${begin}\n${parts.map((one) => `${deeper}${one},\n`).join("")}${indent}${end}`;
}
