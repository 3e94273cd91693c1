// Conversations, kept in this browser: [{id, title, changed, turns}], the last used first.

export const PLACE = "forearm.conversations";
const KEPT = ["role", "content", "reasoning", "calls", "finish", "usage", "stopped", "error", "id", "name", "label"];
const ROLES = ["user", "assistant", "tool"];

export function load() {
  try { return read(JSON.parse(localStorage.getItem(PLACE) ?? "[]")); } catch { return []; }
}

// Return whether there was room.
export function save(all) {
  try { localStorage.setItem(PLACE, JSON.stringify(all)); return true; } catch { return false; }
}

export function begin(turns = [], title = "") {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title, changed: Date.now(), turns };
}

// What is kept of a turn; `other`: the answer beside it.
export function plain(turn) {
  const kept = Object.fromEntries(KEPT.filter((name) => turn[name] !== undefined).map((name) => [name, turn[name]]));
  return turn.other ? { ...kept, other: plain(turn.other) } : kept;
}

export function titleOf({ title, turns }) {
  return title || turns.find((turn) => turn.role === "user")?.content.slice(0, 60) || "New chat";
}

export function matching(all, words) {
  const wanted = words.trim().toLowerCase();
  const text = (one) => [titleOf(one), ...one.turns.map((turn) => turn.content)].join("\n").toLowerCase();
  return wanted ? all.filter((one) => text(one).includes(wanted)) : all;
}

// Conversations of a list. Throws where it is none.
export function read(all) {
  const isTurn = (turn) => ROLES.includes(turn?.role) && typeof turn.content === "string" && (turn.other === undefined || isTurn(turn.other));
  if (!Array.isArray(all) || !all.every((one) => Array.isArray(one?.turns) && one.turns.every(isTurn))) {
    throw new Error("it has no conversations of this page");
  }
  const turn = ({ other, ...one }) => ({ ...(other ? { other: turn(other) } : {}), ...(one.role === "assistant" ? { reasoning: "", calls: [] } : {}), ...plain(one) });
  return all.map((one) => ({ ...begin(one.turns.map(turn), String(one.title ?? "")), id: String(one.id), changed: Number(one.changed) || 0 }));
}

const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };
const HEADING = /^## (You|Model|Tool result)$/m;

// A line of a turn that looks like the heading of another one has a \ before it.
export function asMarkdown(one) {
  const calls = (turn) => (turn.calls ?? []).map(({ name, text }) => `\n\n\`${name}(${text})\``).join("");
  const text = (turn) => `${turn.content}${calls(turn)}`.replace(/^(\\*## (?:You|Model|Tool result))$/gm, "\\$1");
  return `# ${titleOf(one).replace(/\s+/g, " ")}\n\n${one.turns.map((turn) => `## ${NAMES[turn.role]}\n\n${text(turn)}\n`).join("\n")}`;
}

// The conversation, alone in a list, of a text as asMarkdown writes it. Throws where it is none, or has results of tools: their calls are not told apart.
export function fromMarkdown(text) {
  const [head, ...parts] = text.replaceAll("\r\n", "\n").split(HEADING);
  const title = head.match(/^# (.+)\n/)?.[1] ?? "";
  if (!parts.length) throw new Error("it has no lines “## You” and “## Model”");
  if (parts.includes("Tool result")) throw new Error("results of tools are imported from JSON alone");
  const turns = [];
  for (let i = 0; i < parts.length; i += 2) {
    const content = parts[i + 1].replace(/^\n+|\n+$/g, "").replace(/^\\(\\*## (?:You|Model|Tool result))$/gm, "$1");
    turns.push({ role: parts[i] === "You" ? "user" : "assistant", content, ...(parts[i] === "You" ? {} : { finish: "stop" }) });
  }
  return [begin(turns, title)];
}
