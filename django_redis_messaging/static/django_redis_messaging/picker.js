// The people picker: turns the search field into a combobox (WAI-ARIA pattern), and selected people into chips.
// Without this module, the form works with its search button and checkboxes.

const { get } = await import(document.getElementById("drm-common").href);

const picker = document.getElementById("drm-picker");
const input = document.getElementById("drm-q");
const options = document.getElementById("drm-options");
const chips = document.getElementById("drm-chips");
const announcement = document.getElementById("drm-announcement");
const texts = picker.dataset;
const TYPING_DELAY = 120; // ms
let activeIndex = -1;
let timer;
let latest = 0; // number of the latest search: responses to earlier ones are ignored

const selectedIds = () => new Set([...chips.querySelectorAll("input")].map((field) => field.value));

function createChip(id, text) {
  const item = Object.assign(document.createElement("li"), { className: "drm-chip" });
  const name = Object.assign(document.createElement("bdi"), { textContent: text });
  const field = Object.assign(document.createElement("input"), { type: "hidden", name: "to", value: id });
  const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "×" });
  remove.setAttribute("aria-label", `${texts.remove} ${text}`);
  remove.addEventListener("click", () => removeChip(item, text));
  item.append(field, name, remove);
  return item;
}

function removeChip(item, text) {
  item.remove();
  announcement.textContent = `${texts.removed} ${text}`;
  input.focus();
}

function select(id, text) {
  if (!selectedIds().has(id)) chips.append(createChip(id, text));
  announcement.textContent = `${texts.added} ${text}`;
  input.value = "";
  closeOptions();
  input.focus();
}

function closeOptions() {
  latest += 1;
  clearTimeout(timer);
  options.hidden = true;
  options.replaceChildren();
  activeIndex = -1;
  input.setAttribute("aria-expanded", "false");
  input.removeAttribute("aria-activedescendant");
}

function createOption({ id, text, initials, hue }, index) {
  const item = Object.assign(document.createElement("li"), { id: `drm-option-${index}` });
  item.setAttribute("role", "option");
  item.setAttribute("aria-selected", "false");
  const avatar = Object.assign(document.createElement("span"), { textContent: initials });
  avatar.className = `drm-avatar drm-hue-${Number(hue)}`;
  avatar.setAttribute("aria-hidden", "true");
  item.append(avatar, Object.assign(document.createElement("bdi"), { textContent: text }));
  // mousedown, because before a click the input loses the focus, which closes the options.
  item.addEventListener("mousedown", (event) => {
    event.preventDefault();
    select(id, text);
  });
  Object.assign(item.dataset, { value: id, text });
  return item;
}

function showOptions(results) {
  const people = results.filter((person) => !selectedIds().has(person.id));
  options.replaceChildren(...people.map(createOption));
  options.hidden = people.length === 0;
  input.setAttribute("aria-expanded", String(people.length > 0));
  announcement.textContent = people.length ? `${texts.found} ${people.length}` : texts.none;
  setActive(people.length ? 0 : -1);
}

function setActive(index) {
  options.children[activeIndex]?.setAttribute("aria-selected", "false");
  activeIndex = index;
  const item = options.children[activeIndex];
  if (!item) return input.removeAttribute("aria-activedescendant");
  item.setAttribute("aria-selected", "true");
  item.scrollIntoView({ block: "nearest" });
  input.setAttribute("aria-activedescendant", item.id);
}

async function search() {
  const number = (latest += 1);
  try {
    const { results } = await get(texts.suggest, { q: input.value });
    if (number === latest) showOptions(results);
  } catch (error) {
    if (number === latest) announcement.textContent = error.message || texts.failed;
  }
}

const keyHandlers = {
  ArrowDown: () => (options.hidden ? search() : setActive((activeIndex + 1) % options.children.length)),
  ArrowUp: () => options.hidden || setActive((activeIndex - 1 + options.children.length) % options.children.length),
  Home: () => options.hidden || setActive(0),
  End: () => options.hidden || setActive(options.children.length - 1),
  Escape: closeOptions,
  Enter: () => {
    const item = options.children[activeIndex];
    if (item) select(item.dataset.value, item.dataset.text);
  },
};

function handleKey(event) {
  if (event.isComposing) return;
  if (event.key === "Backspace" && !input.value && chips.lastElementChild) {
    removeChip(chips.lastElementChild, chips.lastElementChild.querySelector("bdi").textContent);
    return;
  }
  const movesCursor = (event.key === "Home" || event.key === "End") && options.hidden;
  if (!keyHandlers[event.key] || movesCursor || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  keyHandlers[event.key]();
}

function enhance() {
  for (const item of [...chips.children]) {
    item.replaceWith(createChip(item.querySelector("input").value, item.querySelector("bdi").textContent));
  }
  document.getElementById("drm-search").remove();
  document.getElementById("drm-found").remove();
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-controls", options.id);
  input.setAttribute("aria-expanded", "false");
  input.addEventListener("keydown", handleKey);
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, TYPING_DELAY);
  });
  input.addEventListener("blur", closeOptions);
}

enhance();
