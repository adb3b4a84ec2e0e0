// A room: loads more while the user scrolls, shows changes that are pushed or polled, and acks what was in sight.

const load = (name) => import(document.getElementById(`drm-${name}`).href);
const common = await load("common");
const { RequestError, byId, create, createConditionalGet, element, get, onClick, poll, post, root } = common;
const { Timeline } = await load("timeline");
const { LogView, parseMessage, parseMessages } = await load("view");

const list = byId("log");
const live = byId("live");
const scroll = byId("scroll");
const status = byId("status");
const seen = byId("seen");
const typing = byId("typing");
const online = byId("online");
const title = document.querySelector("#drm-title bdi");
const companion = document.querySelector("#drm-companion bdi");
const members = byId("members");
const older = byId("older");
const beginning = byId("beginning");
const newer = byId("newer");
const jump = byId("jump");
const mark = byId("mark");

const END_DISTANCE = 80; // px: closer than this counts as scrolled to the end
const LOAD_DISTANCE = 800; // px: closer than this to an end of the loaded messages, more are loaded
const ACK_DELAY = 250; // ms
const ACK_RETRY_DELAY = 5000; // ms
const ANNOUNCE_DELAY = 1000; // ms
const POLLING = { minDelay: 1500, maxDelay: 3500, hiddenDelay: 15_000 };

export const room = JSON.parse(list.dataset.state);
const log = new LogView(list);
export const timeline = (log.timeline = new Timeline(log));
const getChanges = createConditionalGet();
let loading = false;
let ackTimer;
let wasAtEnd;

const toEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight;
export const atEnd = () => toEnd() < END_DISTANCE;
export const scrollToEnd = () => scroll.scrollTo({ top: scroll.scrollHeight });

// Changes the log without moving what is in sight, and without announcing it.
function quietly(change) {
  const { top } = scroll.getBoundingClientRect();
  const anchor = log.messages.find((message) => message.element.getBoundingClientRect().bottom > top)?.element;
  const before = anchor?.getBoundingClientRect().top;
  live.setAttribute("aria-live", "off");
  change();
  if (anchor?.isConnected) scroll.scrollTop += anchor.getBoundingClientRect().top - before;
  setTimeout(() => live.setAttribute("aria-live", "polite"), ANNOUNCE_DELAY);
}

async function loadMore(place) {
  if (loading || !(place === "start" ? timeline.hasOlder : timeline.hasNewer)) return;
  loading = true;
  const { first, last, newest } = timeline;
  try {
    const page = await get(room.urls.feed, { ...(place === "start" ? { before: first } : { newer: last }), html: 1 });
    page.messages = parseMessages(page.messages);
    quietly(() => (place === "start" ? timeline.addOlder(page) : timeline.addNewer(page, newest)));
    if (place === "start") beginning.textContent = page.has_more ? "" : page.gap_text || beginning.dataset.text;
    loading = false;
    look();
  } catch (error) {
    loading = false;
    showError(error);
  }
}

// Shows the messages around an id, around the first "unread" one, or the "newest" ones.
export async function openAt(at) {
  const state = await get(room.urls.feed, { at, html: 1 });
  open({ ...state, messages: parseMessages(state.messages) });
  if (at === "newest") scrollToEnd();
  else if (at === "unread") scrollToUnread();
  else find(at);
  look();
}

function open(state) {
  const [first] = state.messages;
  const hasRead = !state.older || first?.id <= state.read_id + 1; // else unread messages are before these
  const unread = hasRead && state.messages.find(({ id, mine }) => id > state.read_id && !mine);
  log.divider = { id: (state.unread && unread?.id) || 0, text: state.divider };
  for (const event of state.events) log.events.set(event.number, event);
  quietly(() => timeline.open(state));
  beginning.textContent = state.older ? "" : state.gap_text || (timeline.newest ? beginning.dataset.text : "");
  showState(state);
}

function scrollToUnread() {
  const divider = list.querySelector(".drm-unread");
  if (divider) divider.scrollIntoView();
  else scrollToEnd();
}

// Scrolls to a message and marks it, if it is loaded.
function find(id) {
  const item = timeline.messages.get(Number(id))?.element;
  if (!item) return false;
  list.querySelector(".drm-found")?.classList.remove("drm-found");
  item.classList.add("drm-found");
  item.scrollIntoView({ block: "center" });
  return true;
}

// Loads more near an end, moves the read position, and shows where new messages are.
function look() {
  older.hidden = !timeline.hasOlder;
  newer.hidden = !timeline.hasNewer;
  if (scroll.scrollTop < LOAD_DISTANCE) loadMore("start");
  if (toEnd() < LOAD_DISTANCE) loadMore("end");
  const [top, bottom] = inSight();
  if (!document.hidden && document.hasFocus() && timeline.see(top, bottom)) ackSoon();
  showJump(top);
  wasAtEnd = atEnd();
}

// The first and the last id of the messages whose end is in sight.
function inSight() {
  const { top, bottom } = scroll.getBoundingClientRect();
  const visible = log.messages.filter((message) => {
    const end = message.element.getBoundingClientRect().bottom;
    return end > top && end <= bottom + 2;
  });
  return [visible[0]?.id ?? timeline.first, visible.at(-1)?.id ?? 0];
}

// The button that leads to the newest messages, or back to unread ones that were skipped.
function showJump(top) {
  const skipped = timeline.unread > 0 && timeline.readId + 1 < top;
  const text = timeline.unread ? jump.dataset.count.replace("{count}", timeline.unread) : jump.dataset.newest;
  write(jump, `${skipped ? "↑" : "↓"} ${text}`);
  jump.dataset.to = skipped ? "unread" : "newest";
  jump.hidden = !skipped && atEnd() && !timeline.hasNewer;
  mark.hidden = !skipped;
}

function ackSoon(delay = ACK_DELAY) {
  clearTimeout(ackTimer);
  ackTimer = setTimeout(() => timeline.ack && ack(timeline.ack), delay);
}

async function ack(cursor) {
  try {
    timeline.acknowledge(await post(room.urls.ack, { up_to: cursor }));
    document.dispatchEvent(new CustomEvent("drm:changed"));
    look();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    if (error.status !== 404) ackSoon(Math.max(ACK_RETRY_DELAY, error.retryAfter));
  }
}

// A screen reader announces each write.
function write(target, text) {
  if (text !== undefined && target.textContent !== text) target.textContent = text;
}

function showState(answer) {
  write(seen, answer.seen);
  write(title, answer.title);
  write(members, answer.members);
  write(companion, answer.companion);
  companion.parentElement.hidden = !companion.textContent;
  write(typing, answer.typing);
}

export function showError(error) {
  const { dataset } = status;
  const text = error instanceof RequestError ? error.message || dataset.away : error && dataset.failed;
  if (error && !(error instanceof RequestError)) console.error(error);
  if (status.dataset.shown === (text || "")) return;
  status.dataset.shown = status.textContent = text || "";
  if (error?.status !== 401) return;
  status.append(" ", create("a", { href: root.dataset.signIn, textContent: dataset.signIn }));
}

async function update() {
  const answer = await getChanges(room.urls.feed, { ...timeline.known, html: 1 });
  if (!answer) return false;
  const changed = await receive(answer);
  if (answer.has_more) polling.now();
  return changed;
}

// Returns whether something has changed that others follow soon.
async function receive(answer) {
  if (answer.reset || answer.edits_missed) {
    await openAt(answer.reset ? "unread" : inSight()[0]);
    return true;
  }
  for (const name of ["messages", "changed"]) answer[name] = parseMessages(answer[name] ?? []);
  const follows = atEnd() && !timeline.hasNewer;
  let added = [];
  const receive = () => (added = timeline.receive(answer, follows));
  if (follows) receive();
  else quietly(receive);
  log.addEvents(answer.events ?? []);
  if (follows) scrollToEnd();
  showState(answer);
  look();
  if (added.length) document.dispatchEvent(new CustomEvent("drm:changed"));
  return added.length > 0 || Boolean(answer.typing);
}

export async function show({ html }) {
  const message = parseMessage(element(html));
  if (timeline.messages.has(message.id)) timeline.replace(message);
  else if (timeline.hasNewer) await openAt("newest");
  else if (!timeline.add(message)) await update();
  if (message.id === timeline.last) scrollToEnd();
  look();
}

for (const item of list.querySelectorAll("li:not(.drm-message)")) item.remove();
open({ ...room, messages: [...list.children].map(parseMessage) });
if (!(room.at && find(room.at))) room.unread ? scrollToUnread() : scrollToEnd();
const polling = poll(update, { onResult: showError, ...POLLING });
common.live?.then(({ follow }) => follow(room.chat, () => Object.values(timeline.known).join(".")));
document.addEventListener("drm:live-room", ({ detail }) => {
  if (detail.chat !== room.chat) return;
  if (!timeline.follows(detail.since)) polling.now();
  else receive(detail).then(() => showError(null), showError);
});
document.addEventListener("drm:live-presence", ({ detail }) => detail.chat === room.chat && write(online, detail.text));
document.addEventListener("drm:live", ({ detail }) => detail || write(online, ""));
document.addEventListener("drm:live-closed", ({ detail }) => detail.chat === room.chat && polling.now());
onClick(older, () => loadMore("start"));
onClick(newer, () => loadMore("end"));
onClick(jump, () => {
  if (jump.dataset.to === "newest" && !timeline.hasNewer) scrollToEnd();
  else openAt(jump.dataset.to).catch(showError);
});
mark.addEventListener("submit", (event) => {
  event.preventDefault();
  ack(timeline.known.after);
});
list.addEventListener("click", (event) => {
  const quote = event.target.closest(".drm-quote");
  if (!quote) return;
  event.preventDefault();
  if (!find(quote.dataset.id)) openAt(quote.dataset.id).catch(showError);
});
let frame = 0;
scroll.addEventListener("scroll", () => (frame ||= requestAnimationFrame(() => (look(), (frame = 0)))), { passive: true });
addEventListener("focus", look);
new ResizeObserver(() => {
  if (wasAtEnd) scrollToEnd();
  look();
}).observe(scroll);
document.addEventListener("visibilitychange", look);
look();
