// The settings panel: fields of a request and named presets of them, kept in this browser; the key stays in this tab.

import { by } from "./dom.js";

const PRESETS = "forearm.presets";
const MORE = { tools: [Array.isArray, "a list of tools"], more: [(value) => typeof value === "object" && !Array.isArray(value), "an object"] };
const fields = [...document.querySelectorAll("[data-field]")];
const kept = [...fields, by("system"), by("stop"), by("tools"), by("more")];
const nameOf = (field) => field.dataset.field ?? field.id;

// Keep a text, or forget it. `area` is a name: where storage is forbidden, already window.localStorage throws.
export function store(area, name, value) {
  try { value === null ? window[area].removeItem(name) : window[area].setItem(name, value); } catch { /* full or forbidden: not kept */ }
}

export function stored(area, name) {
  try { return window[area].getItem(name); } catch { return null; }
}

// What stands in the fields: texts by name.
export function values() {
  return Object.fromEntries(kept.filter((field) => field.value.trim()).map((field) => [nameOf(field), field.value]));
}

export function fill(found) {
  for (const field of kept) {
    field.value = found[nameOf(field)] ?? "";
    store("localStorage", `forearm.${nameOf(field)}`, field.value || null);
  }
}

export function restore() {
  for (const field of kept) {
    field.value = stored("localStorage", `forearm.${nameOf(field)}`) ?? "";
    field.addEventListener("change", () => store("localStorage", `forearm.${nameOf(field)}`, field.value || null));
  }
}

// The fields of a request with these values, besides its messages. Throws where one is no JSON.
export function bodyOf(found) {
  const body = {};
  for (const field of fields) {
    const text = found[nameOf(field)];
    if (text) body[field.dataset.field] = field.type === "number" ? Number(text) : text;
  }
  const stop = (found.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  const tools = json(found.tools, "tools");
  if (tools?.length) body.tools = tools;
  return { ...body, ...json(found.more, "more") };
}

// The same of what stands in the fields. Throws where one is wrong, and says so beside it; `show` opens the panel.
export function checked(show) {
  for (const field of fields) {
    const { badInput, rangeUnderflow, rangeOverflow } = field.validity; // between two steps is fine
    if (badInput || rangeUnderflow || rangeOverflow) { show(); field.reportValidity(); throw new Error(`${field.labels[0].textContent.trim()} is out of range.`); }
  }
  for (const id of Object.keys(MORE)) {
    const field = by(id);
    let message = "";
    try { json(field.value, id); } catch (error) { message = error.message; }
    by(`${id}-error`).textContent = message;
    message ? field.setAttribute("aria-invalid", "true") : field.removeAttribute("aria-invalid");
    if (!message) continue;
    show();
    field.closest("details").open = true;
    field.focus();
    throw new Error(`The field “${id}” is no JSON.`);
  }
  return bodyOf(values());
}

function json(text = "", name) {
  if (!text.trim()) return undefined;
  const [right, what] = MORE[name];
  try {
    const value = JSON.parse(text);
    if (value === null || !right(value)) throw new Error(`write ${what}`);
    return value;
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
}

// What the server takes where a field is empty.
export function showDefaults(defaults) {
  for (const field of fields) {
    const name = field.dataset.field === "max_completion_tokens" ? "max_tokens" : field.dataset.field;
    if (field.type === "number") field.placeholder = defaults[name] ?? "";
  }
}

// Presets of an imported file or of this browser: [{name, values}]. Throws where they are none.
export function readPresets(found) {
  const isPreset = ({ name, values }) => typeof name === "string" && name && Object.values(values).every((one) => typeof one === "string");
  if (!Array.isArray(found) || !found.every(isPreset)) throw new Error("it has no presets of this page");
  return found.map(({ name, values }) => ({ name, values: { ...values } }));
}

export function presets() {
  try { return readPresets(JSON.parse(stored("localStorage", PRESETS) ?? "[]")); } catch { return []; }
}

// Keep presets; one replaces an older one of its name.
export function keepPresets(more, without = "") {
  const names = new Set([...more.map(({ name }) => name), without]);
  const all = [...presets().filter(({ name }) => !names.has(name)), ...more].sort((a, b) => a.name.localeCompare(b.name));
  store("localStorage", PRESETS, JSON.stringify(all));
}
