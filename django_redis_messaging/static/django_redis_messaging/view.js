// The log of a room, with days, the divider above new messages, and quiet entries (who joined, left, renamed the chat).

const common = await import(document.getElementById("drm-common").href);
const { Roving, byId, clock, create, dayName, dayOf, element, fullTime, tellApart } = common;

const GROUPING_INTERVAL = 300_000; // ms, as in rendering.py
const LINE = 40; // px, by which an arrow key scrolls

const idOf = (item) => Number(item.dataset.id);
const sentAt = (item) => new Date(item.querySelector(".drm-meta time").dateTime);

export function parseMessage(item) {
  const { id, cursor, edited } = item.dataset;
  return { id: Number(id), cursor, edited, mine: item.matches(".drm-mine"), element: item };
}

export const parseMessages = (messages) => messages.map(({ html }) => parseMessage(element(html)));

function createNote(className, text) {
  const item = create("li", { className: `drm-quiet ${className}` });
  item.append(create("span", { textContent: text }));
  return item;
}

const controlsOf = (item) => [...item.querySelectorAll("a, summary")];

// With these modules, the link to the page of a message opens a menu.
const BUTTON = { role: "button", "aria-haspopup": "menu", "aria-expanded": "false" };

// Once for each element of a message.
function prepare(item) {
  const time = item.querySelector(".drm-meta time");
  time.textContent = clock(sentAt(item));
  time.title = fullTime(sentAt(item));
  item.tabIndex = -1;
  for (const control of controlsOf(item)) control.tabIndex = -1; // the arrow keys reach it from the message
  const dots = item.querySelector(".drm-dots");
  for (const [name, value] of Object.entries(BUTTON)) dots?.setAttribute(name, value);
}

export const oneLine = (text) => text.trim().replace(/\s+/g, " ");

// The text of a message, without the words that unfold it.
export function textOf(item) {
  const body = item.querySelector(".drm-body").cloneNode(true);
  body.querySelector(".drm-fold > summary")?.remove();
  return body.textContent;
}

export class LogView {
  constructor(list) {
    this.list = list;
    this.scroller = list.closest(".drm-scroll");
    this.timeline = null;
    this.editing = ""; // id of the element of the message that is edited
    // The id of the message below the divider, and the divider's text.
    this.divider = { id: 0, text: "" };
    this.events = new Map(); // number → quiet entry
    list.addEventListener("focusin", ({ target }) => target.matches(".drm-message") && this.label(target));
    list.addEventListener("keydown", (event) => this.handleKey(event)); // before that of Roving
    this.roving = new Roving(list, () => [...list.querySelectorAll(":scope > .drm-message")], (items) => items.at(-1));
  }

  // What a screen reader says of the message that gets the focus.
  label(item) {
    const parts = item.querySelectorAll(".drm-author, .drm-quote, .drm-body, .drm-meta");
    item.ariaLabel = Array.from(parts, (part) => oneLine(part.textContent)).join(", ");
  }

  // Tab reaches the last message in sight, unless one has the focus.
  showStop(id) {
    if (!this.list.contains(document.activeElement)) this.roving.update(this.timeline.messages.get(id)?.element);
    this.scroller.tabIndex = this.roving.current ? -1 : 0;
  }

  // Left and right lead to the links and the button of a message. Of a long message, the rest comes into sight first.
  handleKey(event) {
    const { key, target } = event;
    const item = target.closest(".drm-message");
    const stops = [item, ...controlsOf(item)].filter((stop) => stop.checkVisibility());
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || !stops.includes(target)) return;
    const forward = getComputedStyle(item).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    if (["ArrowLeft", "ArrowRight"].includes(key)) stops[stops.indexOf(target) + (key === forward ? 1 : -1)]?.focus();
    else if (this.continues(item, key)) this.scroller.scrollBy({ top: key === "ArrowDown" ? LINE : -LINE });
    else return;
    event.preventDefault();
  }

  // Whether more of a message is out of sight where an arrow key leads.
  continues(item, key) {
    const { bottom, top } = item.getBoundingClientRect();
    const sight = this.scroller.getBoundingClientRect();
    return (key === "ArrowDown" && bottom > sight.bottom + 2) || (key === "ArrowUp" && top < sight.top - 2);
  }

  // Marks the message that is edited.
  markEdited(id) {
    this.editing = id;
    for (const item of this.list.children) this.markItem(item);
  }

  markItem(item) {
    item.classList.toggle("drm-edited", Boolean(this.editing) && item.id === this.editing);
  }

  get messages() {
    return [...this.timeline.messages.values()];
  }

  insert(messages, place) {
    byId("no-messages")?.remove();
    const items = messages.map((message) => message.element);
    const next = place === "start" ? this.list.querySelector(".drm-message") : null;
    this.list[place === "start" ? "prepend" : "append"](...items);
    for (const item of items) {
      prepare(item);
      this.decorate(item);
    }
    this.decorate(next);
    tellApart();
  }

  replace(message, old) {
    const hadFocus = old.element.contains(document.activeElement);
    prepare(message.element);
    old.element.replaceWith(message.element);
    if (hadFocus) message.element.focus({ preventScroll: true });
    this.decorate(message.element);
    tellApart();
  }

  remove(messages) {
    for (const { element: item } of messages) item.remove();
    this.decorate(this.list.querySelector(".drm-message"));
    this.decorate(null);
  }

  addEvents(events) {
    for (const event of events) {
      this.events.set(event.number, event);
      this.decorate(this.messages.find(({ id }) => id > event.after)?.element ?? null);
    }
  }

  // Groups a message with the one before it, and renews what is between them; for null, what is after the last one.
  decorate(item) {
    let previous = item ? item.previousElementSibling : this.list.lastElementChild;
    while (previous && !previous.matches(".drm-message")) {
      const note = previous;
      previous = note.previousElementSibling;
      note.remove();
    }
    const isNext = this.putNotes(previous, item) && previous;
    if (!item) return;
    this.markItem(item);
    const isClose = isNext && sentAt(item) - sentAt(previous) < GROUPING_INTERVAL;
    item.classList.toggle("drm-follows", isClose && previous.dataset.sender === item.dataset.sender);
  }

  // Puts the notes between two messages. Returns whether there is none.
  putNotes(previous, item) {
    const notes = [];
    let day = previous && dayOf(sentAt(previous));
    const addDay = (moment) => {
      if (dayOf(moment) !== day) notes.push(createNote("drm-day", dayName(dayOf(moment))));
      day = dayOf(moment);
    };
    for (const { at, text } of this.eventsBetween(previous, item)) {
      addDay(new Date(at));
      notes.push(createNote("drm-event", text));
    }
    if (item) addDay(sentAt(item));
    if (item && idOf(item) === this.divider.id) {
      notes.push(Object.assign(createNote("drm-unread", this.divider.text), { id: "drm-unread" }));
    }
    for (const note of notes) this.list.insertBefore(note, item);
    return notes.length === 0;
  }

  eventsBetween(previous, item) {
    const from = previous ? idOf(previous) : this.timeline.hasOlder ? Infinity : 0;
    const to = item ? idOf(item) : this.timeline.hasNewer ? 0 : Infinity;
    return [...this.events.values()].filter(({ after }) => after >= from && after < to);
  }
}
