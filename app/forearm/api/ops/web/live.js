// The panel of live figures: asks /metrics every two seconds while somebody can see it.

import { inWords } from "./chat.js";
import { by } from "./dom.js";
import { histogram, parse, quantile, seconds, total } from "./metrics.js";

const EVERY_MS = 2000;
const KEPT = 60; // points of the line: two minutes
const SVG = "http://www.w3.org/2000/svg";

export class Live {
  constructor(root, panel) {
    this.root = root;
    this.panel = panel;
    this.before = null;
    this.points = [];
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.follow());
  }

  // Begin or stop to ask, as the panel and the page are shown or not.
  follow() {
    const wanted = !this.panel.hidden && document.visibilityState === "visible";
    if (wanted && this.timer === null) {
      this.timer = setInterval(() => this.ask(), EVERY_MS);
      this.ask();
    } else if (!wanted && this.timer !== null) {
      clearInterval(this.timer);
      this.timer = null;
      this.before = null;
    }
  }

  async ask() {
    try {
      const reply = await fetch(new URL("metrics", this.root), { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (!reply.ok) throw new Error(`/metrics answers ${reply.status}`);
      this.show(parse(await reply.text()), performance.now());
      by("figures-state").textContent = "";
    } catch (error) {
      this.before = null;
      by("figures-state").textContent = `No figures: ${inWords(error)}`;
    }
  }

  show(series, now) {
    const generated = total(series, "vllm:generation_tokens_total");
    if (generated === null) throw new Error("the engine is not there");
    const counts = { now, generated, prompt: total(series, "vllm:prompt_tokens_total") };
    if (this.before && counts.generated >= this.before.generated) {
      const span = (now - this.before.now) / 1000;
      const rate = (name) => (counts[name] - this.before[name]) / span;
      this.points = [...this.points, rate("generated")].slice(-KEPT);
      write("generation", rate("generated"));
      write("prompt", rate("prompt"));
      line(by("generation-line"), this.points);
    }
    this.before = counts;
    write("running", total(series, "vllm:num_requests_running"));
    write("waiting", total(series, "vllm:num_requests_waiting"));
    const used = 100 * total(series, "vllm:kv_cache_usage_perc");
    write("kv", used);
    by("kv-bar").style.width = `${Math.min(used, 100)}%`;
    const asked = total(series, "vllm:prefix_cache_queries_total");
    write("hits", asked ? (100 * total(series, "vllm:prefix_cache_hits_total")) / asked : null);
    bars("ttft", histogram(series, "vllm:time_to_first_token_seconds"), "Time to first token");
    bars("tpot", histogram(series, "vllm:inter_token_latency_seconds"), "Time per token");
  }
}

function write(id, value) {
  by(id).textContent = value === null ? "–" : value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function line(place, points) {
  const most = Math.max(...points, 1);
  const x = (i) => (100 * (i + KEPT - points.length)) / (KEPT - 1);
  const y = (value) => 29 - (27 * value) / most;
  const path = points.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(2)} ${y(value).toFixed(2)}`).join("");
  const svg = draw("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(
    draw("path", { class: "base", d: "M0 29.5L100 29.5" }),
    draw("path", { class: "area", d: `${path}L100 29L${x(0).toFixed(2)} 29Z` }),
    draw("path", { class: "stroke", d: path }),
  );
  place.replaceChildren(svg);
}

function bars(id, buckets, name) {
  const seen = buckets.map((bucket) => bucket.count > 0);
  const first = seen.indexOf(true), last = seen.lastIndexOf(true);
  const [half, most] = [quantile(buckets, 0.5), quantile(buckets, 0.95)];
  by(`${id}-summary`).textContent = half === null ? "none yet" : `median ${seconds(half)}, 95 % ${seconds(most)}`;
  if (first < 0) { by(id).replaceChildren(); return; }
  // At least seven bars, so that one full bucket does not look like a wall.
  const from = Math.max(0, Math.min(first - 1, last - 6)), shown = buckets.slice(from, Math.max(last + 2, from + 7));
  const top = Math.max(...shown.map((bucket) => bucket.count));
  const width = 288 / shown.length, floor = 92;
  const svg = draw("svg", { viewBox: "0 0 288 112", role: "img", "aria-label": `${name}: ${by(`${id}-summary`).textContent}` });
  svg.append(draw("line", { class: "axis", x1: 0, x2: 288, y1: floor + 0.5, y2: floor + 0.5 }));
  const labelled = Math.ceil(shown.length / 6);
  shown.forEach((bucket, i) => {
    const height = bucket.count ? Math.max((84 * bucket.count) / top, 1.5) : 0;
    const bar = draw("rect", { x: i * width + 1, y: floor - height, width: Math.max(width - 2, 1), height, rx: 1.5 });
    bar.append(draw("title", {}, `${seconds(bucket.from)} to ${seconds(bucket.to)}: ${bucket.count}`));
    svg.append(bar);
    if (i % labelled === labelled - 1 && i < shown.length - 1 && bucket.to !== Infinity) {
      svg.append(draw("text", { x: (i + 1) * width, y: 107, "text-anchor": "middle" }, seconds(bucket.to)));
    }
  });
  by(id).replaceChildren(svg);
}
