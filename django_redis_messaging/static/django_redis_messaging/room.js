// A room: polls for new messages, and acks messages once they have been visible on the screen.

const { RequestError, createConditionalGet, element, get, poll, post } = await import(document.getElementById("drm-common").href);

const log = document.getElementById("drm-log");
const scroll = document.getElementById("drm-scroll");
const status = document.getElementById("drm-status");
const seen = document.getElementById("drm-seen");
const title = document.querySelector("#drm-title bdi");
const GROUPING_INTERVAL = 300; // s, as in presentation.py
const END_DISTANCE = 80; // px: closer than this counts as scrolled to the end
const MARK_DELAY = 250; // ms
let cursor = log.dataset.cursor;
let edits = log.dataset.edits;
let moved = log.dataset.moved ?? "";
let reloading = false;
let outdated = false; // what is shown; the page must be reloaded
const getChanges = createConditionalGet();
let ackedId = 0;
let markTimer;

const messages = () => log.querySelectorAll(".drm-message[data-id]");
const atEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < END_DISTANCE;
const scrollToEnd = () => scroll.scrollTo({ top: scroll.scrollHeight });

// Groups a message under the name of the one before it, or inserts the day above it.
function group(item) {
  let before = item.previousElementSibling;
  if (before?.matches(".drm-unread")) before = before.previousElementSibling;
  const newDay = before?.dataset.day !== item.dataset.day;
  const close = Number(item.dataset.sent) - Number(before?.dataset.sent) < GROUPING_INTERVAL;
  item.classList.toggle("drm-follows", !newDay && close && before.dataset.sender === item.dataset.sender);
  if (newDay) item.before(createDay(item));
}

function createDay(item) {
  const day = document.createElement("li");
  day.className = "drm-day";
  day.dataset.day = item.dataset.day;
  day.append(Object.assign(document.createElement("span"), { textContent: item.dataset.dayLabel }));
  return day;
}

// Inserts a message at the position of its id. If it is there already, replaces it if it was edited.
export function show(message) {
  const old = document.getElementById(`m${message.id}`);
  const item = element(message.html);
  if (old) {
    if (old.dataset.edited !== item.dataset.edited) {
      item.classList.toggle("drm-follows", old.classList.contains("drm-follows"));
      old.replaceWith(item);
    }
    return;
  }
  document.getElementById("drm-no-messages")?.remove();
  const after = [...messages()].find((other) => Number(other.dataset.id) > message.id);
  log.insertBefore(item, after ?? log.querySelector(".drm-pending"));
  item.classList.add("drm-fresh");
  group(item);
}

function showError(error) {
  const failure = error instanceof RequestError ? error.message || status.dataset.away : status.dataset.failed;
  const text = error && failure;
  const permanent = [401, 403, 404].includes(error?.status);
  status.textContent = permanent ? `${text} ${status.dataset.reload}` : text || (outdated ? status.dataset.reload : "");
}

// Reloading the page would lose it: what is being typed, sent, or could not be sent.
function hasUnsentText() {
  return document.getElementById("drm-body")?.value.trim() || log.querySelector(".drm-pending");
}

function showGap(text) {
  const note = Object.assign(document.createElement("li"), { className: "drm-note", textContent: text });
  log.insertBefore(note, log.querySelector(".drm-pending"));
}

async function update() {
  if (reloading) return false;
  const wasAtEnd = atEnd();
  const page = await getChanges(log.dataset.feed, { after: cursor, edits, moved, html: 1 });
  markSoon();
  if (!page) return false;
  outdated = page.reset || page.edits_missed;
  if (outdated && !hasUnsentText()) {
    reloading = true;
    location.reload();
    return false;
  }
  if (page.reset) return false;
  if (page.gap) showGap(page.gap_text);
  page.messages.forEach(show);
  page.changed?.forEach((message) => document.getElementById(`m${message.id}`) && show(message));
  ({ cursor, moved } = page);
  if (!page.edits_missed) ({ edits } = page);
  // Write only changed texts: a screen reader announces each write.
  if ("seen" in page && seen.textContent !== page.seen) seen.textContent = page.seen;
  if ("title" in page && title.textContent !== page.title) title.textContent = page.title;
  if (page.messages.length && wasAtEnd) scrollToEnd();
  if (page.messages.length) document.dispatchEvent(new CustomEvent("drm:changed"));
  if (page.has_more) polling.soon();
  return page.messages.length > 0;
}

// The last message that is completely visible. Messages up to it count as read while the window has the focus.
function lastVisible() {
  const bottom = scroll.getBoundingClientRect().bottom + 2;
  return [...messages()].findLast((item) => item.getBoundingClientRect().bottom <= bottom);
}

function markSoon() {
  clearTimeout(markTimer);
  markTimer = setTimeout(markRead, MARK_DELAY);
}

async function markRead() {
  const item = lastVisible();
  if (document.hidden || !document.hasFocus() || !item || Number(item.dataset.id) <= ackedId) return;
  const previousId = ackedId;
  ackedId = Number(item.dataset.id);
  try {
    await post(log.dataset.ack, { up_to: item.dataset.cursor });
    document.dispatchEvent(new CustomEvent("drm:changed"));
  } catch {
    ackedId = previousId;
  }
}

// Inserts a page of older messages above, without moving the visible ones.
async function showOlder(event) {
  event.preventDefault();
  const link = event.currentTarget;
  const first = messages()[0];
  const page = await get(log.dataset.feed, { before: first.dataset.id, html: 1 });
  const distanceToEnd = scroll.scrollHeight - scroll.scrollTop;
  // Screen readers must not announce old messages.
  scroll.setAttribute("aria-live", "off");
  log.querySelector(".drm-day")?.remove();
  for (const message of page.messages) {
    first.before(element(message.html));
    group(first.previousElementSibling);
  }
  group(first);
  scroll.scrollTop = scroll.scrollHeight - distanceToEnd;
  link.hidden = !page.has_more;
  if (page.gap) link.after(Object.assign(document.createElement("p"), { textContent: page.gap_text }));
  setTimeout(() => scroll.setAttribute("aria-live", "polite"), 1000);
}

document.getElementById("drm-older")?.addEventListener("click", (event) => {
  showOlder(event).catch(showError);
});

// Delete a message without leaving the page.
log.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-change]");
  if (!form) return;
  event.preventDefault();
  try {
    show((await post(form.action, {}, { html: true })).message);
    log.parentElement.focus();
  } catch (error) {
    status.textContent = error.message || status.dataset.failed;
  }
});

// Close open menus on a click elsewhere, or with Escape.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll(".drm-actions[open], .drm-details[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && event.target.closest?.("details[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

let polling = { soon() {} };
if ("live" in log.dataset) {
  document.getElementById("drm-mark")?.remove();
  const unread = document.getElementById("drm-unread");
  if (!location.hash) unread ? unread.scrollIntoView() : scrollToEnd();
  polling = poll(update, { onResult: showError });
  addEventListener("focus", markSoon);
  scroll.addEventListener("scroll", markSoon, { passive: true });
  document.addEventListener("visibilitychange", markSoon);
  document.addEventListener("drm:sent", ({ detail }) => {
    show(detail);
    scrollToEnd();
    polling.soon();
  });
  markSoon();
}
