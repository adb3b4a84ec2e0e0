// The people picker: turns the search field into a combobox, and selected people into chips. Without this module, the form
// works with its search button and checkboxes.

const { get } = await import(document.getElementById("drm-common").href);

const picker = document.getElementById("drm-picker");
const input = document.getElementById("drm-q");
const chips = document.getElementById("drm-chips");
const nobody = document.getElementById("drm-nobody");
const announcement = document.getElementById("drm-announcement");
const { dataset: texts } = picker;
const { Listbox } = await import(texts.listbox);

const create = (tag, properties) => Object.assign(document.createElement(tag), properties);
const selectedIds = () => new Set([...chips.querySelectorAll("input")].map((field) => field.value));

function createChip(id, text) {
  const item = create("li", { className: "drm-chip" });
  const remove = create("button", { type: "button", textContent: "×", ariaLabel: `${texts.remove} ${text}` });
  remove.addEventListener("click", () => removeChip(item, text));
  item.append(create("input", { type: "hidden", name: "to", value: id }), create("bdi", { textContent: text }), remove);
  return item;
}

function removeChip(item, text) {
  item.remove();
  announcement.textContent = `${texts.removed} ${text}`;
  input.focus();
}

function select({ id, text }) {
  chips.append(createChip(id, text));
  announcement.textContent = `${texts.added} ${text}`;
  input.value = "";
}

async function find() {
  try {
    const { results } = await get(texts.suggest, { q: input.value });
    return results.filter((person) => !selectedIds().has(person.id));
  } catch (error) {
    announcement.textContent = error.message || texts.failed;
    return null;
  }
}

function describe({ text, initials, hue }) {
  const avatar = create("span", { className: `drm-avatar drm-hue-${Number(hue)}`, textContent: initials, ariaHidden: "true" });
  return [avatar, create("bdi", { textContent: text })];
}

function announce({ length }) {
  nobody.hidden = length > 0;
  announcement.textContent = length ? `${texts.found} ${length}` : texts.none;
}

for (const item of [...chips.children]) {
  item.replaceWith(createChip(item.querySelector("input").value, item.querySelector("bdi").textContent));
}
document.getElementById("drm-search").remove();
document.getElementById("drm-found").remove();
input.role = "combobox";
new Listbox(input, document.getElementById("drm-options"), { find, choose: select, describe, onShow: announce });
input.addEventListener("blur", () => (nobody.hidden = true));
input.addEventListener("keydown", (event) => {
  const last = chips.lastElementChild;
  if (event.key === "Escape") nobody.hidden = true;
  else if (event.key === "Backspace" && !input.value && last) removeChip(last, last.querySelector("bdi").textContent);
});
