// A room: loads more while the user scrolls, shows changes that are pushed or polled, and acks what was in sight.

const load = (name) => import(document.getElementById(`drm-${name}`).href);
const common = await load("common");
const { RequestError, byId, create, createConditionalGet, element, get, onClick, poll, post, root } = common;
const { Timeline } = await load("timeline");
const { LogView, parseMessage, parseMessages } = await load("view");

const END_DISTANCE = 80; // px: closer than this counts as scrolled to the end
const UNREAD_MARGIN = 12; // px above the first unread message
const LOAD_DISTANCE = 800; // px: closer than this to an end of the loaded messages, more are loaded
const SIGHT_STEPS = Array.from({ length: 51 }, (_, step) => step / 50); // shares of the log that are in sight
const ACK_DELAY = 250; // ms
const ACK_RETRY_DELAY = 5000; // ms
const ANNOUNCE_DELAY = 1000; // ms
const POLLING = { minDelay: 1500, maxDelay: 3500, hiddenDelay: 15_000 };

// A screen reader announces each write.
function write(target, text) {
  if (text !== undefined && target.textContent !== text) target.textContent = text;
}

export class Room {
  // The room that is in the page; `signal` ends it, when another one takes its place. `place`: what `here` returned before.
  constructor(signal, place) {
    this.signal = signal;
    this.list = byId("log");
    this.live = byId("live");
    this.scroll = byId("scroll");
    this.status = byId("status");
    this.shown = Object.fromEntries(["seen", "members", "typing", "online"].map((name) => [name, byId(name)]));
    this.shown.title = document.querySelector("#drm-title bdi");
    this.shown.companion = document.querySelector("#drm-companion bdi");
    for (const name of ["older", "beginning", "newer", "jump", "mark"]) this[name] = byId(name);
    this.state = JSON.parse(this.list.dataset.state);
    this.log = new LogView(this.list);
    this.timeline = this.log.timeline = new Timeline(this.log);
    this.getChanges = createConditionalGet();
    this.loading = false;
    this.clipped = { top: Infinity, bottom: 0 }; // px of the log that are outside of the window, or of a frame's part in it
    this.opened = 0; // number of the latest jump: earlier responses are ignored
    this.begin(place);
    this.listen();
    this.look();
  }

  begin(place) {
    const { list, state } = this;
    for (const item of list.querySelectorAll("li:not(.drm-message)")) item.remove();
    this.open({ ...state, messages: [...list.children].map(parseMessage) });
    if (!(state.at && this.find(state.at))) {
      if (state.unread) this.scrollToUnread();
      else this.scrollToEnd();
    }
    const onResult = (error) => (error?.status === 404 ? this.end() : this.showError(error));
    this.polling = poll(() => this.update(), { onResult, signal: this.signal, ...POLLING });
    if (place) this.return(place).catch((error) => this.showError(error));
  }

  listen() {
    const { jump, list, mark, polling, scroll, signal } = this;
    const { chat } = this.state;
    const on = (target, name, handle, options) => target.addEventListener(name, handle, { signal, ...options });
    const look = () => this.look();
    const known = () => this.known;
    common.live?.then(({ follow }) => signal.aborted || follow(chat, known));
    on(document, "drm:live-room", ({ detail }) => detail.chat === chat && this.receivePushed(detail));
    on(document, "drm:live-presence", ({ detail }) => detail.chat === chat && write(this.shown.online, detail.text));
    on(document, "drm:live", ({ detail }) => detail || write(this.shown.online, ""));
    on(document, "drm:live-closed", ({ detail }) => detail.chat === chat && polling.now());
    on(document, "visibilitychange", look);
    on(window, "focus", look);
    let frame = 0;
    on(scroll, "scroll", () => (frame ||= requestAnimationFrame(() => (look(), (frame = 0)))), { passive: true });
    const sight = new IntersectionObserver((entries) => this.showClipped(entries.at(-1)), { threshold: SIGHT_STEPS });
    sight.observe(scroll);
    const observer = new ResizeObserver(() => {
      if (this.wasAtEnd) this.scrollToEnd();
      look();
    });
    observer.observe(scroll);
    signal.addEventListener("abort", () => {
      observer.disconnect();
      sight.disconnect();
      clearTimeout(this.ackTimer);
      common.live?.then(({ leave }) => leave(known));
    });
    onClick(this.older, () => this.loadMore("start"));
    onClick(this.newer, () => this.loadMore("end"));
    for (const link of [this.older, this.newer]) link.tabIndex = -1; // scrolling does the same
    onClick(jump, () => this.jumpTo(jump.dataset.to));
    mark.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ack(this.timeline.known.after);
    });
    list.addEventListener("click", (event) => {
      const quote = event.target.closest(".drm-quote");
      if (!quote) return;
      event.preventDefault();
      if (!this.find(quote.dataset.id)) this.jumpTo(quote.dataset.id);
    });
  }

  get toEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroll;
    return scrollHeight - scrollTop - clientHeight;
  }

  get atEnd() {
    return this.toEnd < END_DISTANCE;
  }

  scrollToEnd() {
    this.scroll.scrollTo({ top: this.scroll.scrollHeight });
  }

  // Changes the log without announcing it.
  silently(change) {
    const { live } = this;
    live.setAttribute("aria-live", "off");
    change();
    setTimeout(() => live.setAttribute("aria-live", "polite"), ANNOUNCE_DELAY);
  }

  // Changes the log without moving what is in sight, and without announcing it.
  quietly(change) {
    const anchor = this.topmost;
    this.silently(change);
    if (anchor?.item.isConnected) this.scrollTo(anchor.item, anchor.offset);
  }

  async loadMore(place) {
    const { beginning, state, timeline } = this;
    if (this.loading || !(place === "start" ? timeline.hasOlder : timeline.hasNewer)) return;
    this.loading = true;
    const { first, last, newest } = timeline;
    try {
      const page = await get(state.urls.feed, { ...(place === "start" ? { before: first } : { newer: last }), html: 1 });
      page.messages = parseMessages(page.messages);
      this.quietly(() => (place === "start" ? timeline.addOlder(page) : timeline.addNewer(page, newest)));
      if (place === "start") beginning.textContent = page.has_more ? "" : page.gap_text || beginning.dataset.text;
      this.loading = false;
      this.look();
    } catch (error) {
      this.loading = false;
      this.showError(error);
    }
  }

  jumpTo(at) {
    if (at === "newest" && !this.timeline.hasNewer) this.scrollToEnd();
    else this.openAt(at).catch((error) => this.showError(error));
  }

  // Shows the messages around an id, around the first "unread" one, or the "newest" ones.
  async openAt(at) {
    const number = (this.opened += 1);
    const state = await get(this.state.urls.feed, { at, html: 1 });
    if (number !== this.opened) return;
    const isOutdated = this.timeline.newest > state.newest; // more has come in since it was read
    this.getChanges = createConditionalGet(); // what it has answered may not be shown any more
    this.open({ ...state, messages: parseMessages(state.messages) });
    if (isOutdated) this.polling.now();
    if (at === "newest") this.scrollToEnd();
    else if (at === "unread") this.scrollToUnread();
    else this.find(at);
    this.look();
  }

  open(state) {
    const { beginning, list, log, timeline } = this;
    const [first] = state.messages;
    const hasRead = !state.older || first?.id <= state.read_id + 1; // else unread messages are before these
    const unread = hasRead && state.messages.find(({ id, mine }) => id > state.read_id && !mine);
    log.divider = { id: (state.unread && unread?.id) || 0, text: state.divider };
    for (const event of state.events) log.events.set(event.number, event);
    this.silently(() => timeline.open(state));
    beginning.textContent = state.older ? "" : state.gap_text || (timeline.newest ? beginning.dataset.text : "");
    list.querySelector(".drm-found")?.classList.remove("drm-found");
    this.showState(state);
  }

  // The first message in sight, and how far (px) below the top of the log it begins.
  get topmost() {
    const { top } = this.scroll.getBoundingClientRect();
    const first = this.log.messages.find(({ element: item }) => item.getBoundingClientRect().bottom > top);
    return first && { id: first.id, item: first.element, offset: first.element.getBoundingClientRect().top - top };
  }

  // Where the user is: {id, offset: px}, or null at the end of the chat.
  get here() {
    const first = this.topmost;
    if (!first || (this.atEnd && !this.timeline.hasNewer)) return null;
    return { id: first.id, offset: first.offset };
  }

  // Puts an item so far (px) below the top of the log, without moving the page of a site.
  scrollTo(item, offset) {
    this.scroll.scrollTop += item.getBoundingClientRect().top - this.scroll.getBoundingClientRect().top - offset;
  }

  // Scrolls to where the user was before.
  async return({ id, offset }) {
    if (!this.timeline.messages.has(id)) await this.openAt(id);
    const item = this.timeline.messages.get(id)?.element;
    if (!item) return;
    item.classList.remove("drm-found");
    this.scrollTo(item, offset);
    this.look();
  }

  scrollToUnread() {
    const divider = this.list.querySelector(".drm-unread");
    if (divider) this.scrollTo(divider, UNREAD_MARGIN);
    else this.scrollToEnd();
  }

  // Scrolls to a message and marks it, if it is loaded.
  find(id) {
    const item = this.timeline.messages.get(Number(id))?.element;
    if (!item) return false;
    this.list.querySelector(".drm-found")?.classList.remove("drm-found");
    item.classList.add("drm-found");
    this.scrollTo(item, Math.max(0, (this.scroll.clientHeight - item.offsetHeight) / 2));
    return true;
  }

  // Loads more near an end, moves the read position, and shows where new messages are. Not in a room that was left: its
  // answers may still come, and nothing of it has a size.
  look() {
    const { newer, older, scroll, signal, timeline } = this;
    if (signal.aborted) return;
    older.hidden = !timeline.hasOlder;
    newer.hidden = !timeline.hasNewer;
    if (scroll.scrollTop < LOAD_DISTANCE) this.loadMore("start");
    if (this.toEnd < LOAD_DISTANCE) this.loadMore("end");
    const [top, bottom] = this.inSight();
    this.log.showStop(bottom);
    if (!document.hidden && document.hasFocus() && timeline.see(top, bottom)) this.ackSoon();
    this.showJump(top);
    this.wasAtEnd = this.atEnd;
  }

  showClipped({ boundingClientRect: whole, intersectionRect: part, isIntersecting }) {
    this.clipped = isIntersecting ? { top: part.top - whole.top, bottom: whole.bottom - part.bottom } : { top: Infinity, bottom: 0 };
    this.look();
  }

  // The first and the last id of the messages whose end is in sight: in the log, in the window, and covered by nothing of the site.
  inSight() {
    const { clipped, log, scroll, timeline } = this;
    const { top, bottom, left, width } = scroll.getBoundingClientRect();
    const endOf = (message) => message.element.getBoundingClientRect().bottom;
    const visible = log.messages.filter((message) => {
      const end = endOf(message);
      return end > top + clipped.top && end <= bottom - clipped.bottom + 2;
    });
    const isCovered = (message) => message && !root.contains(document.elementFromPoint(left + width / 2, endOf(message) - 3));
    while (isCovered(visible.at(-1))) visible.pop();
    while (isCovered(visible[0])) visible.shift();
    return [visible[0]?.id ?? timeline.first, visible.at(-1)?.id ?? 0];
  }

  // The button that leads to the newest messages, or back to unread ones that were skipped.
  showJump(top) {
    const { jump, mark, timeline } = this;
    const skipped = timeline.unread > 0 && timeline.readId + 1 < top;
    const text = timeline.unread ? jump.dataset.count.replace("{count}", timeline.unread) : jump.dataset.newest;
    write(jump, `${skipped ? "↑" : "↓"} ${text}`);
    jump.dataset.to = skipped ? "unread" : "newest";
    jump.hidden = !skipped && this.atEnd && !timeline.hasNewer;
    mark.hidden = !skipped;
  }

  ackSoon(delay = ACK_DELAY) {
    clearTimeout(this.ackTimer);
    this.ackTimer = setTimeout(() => this.timeline.ack && this.ack(this.timeline.ack), delay);
  }

  async ack(cursor) {
    try {
      this.timeline.acknowledge(await post(this.state.urls.ack, { up_to: cursor }));
      document.dispatchEvent(new CustomEvent("drm:changed"));
      this.look();
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      if (error.status !== 404 && !this.signal.aborted) this.ackSoon(Math.max(ACK_RETRY_DELAY, error.retryAfter));
    }
  }

  showState(answer) {
    const { shown } = this;
    for (const name of ["seen", "title", "members", "companion", "typing"]) write(shown[name], answer[name]);
    shown.companion.parentElement.hidden = !shown.companion.textContent;
  }

  // The user is no longer a member of the chat, or it was deleted.
  end() {
    if (this.ended) return;
    this.ended = true;
    this.status.textContent = this.status.dataset.ended;
    this.scroll.closest(".drm-room").classList.add("drm-ended");
    this.onEnd();
  }

  showError(error) {
    const { status } = this;
    const { dataset } = status;
    if (this.ended) return;
    const text = error instanceof RequestError ? error.message || dataset.away : error && dataset.failed;
    if (error && !(error instanceof RequestError)) console.error(error);
    if (status.dataset.shown === (text || "")) return;
    status.dataset.shown = status.textContent = text || "";
    if (error?.status === 401 || error?.code === "other_user") status.append(" ", dataset.kept);
    if (error?.status !== 401) return;
    status.append(" ", create("a", { href: root.dataset.signIn, textContent: dataset.signIn }));
  }

  // What is known of the chat, for the server.
  get known() {
    return Object.values(this.timeline.known).join(".");
  }

  async update() {
    const { known } = this;
    const answer = await this.getChanges(this.state.urls.feed, { ...this.timeline.known, html: 1 });
    if (!answer) return false;
    if (known !== this.known) {
      this.polling.now(); // what follows something else, after a jump meanwhile
      return false;
    }
    const changed = await this.receive(answer);
    if (answer.has_more) this.polling.now();
    return changed;
  }

  receivePushed(answer) {
    if (!this.timeline.follows(answer.since)) this.polling.now();
    else
      this.receive(answer).then(
        () => this.showError(null),
        (error) => this.showError(error),
      );
  }

  // Returns whether something has changed that others follow soon.
  async receive(answer) {
    if (answer.reset || answer.edits_missed) {
      await this.openAt(answer.reset ? "unread" : this.inSight()[0]);
      return true;
    }
    const { log, timeline } = this;
    for (const name of ["messages", "changed"]) answer[name] = parseMessages(answer[name] ?? []);
    const follows = this.atEnd && !timeline.hasNewer;
    let added = [];
    const receive = () => (added = timeline.receive(answer, follows));
    if (follows) receive();
    else this.quietly(receive);
    log.addEvents(answer.events ?? []);
    if (follows) this.scrollToEnd();
    this.showState(answer);
    this.look();
    if (added.length) document.dispatchEvent(new CustomEvent("drm:changed"));
    return added.length > 0 || Boolean(answer.typing);
  }

  async show({ html }) {
    const { timeline } = this;
    const message = parseMessage(element(html));
    if (timeline.messages.has(message.id)) timeline.replace(message);
    else if (timeline.hasNewer) await this.openAt("newest");
    else if (!timeline.add(message)) await this.update();
    if (message.id === timeline.last) this.scrollToEnd();
    this.look();
  }
}
