// Mathematics in Markdown: a markdown-it plugin for $…$, $$…$$, \(…\) and \[…\]. KaTeX draws it.

const LONGEST = 5000; // characters of a formula
const PAIRS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];

export function mathematics(md) {
  md.inline.ruler.before("escape", "math", inline);
  md.block.ruler.before("fence", "math", block, { alt: ["paragraph", "blockquote", "list"] });
  const source = (tokens, i) => md.utils.escapeHtml(tokens[i].content);
  md.renderer.rules.math_inline = (tokens, i) => `<span class="math${tokens[i].info}">${source(tokens, i)}</span>`;
  md.renderer.rules.math_block = (tokens, i) => `<p class="math display">${source(tokens, i)}</p>`;
}

// Draw the formulas under a node. KaTeX sets styles through the DOM, which the page's policy allows.
export function drawMath(place) {
  for (const node of place.querySelectorAll(".math")) {
    const displayMode = node.classList.contains("display");
    katex.render(node.textContent, node, { displayMode, throwOnError: false, strict: "ignore", errorColor: "var(--bad)", maxSize: 20, maxExpand: 200 });
    if (displayMode) node.tabIndex = 0; // a wide formula scrolls
  }
}

function inline(state, silent) {
  const { src, pos, posMax } = state;
  const pair = PAIRS.find(([open]) => src.startsWith(open, pos));
  if (!pair) return false;
  const [open, close, display] = pair, begin = pos + open.length;
  const end = closing(src, begin, Math.min(posMax, begin + LONGEST), close);
  if (end < 0) return false;
  const tex = src.slice(begin, end);
  // As Pandoc has it: "$5 and $6" is money.
  if (open === "$" && (/^\s|\s$/.test(tex) || /\d/.test(src[end + 1] ?? ""))) return false;
  if (!tex.trim()) return false;
  if (!silent) {
    const token = state.push("math_inline", "span", 0);
    token.content = tex;
    token.info = display ? " display" : "";
  }
  state.pos = end + close.length;
  return true;
}

function closing(src, begin, limit, close) {
  for (let at = begin; at < limit; at += 1) {
    if (src.startsWith(close, at)) return at;
    if (src[at] === "\\") at += 1; // \$ and the like
  }
  return -1;
}

// A formula that begins a line and ends one, without an empty line within. One that is not finished yet is one paragraph.
function block(state, first, last, silent) {
  const line = (i) => state.src.slice(state.bMarks[i] + state.tShift[i], state.eMarks[i]).trimEnd();
  if (state.sCount[first] - state.blkIndent >= 4) return false;
  const pair = PAIRS.find(([open, , display]) => display && line(first).startsWith(open));
  if (!pair) return false;
  const [open, close] = pair, parts = [line(first).slice(open.length)];
  let next = first + 1;
  const ended = () => parts.at(-1).endsWith(close);
  for (; !ended() && next < last && line(next) && state.sCount[next] >= state.blkIndent; next += 1) parts.push(line(next));
  if (parts[0].slice(0, -close.length).includes(close)) return false; // a formula and text after it
  if (!ended() && next < state.lineMax) return false;
  if (silent) return true;
  const token = state.push(ended() ? "math_block" : "math_open", "p", 0);
  token.content = ended() ? parts.join("\n").slice(0, -close.length) : open + parts.join("\n");
  token.map = [first, next];
  state.line = next;
  return true;
}
