// The bell: its count is kept fresh by polls, rare ones where the tab is hidden. A page that marked something
// as read says so by an event "drm:read", and a page that was opened has a count of its own: the other tabs of
// this browser then look at once, if theirs is another.

const bells = [...document.querySelectorAll(".drm-bell")];
const { get, poll } = await import(bells[0].dataset.common);
const tabs = new BroadcastChannel("drm-bell");
let known = bells[0].dataset.state;

function show({ unread, label, text }) {
  for (const bell of bells) {
    const count = bell.querySelector(".drm-bell-count");
    count.textContent = text;
    count.hidden = !unread;
    bell.title = label;
    bell.setAttribute("aria-label", label);
  }
}

async function look() {
  const news = await get(bells[0].dataset.feed);
  const changed = news.state !== known;
  known = news.state;
  if (changed) {
    show(news);
    document.dispatchEvent(new Event("drm:unread"));
  }
  return changed;
}

const polling = poll(look, { near: 5000, far: 30000, hidden: 120000 });
// What "back" brings may be older than what was read since.
const [{ type }] = performance.getEntriesByType("navigation");
if (known === "" || type === "back_forward") polling.soon();
else tabs.postMessage(known);
document.addEventListener("drm:read", () => {
  tabs.postMessage(null);
  polling.soon();
});
tabs.addEventListener("message", ({ data }) => data === known || polling.soon());
