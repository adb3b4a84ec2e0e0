// Suggestions for a text field: the combobox pattern of WAI-ARIA.

const TYPING_DELAY = 120; // ms

const single = (found) => (found.length === 1 ? found[0] : null);

export class Listbox {
  // `find()` promises the suggestions for what is typed, null if that fails; `describe(suggestion)` returns what its item
  // contains; `only(suggestions)` the one that is meant if the user has not looked at them, or nothing if that isn't clear;
  // then `onUnclear(suggestions)` is called.
  constructor(input, list, { find, choose, describe, only = single, onShow = () => {}, onUnclear = () => {} }) {
    Object.assign(this, { input, list, find, choose, describe, only, onShow, onUnclear });
    Object.assign(this, { found: [], active: -1, latest: 0 });
    this.isCurrent = false; // whether what is shown was found for what is typed
    this.isCombobox = input.role === "combobox";
    input.setAttribute("aria-autocomplete", "list");
    input.setAttribute("aria-controls", list.id);
    input.addEventListener("input", () => this.findSoon());
    input.addEventListener("blur", () => this.close());
    // Capturing, before other handlers, which ignore events whose default is prevented.
    input.addEventListener("keydown", (event) => this.handleKey(event), { capture: true });
    this.show([]);
  }

  findSoon() {
    this.outdate();
    this.timer = setTimeout(() => this.findNow(), TYPING_DELAY);
  }

  // What is shown, and responses to earlier searches, are no longer for what is typed.
  outdate() {
    clearTimeout(this.timer);
    this.latest += 1;
    this.isCurrent = false;
  }

  // Returns whether the suggestions are shown: not if that failed, or if more was typed meanwhile.
  async findNow() {
    this.outdate();
    const number = this.latest;
    const found = await this.find();
    if (number !== this.latest || !found) return false;
    this.show(found);
    this.isCurrent = true;
    this.onShow(found);
    return true;
  }

  // Takes what is typed now as a choice, if it is clear who or what is meant. Returns whether it is; null without an answer.
  async settle() {
    if (!(await this.findNow())) return null;
    const { found } = this;
    const suggestion = this.only(found);
    if (!suggestion) {
      this.onUnclear(found);
      return false;
    }
    this.close();
    this.choose(suggestion);
    return true;
  }

  close() {
    this.outdate();
    this.show([]);
  }

  show(found) {
    this.found = found;
    this.list.replaceChildren(...found.map((suggestion, index) => this.createItem(suggestion, index)));
    this.list.hidden = !found.length;
    if (this.isCombobox) this.input.setAttribute("aria-expanded", String(found.length > 0));
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

  // Enter before the suggestions for what is typed are there: those that are shown are for less, or for something else.
  async enterSoon() {
    const isSettled = await this.settle();
    if (this.isCombobox || isSettled !== false || this.found.length) return;
    // There is nothing to choose: Enter means what it means without suggestions, in the end a new line.
    const { input } = this;
    const enter = new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true });
    if (!input.dispatchEvent(enter)) return;
    input.setRangeText("\n", input.selectionStart, input.selectionEnd, "end");
    input.dispatchEvent(new Event("input"));
  }

  handleKey(event) {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const isClosed = !this.found.length;
    const hasText = this.isCombobox && this.input.value.trim();
    if (event.key === "Enter" && (isClosed ? hasText : !this.isCurrent)) {
      event.preventDefault();
      this.enterSoon();
      return;
    }
    const handlers = {
      ArrowDown: () => (isClosed ? this.findNow() : this.setActive(this.active + 1)),
      ArrowUp: () => this.setActive(this.active - 1),
      Enter: () => this.take(this.active),
      Escape: () => this.close(),
    };
    const opens = event.key === "ArrowDown" && this.isCombobox;
    if (!handlers[event.key] || (isClosed && !opens)) return;
    event.preventDefault();
    handlers[event.key]();
  }
}
