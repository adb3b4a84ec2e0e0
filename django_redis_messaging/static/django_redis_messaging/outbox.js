// Unsent messages of a chat, in localStorage, each under its own key, for tabs must not overwrite each other's. The oldest is
// sent until the server has answered, then the next one, with the request ids they got when they were written.

const common = await import(document.getElementById("drm-common").href);
const { RequestError, Stored, get, newRequestId, post, root, storageKey, storedKeys } = common;

const RETRY_DELAYS = [1000, 3000, 8000, 15000]; // ms
const MAX_DELAY = 30000; // ms
const MAX_MESSAGES = 100;
const OUTBOX = "outbox:";
const MAX_PAGES = 40; // read to find out whether a message was sent

// Whether the same request can succeed later.
function isTemporary({ status, code }) {
  const signedOut = status === 401 || (status === 403 && ["failed", "other_user"].includes(code));
  return signedOut || status === 0 || status === 429 || status >= 500;
}

// The CRC-32 of a request id: the nonce of its message.
function nonceOf(requestId) {
  let crc = -1;
  for (const byte of new TextEncoder().encode(requestId)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return (crc ^ -1) >>> 0;
}

const attempts = new Map(); // request id → when this page tried to send it for the first time

const readClocks = () => ({ wall: Date.now(), steady: performance.now() });

// Whether the server may have forgotten a request of which the first attempt was at `first`, and unknown if another page made
// it. The wall clock can be set, the steady one may stand still while the computer sleeps.
function isForgotten(first, window) {
  const now = readClocks();
  return !first || now.wall < first.wall || Math.max(now.wall - first.wall, now.steady - first.steady) > 1000 * window;
}

const outboxes = new Map(); // by chat: those of other rooms until they have sent all
const nobody = { onChange() {}, onSent() {} };

// `room`: {urls: {send, feed}, window: seconds for which the server remembers request ids}. `listener`: newest(), an id;
// onChange(items, what sending waits for); onSent(message). After `signal`, only what is unsent keeps it alive.
export function openOutbox(chat, room, listener, signal) {
  const outbox = outboxes.get(chat) ?? new Outbox(chat);
  outboxes.set(chat, outbox);
  signal?.addEventListener("abort", () => outbox.leave(listener));
  Object.assign(outbox, { room, listener });
  outbox.start();
  return outbox;
}

class Outbox {
  constructor(chat) {
    this.chat = chat;
    this.prefix = storageKey(`${OUTBOX}${encodeURIComponent(chat)}:`);
    this.running = false;
    this.wake = () => {};
    this.ending = new AbortController();
    const { signal } = this.ending;
    addEventListener("storage", ({ key }) => key?.startsWith(this.prefix) && this.changed(), { signal });
    const wake = () => this.wake();
    for (const name of ["online", "focus"]) addEventListener(name, wake, { signal });
    addEventListener("visibilitychange", () => document.hidden || wake(), { signal });
  }

  leave(listener) {
    if (this.listener === listener) this.listener = nobody;
    this.endIfDone();
  }

  endIfDone() {
    if (this.listener !== nobody || this.running || this.next()) return;
    this.ending.abort();
    if (outboxes.get(this.chat) === this) outboxes.delete(this.chat);
  }

  // [{id: request id, chat, urls, window, at: ms, text, reply_to, mentions: [ids], after: newest id when it was written,
  // tried: whether there was an attempt to send it, refused: why}]
  get items() {
    const stored = storedKeys(this.prefix).map((key) => new Stored(key).value);
    return stored.filter(Boolean).sort((a, b) => a.at - b.at);
  }

  write(item) {
    new Stored(this.prefix + item.id).value = item;
    this.changed();
  }

  get end() {
    return Math.max(Date.now(), ...this.items.map(({ at }) => at + 1));
  }

  changed(error = null) {
    this.listener.onChange(this.items, error);
  }

  get isFull() {
    return this.items.length >= MAX_MESSAGES;
  }

  // `more`: reply_to and mentions.
  add(text, more) {
    const { urls, window } = this.room;
    const item = { id: newRequestId(), chat: this.chat, urls, window, at: this.end, text, ...more };
    this.write({ ...item, after: this.listener.newest(), tried: false, refused: "" });
    this.start();
  }

  update(id, change) {
    const item = this.items.find((one) => one.id === id);
    if (item) this.write({ ...item, ...change });
  }

  // Sends a refused message again, as the newest one.
  retry(id) {
    this.update(id, { at: this.end, refused: "" });
    this.start();
  }

  discard(id) {
    attempts.delete(id);
    new Stored(this.prefix + id).value = null;
    this.changed();
  }

  // One tab sends at a time. Without locks, request ids keep messages single.
  async start() {
    this.changed();
    if (this.running) return;
    this.running = true;
    const run = () => this.sendAll();
    try {
      await (navigator.locks ? navigator.locks.request(this.prefix, run) : run());
    } finally {
      this.running = false;
    }
    if (this.next()) this.start();
    else this.endIfDone();
  }

  next() {
    return this.items.find((item) => !item.refused);
  }

  async sendAll() {
    for (let item, attempt = 0; (item = this.next()); ) {
      try {
        const message = await this.sendOne(item);
        attempt = 0;
        if (message) await this.listener.onSent(message);
        this.discard(item.id);
      } catch (error) {
        if (!(error instanceof RequestError)) throw error;
        if (!isTemporary(error)) {
          this.update(item.id, { refused: error.message || root.dataset.failed });
          continue;
        }
        this.changed(error);
        await this.pause(Math.max(RETRY_DELAYS[attempt] ?? MAX_DELAY, error.retryAfter));
        attempt += 1;
      }
    }
  }

  // Returns the message, or null if an earlier attempt had sent it.
  async sendOne(item) {
    const { urls, window } = this.room;
    if (!item.tried) {
      this.update(item.id, { tried: true });
      attempts.set(item.id, readClocks());
    } else if (isForgotten(attempts.get(item.id), window) && (await this.wasSent(item))) return null;
    const fields = [["body", item.text], ["request_id", item.id], ...(item.mentions ?? []).map((id) => ["mentions", id])];
    if (item.reply_to) fields.push(["reply_to", item.reply_to]);
    return (await post(urls.send, fields)).message;
  }

  // Whether it was sent: the server has forgotten its request id.
  async wasSent({ id, after: first }) {
    const nonce = nonceOf(id);
    for (let after = first, pages = 0; pages < MAX_PAGES; pages += 1) {
      const { messages, has_more: hasMore } = await get(this.room.urls.feed, { newer: after });
      if (messages.some((message) => message.mine && message.nonce === nonce)) return true;
      if (!hasMore) return false;
      after = messages.at(-1).id;
    }
    return false;
  }

  // Until the time is over, or sending may work now.
  pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

// Sends what was written in other chats. Their pages show what is refused.
export function sendOthers(current) {
  const items = storedKeys(storageKey(OUTBOX)).map((key) => new Stored(key).value);
  for (const [chat, room] of new Map(items.map((item) => [item?.chat, item]))) {
    if (room && chat !== current && !outboxes.has(chat)) openOutbox(chat, room, nobody);
  }
}
