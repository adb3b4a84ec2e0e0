// The list of chats: kept fresh by polls; only rows that changed are touched.

const { ago, get, element, poll } = await import(document.getElementById("drm-common").href);

const list = document.getElementById("drm-rows");
const title = document.title;
const here = list.querySelector('[aria-current="page"]')?.closest("li").dataset.id;
const markup = new Map();

function showTimes() {
  for (const time of list.querySelectorAll("time")) {
    time.textContent = ago(new Date(time.dateTime), list.dataset.now);
  }
}

function place(row, at) {
  if (list.children[at] !== row) list.insertBefore(row, list.children[at] ?? null);
}

function show(chats) {
  const rows = new Map([...list.children].map((row) => [row.dataset.id, row]));
  let changed = false;
  chats.forEach((chat, at) => {
    const old = rows.get(chat.id);
    if (old && markup.get(chat.id) === chat.html) {
      place(old, at);
    } else {
      changed = true;
      exchange(old, element(chat.html), chat.id, at);
      markup.set(chat.id, chat.html);
    }
    rows.delete(chat.id);
  });
  // Rows below the first page stay; what the first page had and hasn't any more was left or deleted.
  if (chats.length < 100) for (const row of rows.values()) row.remove();
  return changed;
}

function exchange(old, row, id, at) {
  const link = row.querySelector("a");
  if (id === here) link.setAttribute("aria-current", "page");
  const focused = old?.contains(document.activeElement);
  old?.remove();
  place(row, at);
  if (focused) link.focus();
}

async function look() {
  const { chats, unread } = await get(list.dataset.feed, { html: 1 });
  const changed = show(chats);
  showTimes();
  document.title = unread ? `(${unread}) ${title}` : title;
  return changed;
}

showTimes();
const polling = poll(look);
document.addEventListener("drm:changed", polling.soon);
