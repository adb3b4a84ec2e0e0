// Fields to choose people: a combobox, and a chip for each person.

const { common, listbox } = document.querySelector("[data-people]").dataset;
const { create, createFace, fold, get } = await import(common);
const { Listbox } = await import(listbox);

class People {
  constructor(field) {
    field.dataset.ready = "";
    const input = field.querySelector("[type=search]");
    const [chips, options, results] = field.querySelectorAll("ul");
    const nobody = field.querySelector(".drm-note");
    Object.assign(this, { field, input, chips, nobody, texts: field.dataset });
    this.announcement = field.querySelector("[role=status]");
    for (const item of Array.from(chips.children)) {
      item.replaceWith(this.createChip(item.querySelector("input").value, item.querySelector("bdi").textContent));
    }
    field.querySelector("button.drm-search")?.remove();
    results.remove();
    options.id = `${input.id}-options`;
    input.role = "combobox";
    this.listbox = new Listbox(input, options, {
      find: () => this.find(),
      choose: (person) => this.choose(person),
      describe: createFace,
      only: () => this.meant,
      onShow: (found) => this.announce(found),
      onUnclear: (found) => this.ask(found),
    });
    input.form?.addEventListener("submit", (event) => this.check(event));
    input.addEventListener("focus", () => input.value.trim() && this.listbox.findSoon());
    input.addEventListener("blur", () => (nobody.hidden = true));
    input.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") nobody.hidden = true;
      else if (key === "Backspace" && !input.value) chips.lastElementChild?.querySelector("button").click();
    });
    if (document.activeElement === input && input.value.trim()) this.listbox.findSoon(); // typed before this script was there
  }

  // The name of the field is that of its search field, without what marks the typed text.
  get name() {
    return this.texts.name ?? this.input.name.slice(0, -2);
  }

  createChip(id, text) {
    const item = create("li", { className: "drm-chip" });
    const remove = create("button", { type: "button", textContent: "×", ariaLabel: `${this.texts.remove} ${text}` });
    remove.addEventListener("click", () => {
      item.remove();
      this.changed(`${this.texts.removed} ${text}`);
    });
    item.append(create("input", { type: "hidden", name: this.name, value: id }), create("bdi", { textContent: text }), remove);
    return item;
  }

  get chosen() {
    return [...this.chips.querySelectorAll("input")].map((input) => input.value);
  }

  choose({ id, name: text }) {
    if (!("multiple" in this.texts)) this.chips.replaceChildren();
    if (!this.chosen.includes(id)) this.chips.append(this.createChip(id, text));
    this.input.value = "";
    this.changed(`${this.texts.added} ${text}`);
  }

  // Announces a text; a problem is also shown.
  say(text, { isProblem = false } = {}) {
    this.announcement.className = isProblem ? "drm-error" : "drm-hidden";
    this.announcement.textContent = text;
  }

  changed(text) {
    this.say(text);
    this.input.focus();
    this.field.dispatchEvent(new Event("change", { bubbles: true }));
  }

  async find() {
    try {
      const { results } = await get(this.texts.suggest, { q: this.input.value });
      this.meant = meantBy(this.input.value, results);
      const { chosen } = this;
      return results.filter(({ id }) => !chosen.includes(id));
    } catch (error) {
      this.say(error.message || this.texts.failed, { isProblem: true });
      return null;
    }
  }

  announce({ length }) {
    this.nobody.hidden = length > 0;
    this.say(length ? `${this.texts.found} ${length}` : this.texts.none);
  }

  // What was typed is not clear: nothing is chosen or sent.
  ask({ length }) {
    this.nobody.hidden = true;
    this.say(length ? this.texts.several.replace("{name}", this.input.value.trim()) : this.texts.none, { isProblem: true });
  }

  // A name that was typed and not chosen is not left out in silence. Several fields of a form check theirs one by one.
  async check(event) {
    if (event.defaultPrevented || event.submitter?.formNoValidate || !this.input.value.trim()) return;
    event.preventDefault();
    this.input.focus();
    if (await this.listbox.settle()) event.target.requestSubmit(event.submitter);
  }
}

// The one person whom a typed name can mean: the only one with exactly this name, or the only one who was found.
function meantBy(typed, people) {
  const exact = people.filter(({ text }) => fold(text) === fold(typed.trim()));
  const fitting = exact.length ? exact : people;
  return fitting.length === 1 ? fitting[0] : null;
}

function prepareAll() {
  for (const field of document.querySelectorAll("[data-people]:not([data-ready], .empty-form *)")) new People(field);
}

prepareAll();
document.addEventListener("formset:added", prepareAll); // a row was added to an inline of the admin
