// Choosing people: a combobox (its pattern: WAI-ARIA) whose choices become chips. The page's own form with
// its search button and boxes stays what it is where this doesn't run.

const { get } = await import(document.getElementById("drm-common").href);

const picker = document.getElementById("drm-picker");
const input = document.getElementById("drm-q");
const options = document.getElementById("drm-options");
const chips = document.getElementById("drm-chips");
const said = document.getElementById("drm-said");
const words = picker.dataset;
const PAUSE = 120;
let active = -1;
let timer;
let turn = 0;

const chosen = () => new Set([...chips.querySelectorAll("input")].map((field) => field.value));

function chip(id, text) {
  const item = Object.assign(document.createElement("li"), { className: "drm-chip" });
  const name = Object.assign(document.createElement("bdi"), { textContent: text });
  const field = Object.assign(document.createElement("input"), { type: "hidden", name: "to", value: id });
  const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "×" });
  remove.setAttribute("aria-label", `${words.remove} ${text}`);
  remove.addEventListener("click", () => drop(item, text));
  item.append(field, name, remove);
  return item;
}

function drop(item, text) {
  item.remove();
  said.textContent = `${words.removed} ${text}`;
  input.focus();
}

function choose(id, text) {
  if (!chosen().has(id)) chips.append(chip(id, text));
  said.textContent = `${words.added} ${text}`;
  input.value = "";
  close();
  input.focus();
}

function close() {
  turn += 1;
  clearTimeout(timer);
  options.hidden = true;
  options.replaceChildren();
  active = -1;
  input.setAttribute("aria-expanded", "false");
  input.removeAttribute("aria-activedescendant");
}

function option({ id, text, initials, hue }, at) {
  const item = Object.assign(document.createElement("li"), { id: `drm-option-${at}` });
  item.setAttribute("role", "option");
  item.setAttribute("aria-selected", "false");
  const avatar = Object.assign(document.createElement("span"), { textContent: initials });
  avatar.className = `drm-avatar drm-hue-${Number(hue)}`;
  avatar.setAttribute("aria-hidden", "true");
  item.append(avatar, Object.assign(document.createElement("bdi"), { textContent: text }));
  // On mousedown: a click would take the focus away before.
  item.addEventListener("mousedown", (event) => {
    event.preventDefault();
    choose(id, text);
  });
  Object.assign(item.dataset, { value: id, text });
  return item;
}

function show(results) {
  const left = results.filter((person) => !chosen().has(person.id));
  options.replaceChildren(...left.map(option));
  options.hidden = left.length === 0;
  input.setAttribute("aria-expanded", String(left.length > 0));
  said.textContent = left.length ? `${words.found} ${left.length}` : words.none;
  move(left.length ? 0 : -1);
}

function move(to) {
  options.children[active]?.setAttribute("aria-selected", "false");
  active = to;
  const item = options.children[active];
  if (!item) return input.removeAttribute("aria-activedescendant");
  item.setAttribute("aria-selected", "true");
  item.scrollIntoView({ block: "nearest" });
  input.setAttribute("aria-activedescendant", item.id);
}

async function search() {
  const mine = (turn += 1);
  const wanted = input.value;
  try {
    const { results } = await get(words.suggest, { q: wanted });
    // An answer that is overtaken by what was typed since is none.
    if (mine === turn) show(results);
  } catch (error) {
    if (mine === turn) said.textContent = error.message || words.failed;
  }
}

const keys = {
  ArrowDown: () => (options.hidden ? search() : move((active + 1) % options.children.length)),
  ArrowUp: () => options.hidden || move((active - 1 + options.children.length) % options.children.length),
  Home: () => options.hidden || move(0),
  End: () => options.hidden || move(options.children.length - 1),
  Escape: close,
  Enter: () => {
    const item = options.children[active];
    if (item) choose(item.dataset.value, item.dataset.text);
  },
};

function press(event) {
  if (event.isComposing) return;
  if (event.key === "Backspace" && !input.value && chips.lastElementChild) {
    drop(chips.lastElementChild, chips.lastElementChild.querySelector("bdi").textContent);
    return;
  }
  const inText = (event.key === "Home" || event.key === "End") && options.hidden;
  if (!keys[event.key] || inText || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  keys[event.key]();
}

function begin() {
  for (const item of [...chips.children]) {
    item.replaceWith(chip(item.querySelector("input").value, item.querySelector("bdi").textContent));
  }
  document.getElementById("drm-search").remove();
  document.getElementById("drm-found").remove();
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-controls", options.id);
  input.setAttribute("aria-expanded", "false");
  input.addEventListener("keydown", press);
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  });
  input.addEventListener("blur", close);
}

begin();
