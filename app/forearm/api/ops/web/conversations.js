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

export function asMarkdown(one) {
  const names = { user: "You", assistant: "Model", tool: "Tool result" };
  const calls = (turn) => (turn.calls ?? []).map(({ name, text }) => `\n\n\`${name}(${text})\``).join("");
  return `# ${titleOf(one)}\n\n${one.turns.map((turn) => `## ${names[turn.role]}\n\n${turn.content}${calls(turn)}\n`).join("\n")}`;
}
