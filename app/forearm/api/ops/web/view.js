// Turns of the conversation as elements. `acts` has what their buttons do.

import { pace } from "./chat.js";
import { button, copyButton, grow, make } from "./dom.js";
import { Prose } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };
const ENDS = { length: "stopped at the length limit", stop: "", tool_calls: "", abort: "broken off", repetition: "stopped: it repeated itself" };

// An element for the turn, and `update()` to show what has changed in it.
export function turnView(turn, acts) {
  const node = make("article", { class: `turn ${turn.role}`, "aria-label": NAMES[turn.role] });
  if (turn.role !== "assistant") return plainView(node, turn, acts);
  return turn.other ? pairView(node, turn, acts) : answerView(node, turn, acts);
}

// Two answers to one question, side by side; the conversation goes on with the first.
function pairView(node, turn, acts) {
  const sides = [turn, turn.other].map((one) => answerView(make("section", { class: "side", "aria-label": one.label }), one, acts));
  node.append(make("div", { class: "pair" }, ...sides.map((side) => side.node)));
  return { node, update() { for (const side of sides) side.update(); } };
}

function who(turn) {
  if (turn.label) return make("h2", { class: "who" }, turn.label);
  return make("h2", { class: "who" }, turn.name ? `${NAMES[turn.role]}: ${turn.name}` : NAMES[turn.role]);
}

function plainView(node, turn, acts) {
  const update = () => {
    const row = make("div", { class: "acts" });
    if (turn.role === "user") row.append(button("Edit", () => edit(node, turn, acts, update)));
    row.append(copyButton(() => turn.content));
    node.replaceChildren(who(turn), make("div", { class: "body" }, turn.content), row);
  };
  update();
  return { node, update };
}

function edit(node, turn, acts, restore) {
  const area = make("textarea", { value: turn.content, rows: Math.min(turn.content.split("\n").length + 1, 12), "aria-label": "Edit your message" });
  const close = () => { restore(); node.querySelector("button")?.focus(); };
  const save = () => { const text = area.value.trim(); if (text) acts.edited(turn, text); };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); close(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); save(); }
  });
  const row = make("div", {}, button("Send again", save, { class: "primary" }), button("Cancel", close));
  node.replaceChildren(who(turn), make("div", { class: "edit" }, area, row));
  area.focus();
}

function answerView(node, turn, acts) {
  const thinking = make("details", { class: "reasoning", hidden: true }, make("summary", {}), make("div"));
  const prose = make("div", { class: "prose" });
  const calls = make("div");
  const failure = make("div", { class: "failed", role: "alert", hidden: true });
  const row = make("div", { class: "acts" });
  node.append(who(turn), thinking, prose, calls, failure, row);
  const shown = new Prose(prose);
  const update = () => {
    const writing = acts.isOpen(turn);
    thinking.hidden = !turn.reasoning;
    thinking.firstChild.textContent = writing && !turn.content ? "Thinking…" : `Reasoning${reasoned(turn)}`;
    grow(thinking.lastChild, turn.reasoning.trimStart());
    shown.show(turn.content, !writing);
    prose.classList.toggle("writing", writing);
    showCalls(calls, turn, acts, writing);
    failure.hidden = !turn.error;
    if (turn.error) failure.replaceChildren(make("strong", {}, turn.content ? "The answer is cut off. " : "That did not work. "), turn.error);
    row.replaceChildren(...(writing ? [] : buttons(turn, acts)));
  };
  update();
  return { node, update };
}

function reasoned(turn) {
  const tokens = turn.usage?.completion_tokens_details?.reasoning_tokens;
  return tokens ? `: ${tokens} tokens` : "";
}

function buttons(turn, acts) {
  const told = stats(turn), all = told ? [make("span", { class: "stats" }, told)] : [];
  if (turn.content) all.push(copyButton(() => turn.content));
  if (acts.isBeside(turn)) {
    if (turn.content && acts.isLast(turn)) all.push(button("Go on with this one", () => acts.prefer(turn)));
    return all;
  }
  if (turn.content && acts.isLast(turn) && !turn.other && !turn.calls.length && (turn.error || turn.stopped || turn.finish === "length")) {
    all.push(button("Continue", () => acts.goOn(turn)));
  }
  if (turn.content) all.push(button("Branch", () => acts.branch(turn)));
  if (acts.isLast(turn)) all.push(button(turn.error ? "Try again" : "Regenerate", () => acts.again(turn)));
  return all;
}

export function stats(turn) {
  const { tokens, first, rate } = pace(turn);
  const parts = [];
  if (turn.usage) parts.push(`${tokens} token${tokens === 1 ? "" : "s"}`);
  if (first !== null) parts.push(`first after ${first < 1000 ? `${Math.round(first)} ms` : `${(first / 1000).toFixed(1)} s`}`);
  if (rate !== null) parts.push(`${rate < 100 ? rate.toFixed(1) : Math.round(rate)} tokens/s`);
  const end = turn.stopped ? "stopped" : ENDS[turn.finish] ?? turn.finish;
  if (end) parts.push(end);
  return parts.join(" · ");
}

function showCalls(place, turn, acts, writing) {
  turn.calls.forEach((call, i) => {
    if (!place.children[i]) {
      const summary = make("summary", {}, "Calls ", make("code", { class: "name" }));
      place.append(make("details", { class: "call", open: true }, summary, make("pre", { tabIndex: 0, "aria-label": "Arguments" }, make("code"))));
    }
    setText(place.children[i].querySelector(".name"), call.name);
    setText(place.children[i].querySelector("pre code"), pretty(call.text));
  });
  if (turn.calls.length && !writing && acts.isLast(turn) && !acts.isBeside(turn) && !place.querySelector(".result")) {
    turn.calls.forEach((call, i) => place.children[i].append(resultForm(call, i, turn, place, acts)));
  } else if (!acts.isLast(turn)) {
    for (const form of place.querySelectorAll(".result")) form.remove();
  }
}

function resultForm(call, i, turn, place, acts) {
  const area = make("textarea", { rows: 2, spellcheck: false });
  const send = () => acts.results(turn, [...place.querySelectorAll(".result textarea")].map((one) => one.value));
  const last = i === turn.calls.length - 1;
  return make("div", { class: "result" }, make("label", {}, `What ${call.name} returns`, area),
    ...(last ? [make("div", {}, button(turn.calls.length > 1 ? "Send results" : "Send result", send))] : []));
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
