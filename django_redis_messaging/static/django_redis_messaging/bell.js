// The notification bell: the unread count, pushed or polled. Tabs tell each other of reading ("drm:read") and of the state of
// a loaded page; those with another state poll at once.

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

function receive(status) {
  const changed = status.state !== state;
  state = status.state;
  if (changed) {
    show(status);
    document.dispatchEvent(new Event("drm:unread"));
  }
  return changed;
}

const update = async () => receive(await get(bells[0].dataset.feed));

const polling = poll(update, { minDelay: 5000, maxDelay: 30000, hiddenDelay: 120000 });
// After navigating back, the page may have an old count.
const [{ type }] = performance.getEntriesByType("navigation");
if (state === "" || type === "back_forward") polling.soon();
else tabs.postMessage(state);
document.addEventListener("drm:read", () => {
  tabs.postMessage(null);
  polling.soon();
});
document.addEventListener("drm:live-bell", ({ detail }) => receive(detail));
tabs.addEventListener("message", ({ data }) => data === state || polling.soon());
