// The list of chats: replaces the rows that changed, as the server pushes or as polling finds.

const common = await import(document.getElementById("drm-common").href);
const { byId, chosen, createConditionalGet, element, poll, putAt, root, showTimes } = common;

const list = byId("rows");
const title = document.title;
const isFirstPage = "feed" in list.dataset;
const currentId = list.querySelector('[aria-current="page"]')?.closest("li").dataset.id;
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

// Chats that have changed, the latest one last, or the versions of all.
function receive({ chats, gone, complete }) {
  if (!isFirstPage) return;
  const rows = [...list.children];
  const versions = (items) => items.map(({ id, version }) => `${id} ${version}`).join();
  if (complete && versions(chats) !== versions(rows.map((row) => row.dataset))) polling.now();
  if (complete) return;
  for (const id of gone) rows.find((row) => row.dataset.id === id)?.remove();
  for (const chat of chats) {
    const old = rows.find((row) => row.dataset.id === chat.id);
    const row = element(chat.html);
    replaceRow(old, row, chat.id, timeOf(row) === timeOf(old) ? [...list.children].indexOf(old) : 0);
  }
  showMatching();
  showTimes(list);
  tell(chats);
}

const timeOf = (row) => row?.querySelector("time")?.dateTime;

// Tells of new unread messages, if the user has chosen that.
async function tell(chats) {
  const isNew = ({ id, unread, muted }) =>
    unread > (counts.get(id) ?? 0) && !muted && !(id === currentId && document.hasFocus());
  const told = chats.filter(isNew);
  for (const { id, unread } of chats) counts.set(id, unread);
  const total = [...list.children].reduce((sum, row) => sum + counts.get(row.dataset.id), 0);
  document.title = total ? `(${total}) ${title}` : title;
  if (!told.length || !(chosen("notify") || chosen("sound"))) return;
  const alerts = await import(root.dataset.alerts);
  for (const chat of told) alerts.tell(chat, list.querySelector(`[data-id="${CSS.escape(chat.id)}"] > a`));
}

// Shows the rows that contain the text of the filter.
function showMatching() {
  const wanted = filter.value.toLocaleLowerCase();
  for (const row of list.children) row.hidden = !row.textContent.toLocaleLowerCase().includes(wanted);
  setKeys();
}

// The keys for the next chat, the previous one, and the next unread one.
function setKeys() {
  const links = [...list.querySelectorAll(".drm-row:not([hidden]) > a")];
  const at = links.findIndex((link) => link.ariaCurrent);
  const isUnread = (link) => link.matches(".drm-new *");
  const unread = links.slice(at + 1).find(isUnread) ?? links.find(isUnread);
  links.forEach((link, index) => {
    link.dataset.key = { [at + 1]: "j", [at - 1]: "k" }[index] ?? "";
    if (link === unread) link.dataset.key += " u";
  });
}

showTimes(list);
setKeys();
filter.hidden = false;
filter.addEventListener("input", showMatching);
list.querySelector('[aria-current="page"]')?.scrollIntoView({ block: "nearest" });
const polling = poll(update, { maxDelay: 4000, hiddenDelay: 30_000 });
document.addEventListener("drm:changed", polling.soon);
document.addEventListener("drm:live-chats", ({ detail }) => receive(detail));
