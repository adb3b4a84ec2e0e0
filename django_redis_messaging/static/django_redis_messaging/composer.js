// The composer. What is typed is stored with each key, and stays until it is sent, saved or discarded.

const load = (name) => import(document.getElementById(`drm-${name}`).href);
const { RequestError, Stored, byId, get, onClick, post, putAt, storageKey } = await load("common");
const { Outbox, sendOthers } = await load("outboxes");
const { atEnd, openAt, room, scrollToEnd, show, showError, timeline } = await load("room");

const form = byId("composer");
const body = byId("body");
const button = byId("send");
const editingNote = byId("editing");
const replyingNote = byId("replying");
const status = byId("status");
const list = byId("outbox");
const pendingTemplate = byId("pending");
const TYPING_INTERVAL = 3000; // ms
const MAX_EDITS = 5; // unsaved edits of a chat
const MAX_ROWS = 7;
const isTouch = matchMedia("(pointer: coarse)").matches;

// {text, mentions: {member id: what was inserted}, reply: {id, label} or null, edits: {id of the element: unsaved text}}
const stored = new Stored(storageKey(`draft:${room.chat}`));
const draft = { text: "", mentions: {}, reply: null, edits: {}, ...stored.value };
let editing = null; // {id, url} of the message that is edited
let typing = { at: 0 }; // the last time others were told, and how to stop it

function save() {
  draft.edits = Object.fromEntries(Object.entries(draft.edits).slice(-MAX_EDITS));
  const isEmpty = !draft.text && !draft.reply && !Object.keys(draft.edits).length;
  stored.value = isEmpty ? null : { ...draft, at: Date.now() };
}

function render() {
  editingNote.hidden = !editing;
  replyingNote.hidden = Boolean(editing) || !draft.reply;
  if (draft.reply) replyingNote.querySelector("bdi").textContent = draft.reply.label;
  button.textContent = editing ? button.dataset.save : button.dataset.send;
  body.value = editing ? draft.edits[editing.id] : draft.text;
  resize();
}

function resize() {
  if (CSS.supports("field-sizing", "content")) return;
  body.rows = Math.min(body.value.split("\n").length, MAX_ROWS);
}

// `id` and `url`: of the element and of the page of the message.
export async function startEditing(id, url) {
  if (draft.edits[id] === undefined) draft.edits[id] = (await get(url)).message.body;
  editing = { id, url };
  refocus();
}

function stopEditing({ discard = false } = {}) {
  if (discard) delete draft.edits[editing.id];
  editing = null;
  refocus();
}

function refocus() {
  save();
  render();
  body.focus();
}

async function saveEdit(text) {
  const { message } = await post(new URL("edit/", editing.url), { body: text });
  stopEditing({ discard: true });
  await show(message);
}

export function startReplying(id, label) {
  editing = null;
  setReply({ id, label });
}

const stopReplying = () => setReply(null);

function setReply(reply) {
  draft.reply = reply;
  refocus();
}

const outbox = new Outbox(room.chat, room, {
  newest: () => timeline.newest,
  onChange: renderOutbox,
  onSent: (message) => show(message).catch(showError),
});

function renderOutbox(items, error) {
  const wasAtEnd = atEnd();
  const rows = new Map([...list.children].map((row) => [row.dataset.request, row]));
  items.forEach((item, index) => {
    const row = rows.get(item.id) ?? createRow(item);
    rows.delete(item.id);
    putAt(list, row, index);
    showProgress(row, item, error);
  });
  for (const row of rows.values()) row.remove();
  if (wasAtEnd) scrollToEnd();
}

function createRow({ id, text }) {
  const row = pendingTemplate.content.firstElementChild.cloneNode(true);
  row.dataset.request = id;
  row.querySelector(".drm-body").textContent = text;
  onClick(row.querySelector("[data-retry]"), () => outbox.retry(id));
  onClick(row.querySelector("[data-discard]"), () => outbox.discard(id));
  return row;
}

function showProgress(row, { refused }, error) {
  const { dataset } = pendingTemplate;
  row.classList.toggle("drm-failed", Boolean(refused));
  row.querySelector(".drm-retry").hidden = !refused;
  row.querySelector(".drm-why").textContent = refused;
  const state = row.querySelector(".drm-state");
  state.hidden = Boolean(refused);
  state.textContent = error ? error.message || dataset.waiting : dataset.sending;
  if (error?.status === 401) showError(error);
}

function submit() {
  const text = body.value.trim();
  if (!text) return;
  if (editing) {
    saveEdit(text).catch(showError);
    return;
  }
  if (outbox.isFull) {
    status.textContent = form.dataset.full;
    return;
  }
  typing.controller?.abort(); // told after the message has arrived, it would be wrong
  typing = { at: 0 };
  keepMentions(text);
  outbox.add(text, { reply_to: draft.reply?.id, mentions: Object.keys(draft.mentions) });
  Object.assign(draft, { text: "", mentions: {}, reply: null });
  save();
  render();
  scrollToEnd();
  if (timeline.hasNewer) openAt("newest").catch(showError);
}

// Of several members with one name, the chosen one is notified, as long as the text has the name.
export function addMention(id, inserted) {
  keepMentions(body.value);
  draft.mentions[id] = inserted;
}

function keepMentions(text) {
  draft.mentions = Object.fromEntries(Object.entries(draft.mentions).filter(([, inserted]) => text.includes(inserted)));
}

function handleInput() {
  if (editing) draft.edits[editing.id] = body.value;
  else draft.text = body.value;
  save();
  resize();
  if (/[@:]/.test(body.value)) import(byId("completions").dataset.src);
  if (editing || !body.value || Date.now() - typing.at < TYPING_INTERVAL) return;
  typing = { at: Date.now(), controller: new AbortController() };
  post(room.urls.typing, {}, { signal: typing.controller.signal }).catch((error) => {
    if (!(error instanceof RequestError)) throw error; // nobody sees that the user is typing
  });
}

function lastOwn() {
  const items = [...timeline.messages.values()].map((message) => message.element);
  return items.findLast((item) => item.dataset.can.split(" ").includes("edit"));
}

function leave() {
  if (editing) stopEditing();
  else if (draft.reply) stopReplying();
  else body.blur();
}

function handleKey(event) {
  if (event.isComposing || event.defaultPrevented) return; // an input method, or the list of completions
  if (event.key === "Escape") leave();
  else if (event.key === "ArrowUp" && !body.value && lastOwn()) {
    event.preventDefault();
    startEditing(lastOwn().id, lastOwn().querySelector(".drm-dots").href).catch(showError);
  } else if (event.key === "Enter" && !event.shiftKey && (!isTouch || event.ctrlKey)) {
    event.preventDefault();
    submit();
  }
}

function begin() {
  const { editing: id, url, reply } = form.dataset;
  if (id) {
    draft.edits[id] ??= body.value;
    editing = { id, url };
  } else if (reply) {
    draft.reply = { id: Number(reply), label: replyingNote.querySelector("bdi").textContent };
  }
  render();
  if (!isTouch && !location.hash) body.focus({ preventScroll: true });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
onClick(byId("cancel"), () => stopEditing({ discard: true }));
onClick(byId("no-reply"), stopReplying);
body.addEventListener("input", handleInput);
body.addEventListener("keydown", handleKey);
begin();
sendOthers(room.chat);
