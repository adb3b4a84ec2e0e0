// The notification bell. Polls the unread count, less often in a hidden tab. Tabs of the same browser keep each
// other up to date: after marking notifications as read (event "drm:read"), and after loading a page, whose
// HTML has the count of that moment. A tab with a different state then polls at once.

const bells = [...document.querySelectorAll(".drm-bell")];
const { get, poll } = await import(bells[0].dataset.common);
const tabs = new BroadcastChannel("drm-bell");
let state = bells[0].dataset.state;

function show({ unread, label, text }) {
  for (const bell of bells) {
    const count = bell.querySelector(".drm-bell-count");
    count.textContent = text;
    count.hidden = !unread;
    bell.title = label;
    bell.setAttribute("aria-label", label);
  }
}

async function update() {
  const status = await get(bells[0].dataset.feed);
  const changed = status.state !== state;
  state = status.state;
  if (changed) {
    show(status);
    document.dispatchEvent(new Event("drm:unread"));
  }
  return changed;
}

const polling = poll(update, { minDelay: 5000, maxDelay: 30000, hiddenDelay: 120000 });
// After navigating back, the page may come from a cache and have an old count.
const [{ type }] = performance.getEntriesByType("navigation");
if (state === "" || type === "back_forward") polling.soon();
else tabs.postMessage(state);
document.addEventListener("drm:read", () => {
  tabs.postMessage(null);
  polling.soon();
});
tabs.addEventListener("message", ({ data }) => data === state || polling.soon());
