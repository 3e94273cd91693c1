// Prometheus' text as numbers: sums over engines, rates between two scrapes, histograms with quantiles.

// Returns: Map of name to a list of {labels, value}.
export function parse(text) {
  const series = new Map();
  for (const line of text.split("\n")) {
    const found = /^([\w:]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    if (!series.has(found[1])) series.set(found[1], []);
    series.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return series;
}

export function total(series, name) {
  const found = series.get(name);
  return found ? found.reduce((sum, one) => sum + one.value, 0) : null;
}

// Requests in each bucket: [{from, to, count}], bounds in seconds, the last one without end.
export function histogram(series, name) {
  const bounds = new Map();
  for (const { labels, value } of series.get(`${name}_bucket`) ?? []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    bounds.set(bound, (bounds.get(bound) ?? 0) + value);
  }
  let from = 0, below = 0;
  return [...bounds].sort((a, b) => a[0] - b[0]).map(([to, upTo]) => {
    const bucket = { from, to, count: upTo - below };
    from = to; below = upTo;
    return bucket;
  });
}

// The quantile as Prometheus' histogram_quantile has it: evenly within its bucket. null: nothing was observed.
export function quantile(buckets, share) {
  const count = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
  let left = share * count;
  for (const bucket of buckets) {
    if (bucket.count && left <= bucket.count) {
      return bucket.to === Infinity ? bucket.from : bucket.from + (bucket.to - bucket.from) * (left / bucket.count);
    }
    left -= bucket.count;
  }
  return null;
}

export function seconds(value) {
  if (value === null) return "–";
  if (value === Infinity) return "∞";
  if (value < 1) return `${Number((1000 * value).toPrecision(2))} ms`;
  return `${Number(value.toPrecision(2))} s`;
}
