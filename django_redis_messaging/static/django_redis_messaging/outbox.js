// Unsent messages of a chat, in localStorage. The oldest is sent until the server has answered, then the next one, with the
// request ids they got when they were written: order is kept, and nothing is sent twice.

const common = await import(document.getElementById("drm-common").href);
const { RequestError, Stored, get, newRequestId, post, root, storageKey, storedKeys } = common;

const RETRY_DELAYS = [1000, 3000, 8000, 15000, 30000]; // ms
const MAX_MESSAGES = 100;
const OUTBOX = "outbox:";
const MAX_PAGES = 40; // that are read to find out whether a message was sent

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

// `room`: {urls: {send, feed}, window: seconds for which the server remembers request ids}. `listener`: newest(), an id;
// onChange(items, what sending waits for); onSent(message).
export class Outbox {
  constructor(chat, room, listener) {
    this.room = room;
    this.listener = listener;
    this.stored = new Stored(storageKey(`${OUTBOX}${chat}`));
    this.running = false;
    this.wake = () => {};
    addEventListener("storage", ({ key }) => key === this.stored.key && this.changed());
    addEventListener("online", () => this.wake());
    addEventListener("focus", () => this.wake());
    document.addEventListener("visibilitychange", () => document.hidden || this.wake());
    this.start();
  }

  // [{id: request id, text, reply_to, after: newest id when it was written, since: first attempt (ms) or 0, refused: why}]
  get items() {
    return this.stored.value?.items ?? [];
  }

  set items(items) {
    const { urls, window } = this.room;
    this.stored.value = items.length ? { urls, window, items } : null;
    this.changed();
  }

  changed(error = null) {
    this.listener.onChange(this.items, error);
  }

  get isFull() {
    return this.items.length >= MAX_MESSAGES;
  }

  add(text, replyTo) {
    const after = this.listener.newest();
    this.items = [...this.items, { id: newRequestId(), text, reply_to: replyTo, after, since: 0, refused: "" }];
    this.start();
  }

  update(id, change) {
    this.items = this.items.map((item) => (item.id === id ? { ...item, ...change } : item));
  }

  // Sends a refused message once more, now as the newest one.
  retry(id) {
    const item = this.items.find((one) => one.id === id);
    this.items = [...this.items.filter((one) => one.id !== id), { ...item, refused: "" }];
    this.start();
  }

  discard(id) {
    this.items = this.items.filter((item) => item.id !== id);
  }

  // One tab sends at a time, where the browser has locks; without them, request ids keep messages single.
  async start() {
    if (this.running) return;
    this.running = true;
    this.changed();
    const run = () => this.sendAll();
    try {
      await (navigator.locks ? navigator.locks.request(this.stored.key, run) : run());
    } finally {
      this.running = false;
    }
    if (this.next()) this.start();
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
        await this.pause(Math.max(RETRY_DELAYS[Math.min(attempt, RETRY_DELAYS.length - 1)], error.retryAfter));
        attempt += 1;
      }
    }
  }

  // Returns the message, or null if an earlier attempt had sent it.
  async sendOne(item) {
    const { urls, window } = this.room;
    if (!item.since) this.update(item.id, { since: Date.now() });
    else if (Date.now() - item.since > 1000 * window && (await this.wasSent(item))) return null;
    const fields = { body: item.text, request_id: item.id };
    if (item.reply_to) fields.reply_to = item.reply_to;
    return (await post(urls.send, fields)).message;
  }

  // Whether the message is among those since it was written: the server has forgotten its request id.
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
  const prefix = storageKey(OUTBOX);
  for (const key of storedKeys(prefix)) {
    const chat = key.slice(prefix.length);
    const room = new Stored(key).value;
    if (chat !== current && room) new Outbox(chat, room, { onChange() {}, onSent() {} });
  }
}
