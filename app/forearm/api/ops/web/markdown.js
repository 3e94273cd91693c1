// Markdown of a model as DOM nodes: markdown-it parses it (HTML stays text), DOMPurify lets only plain elements through,
// highlight.js colours code, KaTeX draws mathematics.

import { copyButton, grow, make } from "./dom.js";
import { drawMath, mathematics } from "./math.js";

const LONGEST_COLOURED = 30_000; // characters of code
const ALLOWED = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: "a blockquote br code div em h3 h4 h5 h6 hr li ol p s span strong table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["class", "href", "rel", "start", "target", "title"],
  ADD_URI_SAFE_ATTR: ["rel", "start", "target"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
};

const md = markdownit({ html: false, linkify: true, typographer: false, maxNesting: 40 }).use(mathematics).disable("image");
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
md.validateLink = (url) => ALLOWED.ALLOWED_URI_REGEXP.test(url);
md.core.ruler.push("elements", ({ tokens }) => tokens.forEach(adapt));
md.renderer.rules.table_open = () => '<div class="scroll"><table>';
md.renderer.rules.table_close = () => "</table></div>";
md.renderer.rules.math_open = (tokens, i) => `<p>${md.utils.escapeHtml(tokens[i].content)}</p>`;

// Headings stand below the page's own; alignment is a class, since the page's policy forbids style attributes.
function adapt(token) {
  if (token.type.startsWith("heading_")) token.tag = `h${Math.min(Number(token.tag[1]) + 2, 6)}`;
  const style = token.attrGet("style");
  if (style) token.attrs = [["class", style.replace("text-align:", "to-")]];
  for (const child of token.children ?? []) {
    if (child.type === "link_open") { child.attrSet("target", "_blank"); child.attrSet("rel", "noopener noreferrer"); }
  }
}

// A text as nodes under `place`, which may grow. Each time only its last two blocks are parsed again: a line that is not
// finished yet can change how the block before it ends ("#" begins a heading, "#1" goes on with the paragraph), but
// nothing before that. So a token costs the same at the end of a long answer as at its beginning.
export class Prose {
  constructor(place) {
    this.place = place;
    this.begin();
  }

  begin() {
    this.place.replaceChildren();
    this.length = 0; // characters shown
    this.settled = 0; // characters that are not parsed again
    this.nodes = 0; // elements of these
    this.open = null; // code that is being written: {index, line, info, code}
    this.env = {};
  }

  // Show the text so far; `whole`: nothing will follow.
  show(text, whole = false) {
    if (text.length === this.length && !whole) return;
    if (whole && Object.keys(this.env.references ?? {}).length) this.begin(); // links may be defined after their use
    this.length = text.length;
    const tail = text.slice(this.settled), found = blocks(md.parse(tail, this.env));
    const sure = whole ? found.length : Math.max(found.length - 2, 0);
    const { open } = this, last = found.at(-1);
    if (!whole && open && found.length === open.index + 1 && last[0].map[0] === open.line && last[0].info === open.info) {
      grow(open.code, trimmed(last[0].content));
      return;
    }
    this.open = null;
    while (this.place.childElementCount > this.nodes) this.place.lastChild.remove();
    found.forEach((tokens, i) => this.place.append(this.node(tokens, i, whole || i < found.length - 1)));
    if (sure < found.length && sure > 0) this.settle(tail, found[sure][0].map[0], sure);
  }

  settle(tail, line, count) {
    const breaks = /\r\n?|\n/g;
    for (let i = 0; i < line; i += 1) breaks.exec(tail);
    this.settled += breaks.lastIndex;
    this.nodes += count;
    this.open = null;
  }

  node(tokens, index, finished) {
    const [token] = tokens;
    if (token.type !== "fence" && token.type !== "code_block") return prose(tokens, this.env);
    const { node, code } = codeBlock(trimmed(token.content), token.info.trim().split(/\s/)[0], finished);
    if (!finished) this.open = { index, line: token.map[0], info: token.info, code };
    return node;
  }
}

// The text as a node that will not grow.
export function markdown(text) {
  const place = make("div");
  new Prose(place).show(text, true);
  return place;
}

// Tokens of each block that stands in no other; a block becomes one element.
function blocks(tokens) {
  const found = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) found.push([]);
    found.at(-1).push(token);
    depth += token.nesting;
  }
  return found;
}

function prose(tokens, env) {
  const part = DOMPurify.sanitize(md.renderer.render(tokens, md.options, env), ALLOWED);
  for (const pre of part.querySelectorAll("pre")) pre.replaceWith(codeBlock(trimmed(pre.textContent), "", true).node);
  for (const wide of part.querySelectorAll(".scroll")) {
    wide.tabIndex = 0;
    wide.setAttribute("role", "group");
    wide.setAttribute("aria-label", "Table");
  }
  drawMath(part);
  return part.firstElementChild;
}

export function codeBlock(text, language, finished) {
  const code = make("code");
  if (finished && hljs.getLanguage(language) && text.length < LONGEST_COLOURED) {
    const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
    code.append(DOMPurify.sanitize(value, ALLOWED));
  } else grow(code, text);
  const title = language || "text";
  const bar = make("div", { class: "bar-of-code" }, make("span", {}, title), copyButton(() => code.textContent));
  const pre = make("pre", { tabIndex: 0, role: "group", "aria-label": `Code, ${title}` }, code);
  return { node: make("div", { class: "code" }, bar, pre), code };
}

function trimmed(text) {
  return text.replace(/\n$/, "");
}
