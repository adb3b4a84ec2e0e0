// The notifications page: submits its forms without leaving it, and reloads the list when the bell's count changes.

const common = await import(document.getElementById("drm-common").href);
const { RequestError, byId, getPage, post, root, showTimes } = common;

const status = byId("status");
let latest = 0; // number of the latest refresh: earlier responses are ignored

const container = () => byId("notices");
const notifications = () => [...container().querySelectorAll(".drm-notice")];

const updateTimes = () => showTimes(container());

// What has the focus keeps it; else its notification, the one in its place, or the heading gets it.
async function refresh() {
  const number = (latest += 1);
  const list = (await getPage(location.href))?.getElementById("drm-notices");
  if (!list || number !== latest) return;
  const focused = document.activeElement;
  const hadFocus = container().contains(focused);
  const index = notifications().findIndex((item) => item.contains(focused));
  const id = notifications()[index]?.id;
  container().replaceWith(list);
  updateTimes();
  if (!hadFocus) return;
  const [same, other] = [focused.id, id].map((one) => document.getElementById(one));
  (same ?? other ?? notifications()[index] ?? notifications().at(-1) ?? byId("h")).focus();
}

async function change(address, fields) {
  try {
    await post(address, fields);
    status.textContent = "";
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    status.textContent = error.message || status.dataset.failed;
    return;
  }
  document.dispatchEvent(new Event("drm:read"));
  await refresh();
}

root.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-change]")) return;
  event.preventDefault();
  change(form.action, new FormData(form));
});

document.addEventListener("drm:unread", refresh);
updateTimes();
setInterval(updateTimes, 30000);
