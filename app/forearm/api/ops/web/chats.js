// The panel that lists conversations. `acts`: all(), current(), open(one), changed(), removed(one), added(several).

import { asMarkdown, fromMarkdown, matching, read, titleOf } from "./conversations.js";
import { button, by, make } from "./dom.js";
import { keepPresets, presets, readPresets } from "./settings.js";

export class Chats {
  constructor(acts) {
    this.acts = acts;
    by("search").addEventListener("input", () => this.show());
    by("export").addEventListener("click", () => download("conversations.json", JSON.stringify({ conversations: acts.all(), presets: presets() }, null, 1), "application/json"));
    by("export-text").addEventListener("click", () => download("conversation.md", asMarkdown(acts.current()), "text/markdown"));
    by("import").addEventListener("change", async () => {
      const [file] = by("import").files;
      try {
        const text = await file.text(), content = /\.(md|markdown)$/i.test(file.name) ? fromMarkdown(text) : JSON.parse(text);
        const found = read(content?.conversations ?? content), more = readPresets(content?.presets ?? []);
        keepPresets(more);
        acts.added(found);
        this.say(`${found.length} imported${more.length ? `, and ${more.length} presets` : ""}`);
      } catch (error) {
        this.say(`${file.name} was not imported: ${error instanceof SyntaxError ? "it is no JSON" : error.message}`);
      }
      by("import").value = "";
    });
  }

  say(text) { by("chats-state").textContent = text; }

  show() {
    const found = matching(this.acts.all(), by("search").value);
    by("chat-list").replaceChildren(...found.map((one) => this.row(one)));
    if (!found.length) by("chat-list").append(make("li", { class: "none" }, "None"));
  }

  row(one) {
    const title = titleOf(one), current = one === this.acts.current();
    const open = button(title, () => this.acts.open(one), { class: "title", ...(current ? { "aria-current": "true" } : {}) });
    const rename = button("Rename", () => this.rename(row, one), { "aria-label": `Rename ${title}` });
    const remove = button("Delete", () => this.acts.removed(one), { "aria-label": `Delete ${title}` });
    const row = make("li", {}, open, rename, remove);
    return row;
  }

  rename(row, one) {
    const field = make("input", { value: titleOf(one), "aria-label": "New name" });
    let done = false;
    const end = (kept) => {
      if (done) return;
      done = true;
      if (kept && field.value.trim()) { one.title = field.value.trim(); this.acts.changed(); }
      this.show();
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") { event.stopPropagation(); end(false); }
    });
    row.replaceChildren(field);
    field.select();
  }
}

function download(name, text, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
