// What the server pushes. All tabs of a browser share one stream: the tab that holds a lock receives it, and passes its
// events on. They reach the modules of each tab as `drm:live-NAME`, with the data in `detail`; `drm:live` tells them
// whether events come, or polling must go on.

const address = document.querySelector("[data-live]").dataset.stream;
const NAMES = ["chats", "bell", "room", "presence", "closed", "ping"];
const GATHERING = 50; // ms in which the tabs say what they follow
const MAX_ROOMS = 10; // in a stream
const SILENCE = 50_000; // ms, up to twice this: then the stream is dead. The server sends something every 15 s
const MIN_RETRY = 1000; // ms, longer with each failure
const MAX_RETRY = 30_000;

const tabs = new BroadcastChannel(`drm-live:${address}`);
let followed = null; // {chat, known()}: what this tab shows, and knows of it
let isLive = false;
let silence; // timer
let leader = null; // in the tab that has the stream

const fire = (name, detail) => document.dispatchEvent(new CustomEvent(name, { detail }));

function setLive(value) {
  if (isLive !== value) fire("drm:live", (isLive = value));
}

// To all tabs, this one as well.
function tell(message) {
  tabs.postMessage(message);
  receive(message);
}

function receive({ name, data }) {
  watch();
  if (name === "hello") leader?.open();
  else if (name === "who") {
    if (followed) tell({ name: "here", data: [followed.chat, followed.known()] });
  } else if (name === "here") leader?.follow(...data);
  else if (name === "open") setLive(!followed || data.includes(followed.chat));
  else if (name === "down") setLive(false);
  else fire(`drm:live-${name}`, JSON.parse(data));
}

// The tab that has the stream may be frozen: then another one takes its place.
function watch() {
  clearTimeout(silence);
  silence = setTimeout(() => {
    watch();
    setLive(false);
    if (leader) leader.fail();
    else lead({ steal: true });
  }, SILENCE * (1 + Math.random()));
}

class Leader {
  constructor() {
    this.failures = 0;
    this.open();
  }

  // Opens a stream for what the tabs follow now, in place of the last one.
  open() {
    this.rooms = new Map();
    this.connectSoon();
    tabs.postMessage({ name: "who" });
    if (followed) this.follow(followed.chat, followed.known());
  }

  // A busy tab may say late what it follows.
  follow(chat, known) {
    if (this.rooms.size === MAX_ROOMS) return;
    this.rooms.set(chat, known);
    this.connectSoon();
  }

  connectSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), GATHERING);
  }

  connect() {
    const url = new URL(address, location.href);
    const rooms = [...this.rooms];
    for (const [chat, known] of rooms) {
      url.searchParams.append("room", chat);
      url.searchParams.append("after", known);
    }
    this.close();
    this.source = new EventSource(url);
    this.source.addEventListener("open", () => tell({ name: "open", data: rooms.map(([chat]) => chat) }));
    this.source.addEventListener("error", () => this.fail());
    for (const name of NAMES) {
      this.source.addEventListener(name, ({ data }) => {
        this.failures = 0;
        tell({ name, data });
      });
    }
  }

  // That a stream ends is no failure yet: the server lets none live long.
  fail() {
    this.close();
    if (this.failures) tell({ name: "down" });
    const delay = Math.min(MIN_RETRY * 2 ** this.failures, MAX_RETRY);
    this.failures += 1;
    this.timer = setTimeout(() => this.open(), delay * (0.5 + Math.random()));
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
  }
}

// Waits for the lock, and holds it until the page is left or another tab takes it.
async function lead(options = {}) {
  let own;
  const hold = () => {
    own = leader = new Leader();
    return new Promise((resolve) => addEventListener("pagehide", resolve, { once: true }));
  };
  const isTaken = await navigator.locks.request(tabs.name, options, hold).then(() => false, () => true);
  own?.close();
  if (leader === own) leader = null;
  if (isTaken) lead();
}

// The events of a chat come to this tab, too, instead of those of the last one. `known` returns what the tab knows of it, as
// the server has said.
export function follow(chat, known) {
  followed = { chat, known };
  setLive(false);
  tell({ name: "hello" });
}

// Ends what `follow` has begun with this `known`. The next stream is without the chat.
export function leave(known) {
  if (followed?.known === known) followed = null;
}

// Without locks, each tab would have a connection of its own, of the few that a browser opens: then they poll.
if (navigator.locks) {
  tabs.addEventListener("message", ({ data }) => receive(data));
  addEventListener("pageshow", (event) => event.persisted && lead());
  tell({ name: "hello" });
  lead();
}
