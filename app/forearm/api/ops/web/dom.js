// Elements, found, made and filled without HTML.

export const by = (id) => document.getElementById(id);

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

export function button(text, click, props = {}) {
  return make("button", { type: "button", onclick: click, ...props }, text);
}

// Show a text that only grows: append what is new, so that the cost is that of the new part.
export function grow(node, text) {
  if (!(node.firstChild instanceof Text)) node.replaceChildren("");
  const shown = node.firstChild;
  if (text.length > shown.length) shown.appendData(text.slice(shown.length));
  else if (text.length < shown.length) shown.data = text;
}

export function copyButton(text) {
  return button("Copy", async (event) => {
    const from = event.currentTarget;
    await copy(text());
    from.textContent = "Copied";
    setTimeout(() => { from.textContent = "Copy"; }, 1500);
  });
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // pages without TLS have no clipboard: the old way
    const before = document.activeElement, area = make("textarea", { value: text, class: "hidden" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    before?.focus();
  }
}
