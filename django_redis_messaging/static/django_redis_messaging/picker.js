// Fields to choose people: turns the search field into a combobox, and chosen people into chips. Without this module, forms
// work with checkboxes.

const { common, listbox } = document.querySelector("[data-people]").dataset;
const { get } = await import(common);
const { Listbox } = await import(listbox);

const create = (tag, properties) => Object.assign(document.createElement(tag), properties);

class People {
  constructor(field) {
    field.dataset.ready = "";
    this.field = field;
    this.texts = field.dataset;
    this.input = field.querySelector("[type=search]");
    [this.chips, this.options, this.results] = field.querySelectorAll("ul");
    this.nobody = field.querySelector(".drm-note");
    this.announcement = field.querySelector("[role=status]");
    this.prepare();
  }

  prepare() {
    const { field, input, nobody, options, results } = this;
    for (const item of [...this.chips.children]) {
      item.replaceWith(this.createChip(item.querySelector("input").value, item.querySelector("bdi").textContent));
    }
    field.querySelector("button.drm-search")?.remove();
    results.remove();
    options.id = `${input.id}-options`;
    input.role = "combobox";
    new Listbox(input, options, {
      find: () => this.find(),
      choose: (person) => this.choose(person),
      describe,
      onShow: (found) => this.announce(found),
    });
    input.addEventListener("blur", () => (nobody.hidden = true));
    input.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") nobody.hidden = true;
      else if (key === "Backspace" && !input.value) this.chips.lastElementChild?.querySelector("button").click();
    });
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

  choose({ id, text }) {
    if (!("multiple" in this.texts)) this.chips.replaceChildren();
    this.chips.append(this.createChip(id, text));
    this.input.value = "";
    this.changed(`${this.texts.added} ${text}`);
  }

  changed(text) {
    this.announcement.textContent = text;
    this.input.focus();
    this.field.dispatchEvent(new Event("change", { bubbles: true }));
  }

  async find() {
    const chosen = new Set([...this.chips.querySelectorAll("input")].map((input) => input.value));
    try {
      const { results } = await get(this.texts.suggest, { q: this.input.value });
      return results.filter((person) => !chosen.has(person.id));
    } catch (error) {
      this.announcement.textContent = error.message || this.texts.failed;
      return null;
    }
  }

  announce({ length }) {
    this.nobody.hidden = length > 0;
    this.announcement.textContent = length ? `${this.texts.found} ${length}` : this.texts.none;
  }
}

function describe({ text, initials, hue }) {
  const avatar = create("span", { className: `drm-avatar drm-hue-${Number(hue)}`, textContent: initials, ariaHidden: "true" });
  return [avatar, create("bdi", { textContent: text })];
}

function prepareAll() {
  for (const field of document.querySelectorAll("[data-people]:not([data-ready], .empty-form *)")) new People(field);
}

prepareAll();
document.addEventListener("formset:added", prepareAll); // a row was added to an inline of the admin
