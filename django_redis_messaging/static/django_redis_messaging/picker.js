// Fields to choose people: a combobox, and a chip for each person.

const { common, listbox } = document.querySelector("[data-people]").dataset;
const { create, get } = await import(common);
const { Listbox } = await import(listbox);

class People {
  constructor(field) {
    field.dataset.ready = "";
    const input = field.querySelector("[type=search]");
    const [chips, options, results] = field.querySelectorAll("ul");
    const nobody = field.querySelector(".drm-note");
    Object.assign(this, { field, input, chips, nobody, texts: field.dataset });
    this.announcement = field.querySelector("[role=status]");
    for (const item of [...chips.children]) {
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
      else if (key === "Backspace" && !input.value) chips.lastElementChild?.querySelector("button").click();
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

  choose({ id, text: name, hint }) {
    const text = hint ? `${name} (${hint})` : name;
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

function describe({ text, hint, initials, hue }) {
  const avatar = create("span", { className: `drm-avatar drm-hue-${Number(hue)}`, textContent: initials, ariaHidden: "true" });
  return [avatar, create("bdi", { textContent: text }), ...(hint ? [create("small", { textContent: hint })] : [])];
}

function prepareAll() {
  for (const field of document.querySelectorAll("[data-people]:not([data-ready], .empty-form *)")) new People(field);
}

prepareAll();
document.addEventListener("formset:added", prepareAll); // a row was added to an inline of the admin
