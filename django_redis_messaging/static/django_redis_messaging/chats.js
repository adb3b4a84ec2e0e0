// The list of chats. Polls for changes, and replaces only the rows that changed.

const { createConditionalGet, element, poll, relativeTime } = await import(document.getElementById("drm-common").href);

const list = document.getElementById("drm-rows");
const title = document.title;
const currentId = list.querySelector('[aria-current="page"]')?.closest("li").dataset.id;
const htmlById = new Map();
const get = createConditionalGet();

function updateTimes() {
  for (const time of list.querySelectorAll("time")) {
    time.textContent = relativeTime(new Date(time.dateTime), list.dataset.now);
  }
}

function moveRow(row, index) {
  if (list.children[index] !== row) list.insertBefore(row, list.children[index] ?? null);
}

function show(chats, hasMore) {
  const rows = new Map([...list.children].map((row) => [row.dataset.id, row]));
  let changed = false;
  chats.forEach((chat, index) => {
    const row = rows.get(chat.id);
    if (row && htmlById.get(chat.id) === chat.html) {
      moveRow(row, index);
    } else {
      changed = true;
      replaceRow(row, element(chat.html), chat.id, index);
      htmlById.set(chat.id, chat.html);
    }
    rows.delete(chat.id);
  });
  // If all chats fit on the first page, the remaining rows are chats that were left or deleted.
  if (!hasMore) for (const row of rows.values()) row.remove();
  return changed;
}

function replaceRow(oldRow, row, id, index) {
  const link = row.querySelector("a");
  if (id === currentId) link.setAttribute("aria-current", "page");
  const hadFocus = oldRow?.contains(document.activeElement);
  oldRow?.remove();
  moveRow(row, index);
  if (hadFocus) link.focus();
}

async function update() {
  const answer = await get(list.dataset.feed, { html: 1 });
  updateTimes();
  if (!answer) return false;
  const { chats, unread, has_more: hasMore } = answer;
  const changed = show(chats, hasMore);
  updateTimes();
  document.title = unread ? `(${unread}) ${title}` : title;
  return changed;
}

updateTimes();
const polling = poll(update);
document.addEventListener("drm:changed", polling.soon);
