// Markdown of a model as DOM nodes. Text only ever becomes text nodes: nothing a model writes is read as HTML.
// The common part of CommonMark and GitHub's tables; what is not finished yet is shown as it stands.

const FENCE = /^(\s{0,3})(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const CELLS = /^\s*\|?(\s*:?-+:?\s*\|)+\s*:?-*:?\s*\|?\s*$/;
const DEEPEST = 8; // quotes and lists within each other

export function make(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") node.className = value;
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// The text as an array of block nodes.
export function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) { at += 1; continue; }
    let found;
    if ((found = FENCE.exec(line))) at = fence(lines, at, found, out);
    else if ((found = HEADING.exec(line))) { out.push(make(`h${Math.min(found[1].length + 2, 6)}`, {}, ...inline(found[2]))); at += 1; }
    else if (RULE.test(line)) { out.push(make("hr")); at += 1; }
    else if (/^\s{0,3}>/.test(line) && depth < DEEPEST) at = quote(lines, at, depth, out);
    else if (ITEM.test(line) && depth < DEEPEST) at = list(lines, at, depth, out);
    else if (line.includes("|") && at + 1 < lines.length && CELLS.test(lines[at + 1])) at = table(lines, at, out);
    else at = paragraph(lines, at, depth, out);
  }
  return out;
}

function fence(lines, at, [, , mark, language], out) {
  const end = new RegExp(`^\\s{0,3}${mark[0]}{${mark.length},}\\s*$`);
  const body = [];
  for (at += 1; at < lines.length && !end.test(lines[at]); at += 1) body.push(lines[at]);
  const code = make("code", {}, body.join("\n"));
  out.push(make("pre", { tabIndex: 0, "aria-label": language ? `Code, ${language}` : "Code" }, code));
  return at + 1;
}

function quote(lines, at, depth, out) {
  const inner = [];
  for (; at < lines.length && /^\s{0,3}>/.test(lines[at]); at += 1) inner.push(lines[at].replace(/^\s{0,3}> ?/, ""));
  out.push(make("blockquote", {}, ...blocks(inner, depth + 1)));
  return at;
}

function list(lines, at, depth, out) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const node = make(ordered ? "ol" : "ul");
  if (ordered && parseInt(mark, 10) !== 1) node.start = parseInt(mark, 10);
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length > indent.length + 1 || item[1].length < indent.length || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    const within = indent.length + 2;
    for (at += 1; at < lines.length; at += 1) {
      const next = lines[at];
      const blank = !next.trim();
      if (blank && !(at + 1 < lines.length && /^\s/.test(lines[at + 1]) && lines[at + 1].search(/\S/) >= within)) break;
      if (!blank && next.search(/\S/) < within && (ITEM.test(next) || FENCE.test(next) || HEADING.test(next))) break;
      inner.push(next.replace(new RegExp(`^\\s{0,${within + 1}}`), ""));
    }
    node.append(make("li", {}, ...tight(blocks(inner, depth + 1))));
    if (at < lines.length && !lines[at].trim() && at + 1 < lines.length && ITEM.test(lines[at + 1])) at += 1;
  }
  out.push(node);
  return at;
}

// An item of one paragraph is shown without it.
function tight(nodes) {
  if (nodes.length && nodes[0].tagName === "P" && nodes.slice(1).every((n) => n.tagName === "UL" || n.tagName === "OL")) {
    return [...nodes[0].childNodes, ...nodes.slice(1)];
  }
  return nodes;
}

function table(lines, at, out) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const head = make("tr", {}, ...cells(lines[at]).map((cell) => make("th", { scope: "col" }, ...inline(cell))));
  const body = make("tbody");
  for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) {
    body.append(make("tr", {}, ...cells(lines[at]).map((cell) => make("td", {}, ...inline(cell)))));
  }
  out.push(make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table" }, make("table", {}, make("thead", {}, head), body)));
  return at;
}

function paragraph(lines, at, depth, out) {
  const own = [lines[at]];
  for (at += 1; at < lines.length; at += 1) {
    const line = lines[at];
    if (!line.trim() || FENCE.test(line) || HEADING.test(line) || /^\s{0,3}>/.test(line) || (ITEM.test(line) && depth < DEEPEST)) break;
    own.push(line);
  }
  out.push(make("p", {}, ...inline(own.join("\n"))));
  return at;
}

// Each alternative cannot match itself again: no text takes more than linear time in practice.
const SPANS = /(`+)([^`](?:[\s\S]{0,2000}?[^`])?)\1(?!`)|\*\*([^*\n][^\n]{0,2000}?)\*\*|__([^_\n][^\n]{0,2000}?)__|\*([^*\s][^*\n]{0,1000}?)\*|(?<!\w)_([^_\s][^_\n]{0,1000}?)_(?!\w)|~~([^~\n]{1,1000}?)~~|\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)|(https?:\/\/[^\s<>"')\]]{1,2000})|\\([!-/:-@[-`{-~])| {2,}\n/;

function inline(text, depth = 0) {
  const out = [];
  let rest = text;
  while (rest && depth < DEEPEST) {
    const found = SPANS.exec(rest);
    if (!found) break;
    if (found.index) out.push(rest.slice(0, found.index));
    out.push(span(found, depth));
    rest = rest.slice(found.index + found[0].length);
  }
  if (rest) out.push(rest);
  return out;
}

function span([whole, , code, strong, strong2, em, em2, struck, label, target, bare, escaped], depth) {
  const within = (inner) => inline(inner, depth + 1);
  if (code !== undefined) return make("code", {}, code.replace(/^ (.*) $/, "$1"));
  if (strong ?? strong2) return make("strong", {}, ...within(strong ?? strong2));
  if (em ?? em2) return make("em", {}, ...within(em ?? em2));
  if (struck) return make("s", {}, ...within(struck));
  if (label) return link(target, within(label)) ?? whole;
  if (bare) return link(bare, [bare]);
  return escaped ?? make("br");
}

// Only where a click can do no more than open a page.
function link(target, children) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return null;
  return make("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}
