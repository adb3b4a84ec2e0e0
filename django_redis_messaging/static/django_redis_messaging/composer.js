// The composer. What is typed is stored with each key, and stays until it is sent, saved or discarded.

const load = (name) => import(document.getElementById(`drm-${name}`).href);
const { RequestError, Stored, byId, get, onClick, post, putAt, storageKey } = await load("common");
const { openOutbox, sendOthers } = await load("outboxes");
const { oneLine, textOf } = await load("view");

const TYPING_INTERVAL = 3000; // ms
const MAX_EDITS = 5; // unsaved edits of a chat
const MAX_ROWS = 7;
const MAX_EXCERPT = 200; // characters
const MIN_ZOOM = 1.01; // from here on, the user has zoomed in
const IME = 229; // keyCode of keys that an input method handles
const isTouch = matchMedia("(pointer: coarse)").matches;

// By chat: all composers of a chat share its draft, for answers may come after the chat was left and opened again.
const drafts = new Map();

export class Composer {
  constructor(room, signal) {
    this.room = room;
    this.signal = signal;
    this.chat = room.state.chat;
    this.form = byId("composer");
    this.body = byId("body");
    this.button = byId("send");
    this.editingNote = byId("editing");
    this.replyingNote = byId("replying");
    this.list = byId("outbox");
    this.pendingTemplate = byId("pending");
    this.stored = new Stored(storageKey(`draft:${this.chat}`));
    // {text, mentions: {member id: what was inserted}, reply: {id, label, text} or null, edits: {id of the element: unsaved
    // text}}
    this.draft = drafts.get(this.chat) ?? {};
    drafts.set(this.chat, this.draft);
    Object.assign(this.draft, { text: "", mentions: {}, reply: null, edits: {} }, this.stored.value);
    this.editing = null; // {id, url, isSaving} of the message that is edited
    this.typing = { at: 0 }; // the last time others were told, and how to stop it
    const listener = {
      newest: () => room.timeline.newest,
      onChange: (items, error) => this.renderOutbox(items, error),
      onSent: (message) => room.show(message).catch((error) => room.showError(error)),
    };
    this.outbox = openOutbox(this.chat, room.state, listener, signal);
    room.onEnd = () => this.end();
    this.listen(signal);
    this.begin();
    sendOthers(this.chat);
  }

  listen(signal) {
    const { body, form } = this;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    onClick(byId("cancel"), () => this.editing && this.stopEditing({ discard: true }));
    onClick(byId("no-reply"), () => this.setReply(null));
    body.addEventListener("input", () => this.handleInput());
    body.addEventListener("keydown", (event) => this.handleKey(event));
    const rise = () => this.rise();
    for (const name of ["resize", "scroll"]) visualViewport.addEventListener(name, rise, { passive: true, signal });
  }

  begin() {
    const { body, draft, form, replyingNote } = this;
    const { editing: id, url, reply } = form.dataset;
    if (id) {
      draft.edits[id] ??= body.value;
      this.editing = { id, url };
    } else if (reply) {
      const [label, text] = Array.from(replyingNote.querySelectorAll("bdi"), (part) => part.textContent);
      draft.reply = { id: Number(reply), label, text };
    }
    this.render();
    if (location.hash && location.hash !== `#${form.id}`) return; // it leads to a message
    (isTouch ? byId("title") : body).focus({ preventScroll: true });
  }

  save() {
    const { draft } = this;
    draft.edits = Object.fromEntries(Object.entries(draft.edits).slice(-MAX_EDITS));
    const isEmpty = !draft.text && !draft.reply && !Object.keys(draft.edits).length;
    this.stored.value = isEmpty ? null : { ...draft, at: Date.now() };
  }

  render() {
    const { body, button, draft, editing, editingNote, replyingNote, room } = this;
    editingNote.hidden = !editing;
    replyingNote.hidden = Boolean(editing) || !draft.reply;
    const shown = replyingNote.querySelectorAll("bdi");
    [draft.reply?.label, draft.reply?.text].forEach((text, index) => (shown[index].textContent = text ?? ""));
    const note = [editingNote, replyingNote].find(({ hidden }) => !hidden);
    if (note) body.setAttribute("aria-describedby", note.id);
    else body.removeAttribute("aria-describedby");
    room.log.markEdited(editing?.id ?? "");
    button.textContent = editing ? button.dataset.save : button.dataset.send;
    body.value = editing ? (draft.edits[editing.id] ?? body.value) : draft.text;
    this.resize();
  }

  resize() {
    if (CSS.supports("field-sizing", "content")) return;
    this.body.rows = Math.min(this.body.value.split("\n").length, MAX_ROWS);
  }

  refocus() {
    this.save();
    this.render();
    this.body.focus();
  }

  // `id` and `url`: of the element and of the page of the message.
  async startEditing(id, url) {
    const { edits } = this.draft;
    if (edits[id] === undefined) edits[id] = (await get(url)).message.body;
    if (this.signal.aborted) return;
    this.editing = { id, url };
    this.refocus();
    document.getElementById(id)?.scrollIntoView({ block: "nearest" });
  }

  stopEditing({ discard = false } = {}) {
    if (discard) delete this.draft.edits[this.editing.id];
    this.editing = null;
    this.refocus();
  }

  // Meanwhile the user may leave this edit, change its text, or begin another one: these stay.
  async saveEdit(edit, text) {
    if (edit.isSaving) return;
    edit.isSaving = true;
    try {
      const { message } = await post(new URL("edit/", edit.url), { body: text });
      const isUnchanged = this.draft.edits[edit.id]?.trim() === text;
      if (this.editing === edit && isUnchanged) this.stopEditing({ discard: true });
      else if (isUnchanged) delete this.draft.edits[edit.id];
      this.save();
      await this.room.show(message);
    } finally {
      edit.isSaving = false;
    }
  }

  startReplying(item) {
    this.editing = null;
    const label = oneLine(item.querySelector(".drm-author").textContent);
    this.setReply({ id: Number(item.dataset.id), label, text: oneLine(textOf(item)).slice(0, MAX_EXCERPT) });
  }

  setReply(reply) {
    this.draft.reply = reply;
    this.refocus();
  }

  renderOutbox(items, error) {
    const { list, room } = this;
    const { atEnd } = room;
    const rows = new Map([...list.children].map((row) => [row.dataset.request, row]));
    items.forEach((item, index) => {
      const row = rows.get(item.id) ?? this.createRow(item);
      rows.delete(item.id);
      putAt(list, row, index);
      this.showProgress(row, item, error);
    });
    for (const row of rows.values()) row.remove();
    if (atEnd) room.scrollToEnd();
  }

  createRow({ id, text }) {
    const row = this.pendingTemplate.content.firstElementChild.cloneNode(true);
    row.dataset.request = id;
    row.querySelector(".drm-body").textContent = text;
    onClick(row.querySelector("[data-retry]"), () => this.outbox.retry(id));
    onClick(row.querySelector("[data-discard]"), () => this.outbox.discard(id));
    return row;
  }

  showProgress(row, { refused }, error) {
    const { dataset } = this.pendingTemplate;
    row.classList.toggle("drm-failed", Boolean(refused));
    row.querySelector(".drm-retry").hidden = !refused;
    row.querySelector(".drm-why").textContent = refused;
    const state = row.querySelector(".drm-state");
    state.hidden = Boolean(refused);
    state.textContent = error ? error.message || dataset.waiting : dataset.sending;
    if (error?.status === 401) this.room.showError(error);
  }

  submit() {
    const { draft, form, outbox, room } = this;
    const text = this.body.value.trim();
    if (!text) return;
    if (this.editing) {
      this.saveEdit(this.editing, text).catch((error) => room.showError(error));
      return;
    }
    if (outbox.isFull) {
      room.status.textContent = form.dataset.full;
      return;
    }
    this.typing.controller?.abort(); // told after the message has arrived, it would be wrong
    this.typing = { at: 0 };
    this.keepMentions(text);
    outbox.add(text, { reply_to: draft.reply?.id, mentions: Object.keys(draft.mentions) });
    Object.assign(draft, { text: "", mentions: {}, reply: null });
    this.save();
    this.render();
    room.scrollToEnd();
    if (room.timeline.hasNewer) room.jumpTo("newest");
  }

  // Of several members with one name, the chosen one is notified, as long as the text has the name. An edit notifies nobody.
  addMention(id, inserted) {
    if (this.editing) return;
    this.keepMentions(this.body.value);
    this.draft.mentions[id] = inserted;
  }

  keepMentions(text) {
    const { draft } = this;
    draft.mentions = Object.fromEntries(Object.entries(draft.mentions).filter(([, inserted]) => text.includes(inserted)));
  }

  handleInput() {
    const { body, draft, editing, room } = this;
    if (editing) draft.edits[editing.id] = body.value;
    else draft.text = body.value;
    this.save();
    this.resize();
    if (/[@:]/.test(body.value)) this.complete();
    if (editing || !body.value || Date.now() - this.typing.at < TYPING_INTERVAL) return;
    this.typing = { at: Date.now(), controller: new AbortController() };
    post(room.state.urls.typing, {}, { signal: this.typing.controller.signal }).catch((error) => {
      if (!(error instanceof RequestError)) throw error; // nobody sees that the user is typing
    });
  }

  complete() {
    this.completion ??= import(byId("completions").dataset.src).then(({ Completion }) => new Completion(this));
  }

  lastOwn() {
    const items = [...this.room.timeline.messages.values()].map((message) => message.element);
    return items.findLast((item) => item.dataset.can.split(" ").includes("edit"));
  }

  leave() {
    if (this.editing) this.stopEditing();
    else if (this.draft.reply) this.setReply(null);
    else this.body.blur();
  }

  // Where a phone's keyboard covers the window instead of making it smaller, the composer stays above the keyboard.
  rise() {
    const { height, offsetTop, scale } = visualViewport;
    const { bottom } = this.form.parentElement.getBoundingClientRect();
    const covered = Math.min(document.documentElement.clientHeight - height, bottom - offsetTop - height);
    this.form.style.marginBlockEnd = covered > 0 && scale < MIN_ZOOM ? `${covered}px` : "";
  }

  // The user can't write any more: what was not sent stays to be copied.
  end() {
    const { draft, form, room } = this;
    const unsent = byId("unsent");
    const field = unsent.querySelector("textarea");
    const hadFocus = form.contains(document.activeElement);
    field.value = [draft.text, ...Object.values(draft.edits)].filter((text) => text.trim()).join("\n\n");
    form.hidden = true;
    unsent.hidden = !field.value;
    onClick(unsent.querySelector("button"), async ({ target }) => {
      field.select();
      await navigator.clipboard.writeText(field.value);
      target.textContent = room.status.dataset.copiedText;
    });
    unsent.querySelector("button").hidden = !navigator.clipboard;
    if (hadFocus) (field.value ? field : byId("title")).focus({ preventScroll: true });
  }

  handleKey(event) {
    const { body, room } = this;
    // An input method (of Safari, keyCode says so), or the list of completions.
    if (event.isComposing || event.keyCode === IME || event.defaultPrevented) return;
    if (event.key === "Escape") this.leave();
    else if (event.key === "ArrowUp" && !body.value && this.lastOwn()) {
      event.preventDefault();
      const own = this.lastOwn();
      this.startEditing(own.id, own.querySelector(".drm-dots").href).catch((error) => room.showError(error));
    } else if (event.key === "Enter" && !event.shiftKey && (!isTouch || event.ctrlKey)) {
      event.preventDefault();
      this.submit();
    }
  }
}
