// The log of a room, with days, the divider above new messages, and quiet entries (who joined, left, renamed the chat).

const { clock, create, dayName, dayOf, element, fullTime } = await import(document.getElementById("drm-common").href);

const GROUPING_INTERVAL = 300_000; // ms, as in presentation.py

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

function showTime(item) {
  const time = item.querySelector(".drm-meta time");
  time.textContent = clock(sentAt(item));
  time.title = fullTime(sentAt(item));
}

export class LogView {
  constructor(list) {
    this.list = list;
    this.timeline = null;
    // The id of the message below the divider, and the divider's text.
    this.divider = { id: 0, text: "" };
    this.events = new Map(); // number → quiet entry
  }

  get messages() {
    return [...this.timeline.messages.values()];
  }

  insert(messages, place) {
    const items = messages.map((message) => message.element);
    const next = place === "start" ? this.list.querySelector(".drm-message") : null;
    this.list[place === "start" ? "prepend" : "append"](...items);
    for (const item of items) {
      showTime(item);
      this.decorate(item);
    }
    this.decorate(next);
  }

  replace(message, old) {
    old.element.replaceWith(message.element);
    showTime(message.element);
    this.decorate(message.element);
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
