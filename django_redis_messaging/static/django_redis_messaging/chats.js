// The list of chats. Polls for changes, and replaces only the rows that changed.

const { createConditionalGet, element, poll, relativeTime } = await import(document.getElementById("drm-common").href);

const list = document.getElementById("drm-rows");
const title = document.title;
const isFirstPage = "feed" in list.dataset;
const currentId = list.querySelector('[aria-current="page"]')?.closest("li").dataset.id;
const filter = document.getElementById("drm-find-chat");
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
    if (row?.dataset.version === chat.version) {
      moveRow(row, index);
    } else {
      changed = true;
      replaceRow(row, element(chat.html), chat.id, index);
    }
    rows.delete(chat.id);
  });
  // If all chats fit on the first page, the remaining rows are chats that were left or deleted.
  if (!hasMore) for (const row of rows.values()) row.remove();
  if (changed) showMatching();
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
  if (!isFirstPage) return false;
  const answer = await get(list.dataset.feed, { html: 1 });
  updateTimes();
  if (!answer) return false;
  const { chats, unread, has_more: hasMore } = answer;
  const changed = show(chats, hasMore);
  updateTimes();
  document.title = unread ? `(${unread}) ${title}` : title;
  return changed;
}

// Shows the rows whose title or newest message contains the text of the filter.
function showMatching() {
  const wanted = filter.value.toLocaleLowerCase();
  for (const row of list.children) row.hidden = !row.textContent.toLocaleLowerCase().includes(wanted);
}

updateTimes();
filter.hidden = false;
filter.addEventListener("input", showMatching);
list.querySelector('[aria-current="page"]')?.scrollIntoView({ block: "nearest" });
const polling = poll(update, { maxDelay: 4000, hiddenDelay: 30_000 });
document.addEventListener("drm:changed", polling.soon);
