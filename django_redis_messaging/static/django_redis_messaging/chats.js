// The list of chats: replaces the rows that changed, as the server pushes or as polling finds.

const common = await import(document.getElementById("drm-common").href);
const { Roving, byId, chosen, createConditionalGet, element, poll, putAt, root, showTimes, tellApart } = common;

const list = byId("rows");
let { title } = document;
const isFirstPage = "feed" in list.dataset;
let currentId = list.querySelector('[aria-current="page"]')?.closest("li").dataset.id;
const filter = byId("find-chat");
const get = createConditionalGet();
// Unread messages of each chat, as shown.
const counts = new Map([...list.children].map((row) => [row.dataset.id, parseInt(row.querySelector(".drm-badge")?.textContent ?? 0, 10)]));

function show(chats, hasMore) {
  const rows = new Map([...list.children].map((row) => [row.dataset.id, row]));
  let changed = false;
  chats.forEach((chat, index) => {
    const row = rows.get(chat.id);
    if (row?.dataset.version === chat.version) {
      putAt(list, row, index);
    } else {
      changed = true;
      replaceRow(row, element(chat.html), chat.id, index);
    }
    rows.delete(chat.id);
  });
  // If all chats are on the first page, the other rows are of chats that were left or deleted.
  if (!hasMore) for (const row of rows.values()) row.remove();
  if (changed) showMatching();
  return changed;
}

function replaceRow(oldRow, row, id, index) {
  const link = row.querySelector("a");
  if (id === currentId) link.setAttribute("aria-current", "page");
  const hadFocus = oldRow?.contains(document.activeElement);
  oldRow?.remove();
  putAt(list, row, index);
  if (hadFocus) link.focus();
}

async function update() {
  if (!isFirstPage) return false;
  const answer = await get(list.dataset.feed, { html: 1 });
  const changed = answer && show(answer.chats, answer.has_more);
  showTimes(list);
  if (answer) tell(answer.chats);
  return changed;
}

// Chats that have changed, or the versions of all.
function receive({ chats, gone, complete }) {
  if (!isFirstPage) return;
  const rows = [...list.children];
  const versions = (items) => items.map(({ id, version }) => `${id} ${version}`).join();
  if (complete && versions(chats) !== versions(rows.map((row) => row.dataset))) polling.now();
  if (complete) return;
  for (const id of gone) rows.find((row) => row.dataset.id === id)?.remove();
  for (const chat of chats) {
    const row = element(chat.html);
    const old = rows.find(({ dataset }) => dataset.id === chat.id);
    const others = [...list.children].filter(({ dataset }) => dataset.id !== chat.id);
    const index = others.findIndex((other) => isBefore(row, other));
    replaceRow(old, row, chat.id, index < 0 ? others.length : index);
  }
  showMatching();
  showTimes(list);
  tell(chats);
}

// The order of the server: by latest activity, then by id.
function isBefore({ dataset: one }, { dataset: other }) {
  return one.active === other.active ? one.id > other.id : Number(one.active) > Number(other.active);
}

// Tells of new unread messages, if the user has chosen that.
async function tell(chats) {
  const isNew = ({ id, unread, muted }) =>
    unread > (counts.get(id) ?? 0) && !muted && !(id === currentId && document.hasFocus());
  const told = chats.filter(isNew);
  for (const { id, unread } of chats) counts.set(id, unread);
  showTotal();
  if (!told.length || !(chosen("notify") || chosen("sound"))) return;
  const alerts = await import(root.dataset.alerts);
  for (const chat of told) alerts.tell(chat, list.querySelector(`[data-id="${CSS.escape(chat.id)}"] > a`));
}

// In the title of the page; without muted chats.
function showTotal() {
  const total = [...list.children].reduce((sum, { dataset }) => sum + ("muted" in dataset ? 0 : counts.get(dataset.id)), 0);
  document.title = total ? `(${total}) ${title}` : title;
}

// Another room is shown.
function setCurrent({ detail }) {
  currentId = detail.chat;
  title = detail.title;
  for (const { dataset, firstElementChild: link } of list.children) {
    if (dataset.id === currentId) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollToCurrent();
  roving.update(null);
  showTotal();
  setKeys();
  tellApart();
}

function scrollToCurrent() {
  list.querySelector('[aria-current="page"]')?.scrollIntoView({ block: "nearest" });
}

// Shows the rows that contain the text of the filter.
function showMatching() {
  tellApart();
  const wanted = filter.value.toLocaleLowerCase();
  for (const row of list.children) row.hidden = !row.textContent.toLocaleLowerCase().includes(wanted);
  roving.update();
  setKeys();
}

const shownLinks = () => [...list.querySelectorAll(".drm-row:not([hidden]) > a")];

// The keys for the next chat, the previous one, and the next unread one.
function setKeys() {
  const links = shownLinks();
  const at = links.findIndex((link) => link.ariaCurrent);
  const isUnread = (link) => link.matches(".drm-new *");
  const unread = links.slice(at + 1).find(isUnread) ?? links.find(isUnread);
  links.forEach((link, index) => {
    link.dataset.key = { [at + 1]: "j", [at - 1]: "k" }[index] ?? "";
    if (link === unread) link.dataset.key += " u";
  });
}

const roving = new Roving(list, shownLinks, (links) => links.find((link) => link.ariaCurrent) ?? links[0]);
showTimes(list);
showTotal();
setKeys();
filter.hidden = false;
filter.addEventListener("input", showMatching);
scrollToCurrent();
const polling = poll(update, { maxDelay: 4000, hiddenDelay: 30_000 });
document.addEventListener("drm:changed", polling.soon);
document.addEventListener("drm:room", setCurrent);
document.addEventListener("drm:live-chats", ({ detail }) => receive(detail));
