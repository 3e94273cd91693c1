// The models of the server: what a card of /v1/models says, and what to try with each kind.

import { make } from "./dom.js";

const DICTIONARY = 5e7; // parameters below which a model knows words, not the world: the demonstration model has 6 million
const EXAMPLES = {
  small: ["What is a glacier?", "What does the word “steadfast” mean?", "Define “harbour” in one sentence."],
  instruct: ["What is a glacier?", "Plan a day in Oslo with children, hour by hour.", "Decline an invitation politely, in three sentences."],
  coder: ["Write a Python function that merges two sorted lists.", "What does the regular expression ^\\d{4}-\\d{2}$ match?", "Find the mistake: for (let i = 0; i <= a.length; i++) sum += a[i];"],
  base: ["The capital of Norway is", "A glacier is a", "def fibonacci(n):"],
  embedding: ["A glacier\nA river of ice\nA tax form", "How do I reset my password?\nForgotten passwords\nOpening hours"],
};
const HINTS = {
  base: ["Let the model go on", "A base model continues your text; it does not answer."],
  embedding: ["Compare texts", "One text a line: the first is compared with the others."],
};

// instruct, coder, base, embedding; other: it gives scores or classes.
export function kindOf(card) {
  const tasks = card?.tasks ?? ["chat"];
  if (tasks.includes("chat")) return /cod(er|e\b)|starcoder|devstral/i.test(`${card?.id} ${card?.root}`) ? "coder" : "instruct";
  if (tasks.includes("completions")) return "base";
  return tasks.includes("embed") ? "embedding" : "other";
}

export function examplesOf(card) {
  const kind = kindOf(card);
  return EXAMPLES[kind === "instruct" && card?.details?.parameters < DICTIONARY ? "small" : kind] ?? [];
}

// Heading and sentence of the page before anything is asked.
export function welcomeOf(card) {
  const kind = kindOf(card);
  if (kind === "other") return ["A model for programs", `This model answers ${card.tasks.join(", ")}: see the API's own page, /docs.`];
  return HINTS[kind] ?? ["Try the model", "Messages go to this server and nowhere else."];
}

// [name, value] of all that is known.
export function factsOf(card) {
  const { details, max_model_len: context, default_sampling_params: defaults = {}, tasks = [] } = card;
  const sampling = Object.entries(defaults).map(([name, value]) => `${name} ${value}`).join(", ");
  const all = [
    ["Family", details?.family], ["Parameters", details && inShort(details.parameters)], ["Weights", details?.format],
    ["Context", context && `${context.toLocaleString("en")} tokens`], ["Answers", tasks.join(", ")], ["Sampling", sampling || "neutral"], ["From", card.root],
  ];
  return all.filter(([, value]) => value);
}

export function inOneLine(card) {
  const { Parameters, Weights, Context } = Object.fromEntries(factsOf(card));
  return [Parameters && `${Parameters} parameters`, Weights, Context && `context of ${Context}`].filter(Boolean).join(" · ");
}

export function cardView(card) {
  return factsOf(card).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
}

// As the names of models have it: 135M, 7.2B.
function inShort(count) {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)}B`;
  return count >= 1e6 ? `${Math.round(count / 1e6)}M` : `${count}`;
}
