// A room: what is new in it comes by polls; what was read is acked once it was in sight.

const { element, get, poll, post } = await import(document.getElementById("drm-common").href);

const log = document.getElementById("drm-log");
const scroll = document.getElementById("drm-scroll");
const status = document.getElementById("drm-status");
const seen = document.getElementById("drm-seen");
const title = document.querySelector("#drm-title bdi");
const TOGETHER = 300;
const NEAR = 80;
let cursor = log.dataset.cursor;
let edits = log.dataset.edits;
let acked = 0;
let marking;

const messages = () => log.querySelectorAll(".drm-message[data-id]");
const atEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
const toEnd = () => scroll.scrollTo({ top: scroll.scrollHeight });

// A message stands under the name of the one before it, or under a new day.
function fit(item) {
  let before = item.previousElementSibling;
  if (before?.matches(".drm-unread")) before = before.previousElementSibling;
  const another = before?.dataset.day !== item.dataset.day;
  const close = Number(item.dataset.sent) - Number(before?.dataset.sent) < TOGETHER;
  item.classList.toggle("drm-follows", !another && close && before.dataset.sender === item.dataset.sender);
  if (another) item.before(day(item));
}

function day(item) {
  const line = document.createElement("li");
  line.className = "drm-day";
  line.dataset.day = item.dataset.day;
  line.append(Object.assign(document.createElement("span"), { textContent: item.dataset.dayLabel }));
  return line;
}

// Puts a message where its id belongs; the one that is there already is replaced only if it changed.
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
  document.getElementById("drm-silence")?.remove();
  const after = [...messages()].find((other) => Number(other.dataset.id) > message.id);
  log.insertBefore(item, after ?? log.querySelector(".drm-pending"));
  item.classList.add("drm-fresh");
  fit(item);
}

function warn(error) {
  const text = error && (error.message || status.dataset.away);
  const over = [401, 403, 404].includes(error?.status);
  status.textContent = over ? `${text} ${status.dataset.reload}` : text || "";
}

function showGap(text) {
  const note = Object.assign(document.createElement("li"), { className: "drm-note", textContent: text });
  log.insertBefore(note, log.querySelector(".drm-pending"));
}

async function look() {
  const stay = !atEnd();
  const page = await get(log.dataset.feed, { after: cursor, edits, html: 1 });
  if (page.reset) location.reload();
  if (page.gap) showGap(page.gap_text);
  page.messages.forEach(show);
  page.changed?.forEach((message) => document.getElementById(`m${message.id}`) && show(message));
  cursor = page.messages.at(-1)?.cursor ?? cursor;
  edits = page.edits;
  // Only what differs is written: a screen reader would say it again.
  if (seen.textContent !== page.seen) seen.textContent = page.seen;
  if (title.textContent !== page.title) title.textContent = page.title;
  if (page.messages.length && !stay) toEnd();
  markSoon();
  if (page.messages.length) document.dispatchEvent(new CustomEvent("drm:changed"));
  if (page.has_more) polling.soon();
  return page.messages.length > 0;
}

// Read is what was on the screen of somebody who was there: up to the last message that is whole in sight.
function lastInSight() {
  const bottom = scroll.getBoundingClientRect().bottom + 2;
  return [...messages()].findLast((item) => item.getBoundingClientRect().bottom <= bottom);
}

function markSoon() {
  clearTimeout(marking);
  marking = setTimeout(markRead, 250);
}

async function markRead() {
  const item = lastInSight();
  if (document.hidden || !document.hasFocus() || !item || Number(item.dataset.id) <= acked) return;
  const before = acked;
  acked = Number(item.dataset.id);
  try {
    await post(log.dataset.ack, { up_to: item.dataset.cursor });
    document.dispatchEvent(new CustomEvent("drm:changed"));
  } catch {
    acked = before;
  }
}

// Older messages come in place, and what one looks at stays where it is.
async function older(event) {
  event.preventDefault();
  const link = event.currentTarget;
  const first = messages()[0];
  const page = await get(log.dataset.feed, { before: first.dataset.id, html: 1 });
  const below = scroll.scrollHeight - scroll.scrollTop;
  // They are nothing new, so nothing to be read aloud.
  scroll.setAttribute("aria-live", "off");
  log.querySelector(".drm-day")?.remove();
  for (const message of page.messages) {
    first.before(element(message.html));
    fit(first.previousElementSibling);
  }
  fit(first);
  scroll.scrollTop = scroll.scrollHeight - below;
  link.hidden = !page.has_more;
  if (page.gap) link.after(Object.assign(document.createElement("p"), { textContent: page.gap_text }));
  setTimeout(() => scroll.setAttribute("aria-live", "polite"), 1000);
}

document.getElementById("drm-older")?.addEventListener("click", (event) => {
  older(event).catch(warn);
});

// Deleting: the form's own answer, without leaving the page.
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

// An open menu closes when something else is chosen, or with Escape.
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
  if (!location.hash) unread ? unread.scrollIntoView() : toEnd();
  polling = poll(look, { away: warn });
  addEventListener("focus", markSoon);
  scroll.addEventListener("scroll", markSoon, { passive: true });
  document.addEventListener("visibilitychange", markSoon);
  document.addEventListener("drm:sent", ({ detail }) => {
    show(detail);
    toEnd();
    polling.soon();
  });
  markSoon();
}
