// The playground: wires the page's parts together. It loads nothing from anywhere but this server.

import { blank, messagesOf, models, Refused, stream } from "./chat.js";
import { Chats } from "./chats.js";
import { begin, load, plain, PLACE, save } from "./conversations.js";
import { Live } from "./live.js";
import { stats, turnView } from "./view.js";

const ROOT = new URL("../", import.meta.url);
const THEMES = ["system", "light", "dark"];
const PANELS = ["chats", "settings", "figures"];
const by = (id) => document.getElementById(id);

const turns = []; // of the conversation: {role, content, …}
const all = load(); // conversations
let conversation = begin(); // the one that is shown
const views = new Map(); // turn to its view
let open = null; // the answer being written: {turn, abort}

// --- settings: kept in this browser, the key in this tab

const fields = [...document.querySelectorAll("[data-field]")];
const kept = [...fields, by("system"), by("stop"), by("tools"), by("more")];
const nameOf = (field) => field.dataset.field ?? field.id;

function store(area, name, value) {
  try { value === null ? area.removeItem(name) : area.setItem(name, value); } catch { /* private mode: not kept */ }
}

function stored(area, name) {
  try { return area.getItem(name); } catch { return null; }
}

function restore() {
  for (const field of kept) field.value = stored(localStorage, `forearm.${nameOf(field)}`) ?? "";
  by("key").value = stored(sessionStorage, "forearm.key") ?? "";
  setTheme(stored(localStorage, "forearm.theme") ?? "system");
}

function setTheme(theme) {
  theme === "system" ? delete document.documentElement.dataset.theme : (document.documentElement.dataset.theme = theme);
  by("theme").setAttribute("aria-label", `Theme: ${theme === "system" ? "as the system has it" : theme}`);
  store(localStorage, "forearm.theme", theme);
}

// The request's fields besides its messages. Throws where a field is no JSON, and says so beside it.
function parameters() {
  const body = { model: by("model").value };
  for (const field of fields) {
    if (!field.value) continue;
    const { badInput, rangeUnderflow, rangeOverflow } = field.validity; // between two steps is fine
    if (badInput || rangeUnderflow || rangeOverflow) { show("settings", true); field.reportValidity(); throw new Error(`${field.labels[0].textContent.trim()} is out of range.`); }
    body[field.dataset.field] = field.type === "number" ? Number(field.value) : field.value;
  }
  const stop = by("stop").value.split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  const tools = json("tools", Array.isArray, "a list of tools");
  if (tools?.length) body.tools = tools;
  return { ...body, ...json("more", (value) => typeof value === "object" && !Array.isArray(value), "an object") };
}

function json(id, right, what) {
  const field = by(id), text = field.value.trim();
  const say = (message) => { by(`${id}-error`).textContent = message; field.toggleAttribute("aria-invalid", Boolean(message)); if (message) field.setAttribute("aria-invalid", "true"); };
  say("");
  if (!text) return undefined;
  try {
    const value = JSON.parse(text);
    if (value === null || !right(value)) throw new Error(`write ${what}`);
    return value;
  } catch (error) {
    say(`This is no JSON: ${error.message}`);
    show("settings", true);
    field.closest("details").open = true;
    field.focus();
    throw new Error(`The field “${id}” is no JSON.`);
  }
}

// --- the conversation

const acts = {
  isOpen: (turn) => open?.turn === turn,
  isLast: (turn) => turns.at(-1) === turn,
  goOn(turn) { answer(turn); },
  branch(turn) { keep(); display(begin(turns.slice(0, turns.indexOf(turn) + 1).map((one) => structuredClone(plain(one))))); keep(); },
  again(turn) { cut(turns.indexOf(turn)); answer(); },
  edited(turn, text) { cut(turns.indexOf(turn)); say(text); },
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

// Answer the conversation, or go on with its last answer.
async function answer(begun = null) {
  const turn = begun ?? blank(), abort = new AbortController();
  const system = by("system").value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...messagesOf(turns)];
  const how = begun ? { continue_final_message: true, add_generation_prompt: false } : {};
  const mine = { turn, abort };
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
      const follow = atEnd();
      view.update();
      if (follow) toEnd(true);
      if (open === mine) by("status").textContent = stats(turn);
    });
  };
  try {
    await stream(ROOT, by("key").value.trim(), { ...parameters(), ...how, messages }, abort.signal, turn, changed);
  } catch (error) {
    if (error.name === "AbortError") turn.stopped = true;
    else failed(turn, error);
  }
  if (open !== mine) return; // another one has begun
  open = null;
  working(false);
  keep();
  const follow = atEnd();
  view.update();
  if (follow) toEnd(true);
  if (!turn.error) by("said").textContent = `Answer complete: ${turn.content} ${stats(turn)}`;
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
  added(found) { all.unshift(...found.filter((one) => !all.some(({ id }) => id === one.id))); written(); },
});

// Show a conversation instead of the present one.
function display(one) {
  if (open && all.includes(conversation)) { open.turn.stopped = true; keep(); }
  cut(0);
  open = null;
  working(false);
  conversation = one;
  for (const turn of one.turns) {
    const ended = turn.role !== "assistant" || turn.finish || turn.error; // or the page was closed meanwhile
    add({ ...structuredClone(turn), ...(ended ? {} : { stopped: true }) });
  }
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

// What the server takes where a field is empty.
function showDefaults(defaults) {
  for (const field of fields) {
    const name = field.dataset.field === "max_completion_tokens" ? "max_tokens" : field.dataset.field;
    if (field.type === "number") field.placeholder = defaults[name] ?? "";
  }
}

async function chooseModel() {
  const list = by("model");
  try {
    const found = await models(ROOT, by("key").value.trim());
    const chosen = stored(localStorage, "forearm.model");
    list.replaceChildren(...found.map(({ id }) => new Option(id, id, false, id === chosen)));
    list.disabled = false;
    showDefaults(found[0]?.default_sampling_params ?? {});
  } catch (error) {
    const locked = error.status === 401;
    list.replaceChildren(new Option(locked ? "an API key is needed" : "no server", ""));
    if (locked) show("settings", true);
    else setTimeout(chooseModel, 3000);
  }
}

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
  if (event.key !== "Escape") return;
  if (open) open.abort.abort();
  else if (matchMedia("(max-width: 61.99rem)").matches) for (const panel of PANELS) show(panel, false);
});
by("halt").addEventListener("click", () => { open?.abort.abort(); by("message").focus(); });
by("new").addEventListener("click", () => { display(begin()); by("message").focus(); });
by("examples").addEventListener("click", (event) => { if (event.target.matches("button")) { say(event.target.textContent); by("message").focus(); } });
for (const panel of PANELS) by(`show-${panel}`).addEventListener("click", () => show(panel, by(panel).hidden));
by("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
by("parameters").addEventListener("submit", (event) => event.preventDefault());
by("parameters").addEventListener("reset", () => setTimeout(() => { for (const field of kept) { field.value = ""; store(localStorage, `forearm.${nameOf(field)}`, null); } store(sessionStorage, "forearm.key", null); }));
for (const field of kept) field.addEventListener("change", () => store(localStorage, `forearm.${nameOf(field)}`, field.value || null));
by("key").addEventListener("change", () => { store(sessionStorage, "forearm.key", by("key").value.trim() || null); chooseModel(); });
by("model").addEventListener("change", () => store(localStorage, "forearm.model", by("model").value));

addEventListener("pagehide", () => { if (open) keep(); });
addEventListener("storage", ({ key }) => { // another tab has kept something
  if (key !== PLACE) return;
  all.splice(0, Infinity, ...load().map((one) => (one.id === conversation.id ? conversation : one)));
  chats.show();
});

restore();
chats.show();
show("figures", matchMedia("(min-width: 80rem)").matches);
chooseModel();
by("message").focus();
