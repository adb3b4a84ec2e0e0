// The state of a room. Events come in (receive, addOlder, addNewer, see), calls of the view go out. The loaded messages are
// one range, with none missing; `newest` is the newest of the chat, loaded or not. A message is {id, cursor, mine, edited, …}.

const MAX_LOADED = 150;

export class Timeline {
  // The view: insert(messages, place), replace(message), remove(messages). A place is "start" or "end".
  constructor(view) {
    this.view = view;
    this.messages = new Map();
  }

  // Replaces everything by the state around a position.
  open(state) {
    this.view.remove([...this.messages.values()]);
    this.messages.clear();
    this.newest = this.end = state.newest;
    if (state.newer) this.end = 0;
    this.hasOlder = state.older;
    this.readId = this.ackedId = state.read_id;
    this.unread = state.unread;
    this.remember(state);
    this.insert(state.messages, "end");
  }

  remember({ cursor, edits, moved, event }) {
    this.known = { after: cursor, edits, moved, events: event };
  }

  // Whether nothing is missing between what is known and what follows this message and these numbers.
  follows([id, edits, moved, events]) {
    const { known } = this;
    return id <= this.newest && edits <= known.edits && moved <= known.moved && events <= known.events;
  }

  get first() {
    return this.messages.keys().next().value ?? this.newest + 1;
  }

  get last() {
    return [...this.messages.keys()].at(-1) ?? 0;
  }

  get hasNewer() {
    return Math.max(this.last, this.end) < this.newest;
  }

  insert(messages, place) {
    const added = messages.filter(({ id }) => !this.messages.has(id));
    const loaded = [...this.messages.values()];
    const all = place === "end" ? [...loaded, ...added] : [...added, ...loaded];
    this.messages = new Map(all.map((message) => [message.id, message]));
    if (added.length) this.view.insert(added, place);
  }

  addOlder({ messages, has_more: hasMore }) {
    this.insert(messages, "start");
    this.hasOlder = hasMore;
    this.trim("end");
  }

  // `newest`: the newest message of the chat when the page was requested.
  addNewer({ messages, has_more: hasMore }, newest) {
    this.insert(messages, "end");
    this.newest = Math.max(this.newest, this.last);
    if (!hasMore) this.end = newest;
    this.trim("start");
  }

  // Removes at one end what exceeds MAX_LOADED.
  trim(place) {
    const excess = this.messages.size - MAX_LOADED;
    if (excess <= 0) return;
    const all = [...this.messages.values()];
    const removed = place === "start" ? all.slice(0, excess) : all.slice(-excess);
    for (const { id } of removed) this.messages.delete(id);
    if (place === "start") this.hasOlder = true;
    else this.end = 0;
    this.view.remove(removed);
  }

  // What has changed since the last answer. `mayTrim`: whether messages at the start may be removed for new ones. Returns
  // the new messages.
  receive(answer, mayTrim = true) {
    const added = answer.messages.filter(({ id }) => id > this.newest);
    const fits = mayTrim || this.messages.size + added.length <= MAX_LOADED;
    const continues = fits && !this.hasNewer;
    for (const { id, mine } of added) {
      this.newest = Math.max(this.newest, id);
      if (!mine) this.unread += 1;
    }
    if (continues) this.insert(added, "end");
    if (continues) this.trim("start");
    for (const message of [...answer.messages, ...(answer.changed ?? [])]) this.replace(message);
    this.remember({ ...answer, edits: answer.edits_missed ? this.known.edits : answer.edits });
    this.acknowledge(answer);
    return added;
  }

  // A message that this page has sent. Returns whether nothing is missing before it.
  add(message) {
    if (this.hasNewer || message.id !== this.newest + 1) return false;
    if (this.readId === this.ackedId && this.readId === message.id - 1) this.readId = this.ackedId = message.id;
    this.newest = message.id;
    this.insert([message], "end");
    this.trim("start");
    return true;
  }

  replace(message) {
    const loaded = this.messages.get(message.id);
    if (!loaded || loaded.edited === message.edited) return;
    this.messages.set(message.id, message);
    this.view.replace(message, loaded);
  }

  // The stored position, which another device may have moved, and the number of messages after it.
  acknowledge({ read_id: readId, unread = readId < this.newest ? this.unread : 0 }) {
    this.ackedId = Math.max(this.ackedId, readId);
    if (readId < this.readId) return;
    this.readId = readId;
    this.unread = unread;
  }

  // The messages from id `top` to `bottom` are in sight. They count as read if everything before them does. Returns
  // whether the position has moved.
  see(top, bottom) {
    const before = this.readId;
    if (this.hasOlder && this.first > before + 1) return false;
    for (const { id, mine } of this.messages.values()) {
      if (id <= before) continue;
      if (!mine && (id < top || id > bottom)) break;
      if (!mine) this.unread -= 1;
      this.readId = id;
    }
    this.unread = this.readId >= this.newest ? 0 : Math.max(this.unread, 0);
    return this.readId > before;
  }

  // The cursor of a position that the server does not know yet.
  get ack() {
    return this.readId > this.ackedId ? this.messages.get(this.readId)?.cursor : undefined;
  }
}
