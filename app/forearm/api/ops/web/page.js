// The playground: wires the page's parts together. It loads nothing from anywhere but this server.

import { blank, models, Refused, requestOf, stream } from "./chat.js";
import { Chats } from "./chats.js";
import { asCurl, asPython } from "./code.js";
import { begin, load, plain, PLACE, save } from "./conversations.js";
import { button, by, make } from "./dom.js";
import { Live } from "./live.js";
import { codeBlock } from "./markdown.js";
import { cardView, examplesOf, inOneLine, kindOf, welcomeOf } from "./models.js";
import { bodyOf, checked, fill, keepPresets, presets, restore, showDefaults, store, stored, values } from "./settings.js";
import { stats, turnView } from "./view.js";

const ROOT = new URL("../", import.meta.url);
const THEMES = ["system", "light", "dark"];
const PANELS = ["chats", "settings", "figures"];

const turns = []; // of the conversation: {role, content, …}
const all = load(); // conversations
let conversation = begin(); // the one that is shown
const views = new Map(); // turn to its view
let open = null; // the answers being written: {writing, abort}
let cards = []; // of the models

const key = () => by("key").value.trim();
const card = () => cards.find(({ id }) => id === by("model").value);

function setTheme(theme) {
  theme === "system" ? delete document.documentElement.dataset.theme : (document.documentElement.dataset.theme = theme);
  by("theme").setAttribute("aria-label", `Theme: ${theme === "system" ? "as the system has it" : theme}`);
  store("localStorage", "forearm.theme", theme);
}

// --- the conversation

const acts = {
  isOpen: (turn) => Boolean(open?.writing.has(turn)),
  isLast: (turn) => turns.at(-1) === turn || turns.at(-1)?.other === turn,
  isBeside: (turn) => turns.some(({ other }) => other === turn),
  goOn(turn) { answer(turn); },
  branch(turn) { keep(); display(begin(turns.slice(0, turns.indexOf(turn) + 1).map((one) => structuredClone(plain(one))))); keep(); },
  again(turn) { cut(turns.indexOf(turn)); answer(); },
  edited(turn, text) { cut(turns.indexOf(turn)); say(text); },
  prefer(beside) { // change places with the answer beside it
    const { other, ...left } = turns.at(-1);
    cut(turns.length - 1);
    add({ ...beside, other: left });
    keep();
  },
  results(turn, texts) {
    turn.calls.forEach((call, i) => add({ role: "tool", id: call.id, name: call.name, content: texts[i] }));
    views.get(turn).update();
    answer();
  },
};

function add(turn) {
  by("welcome").hidden = true;
  const before = turns.at(-1);
  turns.push(turn);
  const view = turnView(turn, acts);
  views.set(turn, view);
  by("conversation").append(view.node);
  if (before) views.get(before).update(); // it is the last one no more
  toEnd(true);
  return view;
}

// Leave out the turns from this one on.
function cut(from) {
  open?.abort.abort();
  for (const turn of turns.splice(from)) { views.get(turn).node.remove(); views.delete(turn); }
  by("welcome").hidden = turns.length > 0;
}

function say(text) {
  add({ role: "user", content: text });
  answer();
}

function atEnd() {
  const place = by("conversation");
  return place.scrollHeight - place.scrollTop - place.clientHeight < 60;
}

function toEnd(always) {
  if (always || atEnd()) by("conversation").scrollTop = by("conversation").scrollHeight;
}

// Answer the conversation, or go on with its last answer; with something to compare, twice.
async function answer(begun = null) {
  const turn = begun ?? blank(), abort = new AbortController(), asked = turns.slice(), beside = begun ? null : compared();
  if (beside) Object.assign(turn, { label: `${by("model").value}, present settings`, other: { ...blank(), label: beside.label } });
  const mine = { writing: new Set([turn, turn.other].filter(Boolean)), abort };
  open = mine;
  const view = begun ? views.get(turn) : add(turn);
  keep();
  working(true);
  let drawn = false;
  const changed = () => { // once a frame, however fast tokens come
    if (drawn) return;
    drawn = true;
    requestAnimationFrame(() => {
      drawn = false;
      if (open !== mine) return; // its end has drawn it; again, and a focused button would be another one
      redraw(view);
      by("status").textContent = stats(turn);
    });
  };
  const write = async (one, request) => {
    try {
      await stream(ROOT, key(), request(), abort.signal, one, changed);
    } catch (error) {
      if (error.name === "AbortError") one.stopped = true;
      else failed(one, error);
    }
    mine.writing.delete(one);
    redraw(view);
  };
  await Promise.all([
    write(turn, () => requestOf(card(), checked(() => show("settings", true)), by("system").value.trim(), asked, Boolean(begun))),
    beside && write(turn.other, () => requestOf(beside.card, bodyOf(beside.values), beside.values.system?.trim(), asked)),
  ]);
  if (open !== mine) return; // another one has begun
  open = null;
  working(false);
  keep();
  redraw(view);
  if (!turn.error) by("said").textContent = `Answer complete: ${turn.content} ${stats(turn)}`;
}

function redraw(view) {
  const follow = atEnd();
  view.update();
  if (follow) toEnd(true);
}

// Keep the conversation in this browser.
function keep() {
  if (!turns.length) return;
  Object.assign(conversation, { turns: turns.map(plain), changed: Date.now() });
  const at = all.indexOf(conversation);
  if (at >= 0) all.splice(at, 1);
  all.unshift(conversation);
  written();
}

function failed(turn, error) {
  turn.error = error.message;
  if (error instanceof Refused && error.status === 401) {
    turn.error = "The server wants an API key. Write it into the settings and try again.";
    show("settings", true);
    by("key").focus();
  }
}

function working(on) {
  by("send").hidden = on;
  by("halt").hidden = !on;
  by("status").textContent = on ? "Waiting for the first token…" : "";
  by("said").textContent = on ? "Waiting for the answer" : "";
}

// --- panels and the composer

const chats = new Chats({
  all: () => all,
  current: () => conversation,
  open(one) { display(one); show("chats", matchMedia("(min-width: 62rem)").matches); },
  changed: written,
  removed(one) {
    all.splice(all.indexOf(one), 1);
    if (one === conversation) display(begin());
    written();
  },
  added(found) { all.unshift(...found.filter((one) => !all.some(({ id }) => id === one.id))); written(); showPresets(); },
});

// Show a conversation instead of the present one.
function display(one) {
  if (open && all.includes(conversation)) { for (const turn of open.writing) turn.stopped = true; keep(); }
  cut(0);
  open = null;
  working(false);
  conversation = one;
  const whole = ({ other, ...turn }) => {
    const ended = turn.role !== "assistant" || turn.finish || turn.error; // or the page was closed meanwhile
    return { ...structuredClone(turn), ...(ended ? {} : { stopped: true }), ...(other ? { other: whole(other) } : {}) };
  };
  for (const turn of one.turns) add(whole(turn));
  chats.show();
}

function written() {
  chats.say(save(all) ? "" : "This browser has no room for more: export and delete some.");
  chats.show();
}

const live = new Live(ROOT, by("figures"));

function show(panel, on) {
  const narrow = matchMedia("(max-width: 61.99rem)").matches;
  if (on && narrow) for (const other of PANELS) if (other !== panel) show(other, false);
  if (on && panel !== "figures") for (const other of ["chats", "settings"]) if (other !== panel) show(other, false); // one on the left
  by(panel).hidden = !on;
  by(`show-${panel}`).setAttribute("aria-expanded", String(on));
  live.follow();
}

function fit() {
  const area = by("message");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

// --- presets, and what an answer is compared with

function showPresets() {
  const names = presets().map(({ name }) => name), { value } = by("compare");
  by("preset").replaceChildren(new Option("Choose…", ""), ...names.map((name) => new Option(name)));
  const others = cards.filter(({ id, root }) => id !== by("model").value && root !== card()?.root);
  by("compare").replaceChildren(
    new Option("nothing", ""), ...names.map((name) => new Option(`preset ${name}`, `preset:${name}`)), ...others.map(({ id }) => new Option(`model ${id}`, `model:${id}`)),
  );
  by("compare").value = [...by("compare").options].some((one) => one.value === value) ? value : "";
}

// {label, card, values} of the second answer; null: there is to be one.
function compared() {
  const [kind, ...rest] = by("compare").value.split(":"), name = rest.join(":");
  const preset = kind === "preset" && presets().find((one) => one.name === name);
  if (preset) return { label: `${by("model").value}, ${name}`, card: card(), values: preset.values };
  const other = kind === "model" && cards.find(({ id }) => id === name);
  return other ? { label: `${name}, present settings`, card: other, values: values() } : null;
}

by("save-preset").addEventListener("click", () => {
  const name = by("preset-name").value.trim();
  if (!name) { by("preset-name").focus(); return; }
  try { checked(() => show("settings", true)); } catch { return; } // said beside the field
  keepPresets([{ name, values: values() }]);
  showPresets();
  by("preset").value = name;
  by("preset-name").value = "";
});
by("preset").addEventListener("change", () => {
  const found = presets().find(({ name }) => name === by("preset").value);
  if (found) fill(found.values);
});
by("delete-preset").addEventListener("click", () => { keepPresets([], by("preset").value); showPresets(); });

// --- the model

async function chooseModel() {
  const list = by("model");
  try {
    cards = await models(ROOT, key());
    const chosen = stored("localStorage", "forearm.model");
    list.replaceChildren(...cards.map(({ id }) => new Option(id, id, false, id === chosen)));
    list.disabled = false;
    showModel();
    if (cards.some(({ details }) => !details)) setTimeout(chooseModel, 3000); // its engine is still loading
  } catch (error) {
    const locked = error.status === 401;
    list.replaceChildren(new Option(locked ? "an API key is needed" : "no server", ""));
    if (locked) show("settings", true);
    else setTimeout(chooseModel, 3000);
  }
}

function showModel() {
  const one = card(), kind = kindOf(one), [heading, hint] = welcomeOf(one);
  showDefaults(one?.default_sampling_params ?? {});
  by("card").replaceChildren(...cardView(one));
  by("about").textContent = inOneLine(one);
  [by("welcome-heading").textContent, by("welcome-hint").textContent] = [heading, hint];
  by("examples").replaceChildren(...examplesOf(one).map((text) => make("li", {}, button(text, () => { say(text); by("message").focus(); }))));
  by("message").disabled = by("send").disabled = kind === "other";
  by("show-code").disabled = !["instruct", "coder", "base"].includes(kind);
  showPresets();
}

// The conversation so far, and what stands in the composer, as a request to run elsewhere.
function showCode() {
  const text = by("message").value.trim(), asked = turns.at(-1)?.role === "assistant" && !text ? turns.slice(0, -1) : turns;
  const request = (() => {
    try { return requestOf(card(), checked(() => show("settings", true)), by("system").value.trim(), [...asked, ...(text ? [{ role: "user", content: text }] : [])]); } catch { return null; }
  })();
  if (!request) return; // said beside the field
  const { path, body } = request, keyed = Boolean(key());
  if (!asked.length && !text) body.messages ? body.messages.push({ role: "user", content: "What is a glacier?" }) : (body.prompt = "A glacier is");
  by("code-blocks").replaceChildren(
    make("h3", {}, "curl"), codeBlock(asCurl(ROOT, path, body, keyed), "bash", true).node,
    make("h3", {}, "Python"), codeBlock(asPython(ROOT, path, body, keyed), "python", true).node,
  );
  by("key-note").hidden = !keyed;
  by("code").showModal();
}

by("show-code").addEventListener("click", showCode);
by("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = by("message").value.trim();
  if (!text || open) return;
  by("message").value = "";
  fit();
  say(text);
});
by("message").addEventListener("input", fit);
by("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); by("composer").requestSubmit(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || by("code").open) return;
  if (open) open.abort.abort();
  else if (matchMedia("(max-width: 61.99rem)").matches) for (const panel of PANELS) show(panel, false);
});
by("halt").addEventListener("click", () => { open?.abort.abort(); by("message").focus(); });
by("new").addEventListener("click", () => { display(begin()); by("message").focus(); });
for (const panel of PANELS) by(`show-${panel}`).addEventListener("click", () => show(panel, by(panel).hidden));
by("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
by("parameters").addEventListener("submit", (event) => event.preventDefault());
by("parameters").addEventListener("reset", () => setTimeout(() => { fill({}); showPresets(); store("sessionStorage", "forearm.key", null); }));
by("key").addEventListener("change", () => { store("sessionStorage", "forearm.key", key() || null); chooseModel(); });
by("model").addEventListener("change", () => { store("localStorage", "forearm.model", by("model").value); showModel(); });

addEventListener("pagehide", () => { if (open) keep(); });
addEventListener("storage", ({ key: name }) => { // another tab has kept something
  if (name !== PLACE) return;
  all.splice(0, Infinity, ...load().map((one) => (one.id === conversation.id ? conversation : one)));
  chats.show();
});

restore();
by("key").value = stored("sessionStorage", "forearm.key") ?? "";
setTheme(stored("localStorage", "forearm.theme") ?? "system");
chats.show();
show("figures", matchMedia("(min-width: 80rem)").matches);
chooseModel();
by("message").focus();
