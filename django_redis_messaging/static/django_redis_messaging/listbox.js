// Suggestions for a text field: the combobox pattern of WAI-ARIA.

const TYPING_DELAY = 120; // ms

export class Listbox {
  // `find()` promises the suggestions for what is typed; `describe(suggestion)` returns what its item contains.
  constructor(input, list, { find, choose, describe, onShow = () => {} }) {
    Object.assign(this, { input, list, find, choose, describe, onShow, found: [], active: -1, latest: 0 });
    input.setAttribute("aria-autocomplete", "list");
    input.setAttribute("aria-controls", list.id);
    input.addEventListener("input", () => this.findSoon());
    input.addEventListener("blur", () => this.close());
    // Capturing, before other handlers, which ignore events whose default is prevented.
    input.addEventListener("keydown", (event) => this.handleKey(event), { capture: true });
    this.show([]);
  }

  findSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.findNow(), TYPING_DELAY);
  }

  // Responses to earlier searches are ignored.
  async findNow() {
    const number = (this.latest += 1);
    const found = await this.find();
    if (number !== this.latest || !found) return;
    this.show(found);
    this.onShow(found);
  }

  close() {
    this.latest += 1;
    clearTimeout(this.timer);
    this.show([]);
  }

  show(found) {
    this.found = found;
    this.list.replaceChildren(...found.map((suggestion, index) => this.createItem(suggestion, index)));
    this.list.hidden = !found.length;
    if (this.input.role === "combobox") this.input.setAttribute("aria-expanded", String(found.length > 0));
    this.setActive(0);
  }

  createItem(suggestion, index) {
    const item = Object.assign(document.createElement("li"), { id: `${this.list.id}-${index}`, role: "option" });
    item.append(...this.describe(suggestion));
    // Before a click, the field would lose the focus, which closes the list.
    item.addEventListener("mousedown", (event) => {
      event.preventDefault();
      this.take(index);
    });
    return item;
  }

  take(index) {
    const suggestion = this.found[index];
    this.close();
    this.choose(suggestion);
  }

  setActive(index) {
    const items = [...this.list.children];
    this.active = items.length ? (index + items.length) % items.length : -1;
    items.forEach((item, at) => item.setAttribute("aria-selected", String(at === this.active)));
    const item = items[this.active];
    item?.scrollIntoView({ block: "nearest" });
    if (item) this.input.setAttribute("aria-activedescendant", item.id);
    else this.input.removeAttribute("aria-activedescendant");
  }

  handleKey(event) {
    if (event.isComposing || event.altKey || event.ctrlKey || event.metaKey) return;
    const isClosed = !this.found.length;
    const handlers = {
      ArrowDown: () => (isClosed ? this.findNow() : this.setActive(this.active + 1)),
      ArrowUp: () => this.setActive(this.active - 1),
      Enter: () => this.take(this.active),
      Escape: () => this.close(),
    };
    const opens = event.key === "ArrowDown" && this.input.role === "combobox";
    if (!handlers[event.key] || (isClosed && !opens)) return;
    event.preventDefault();
    handlers[event.key]();
  }
}
