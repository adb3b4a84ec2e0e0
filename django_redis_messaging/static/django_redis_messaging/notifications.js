// The notifications page: submits the forms without leaving the page, and reloads the list when the bell's count
// changes. Without this module, the forms do the same. Forms that follow a link are submitted normally.

const common = await import(document.getElementById("drm-common").href);
const { RequestError, byId, getPage, post, relativeTime, root } = common;

const status = byId("status");
let latest = 0; // number of the latest refresh: responses to earlier ones are ignored

function container() {
  return byId("notices");
}

function updateTimes() {
  for (const time of container().querySelectorAll("time")) {
    time.textContent = relativeTime(new Date(time.dateTime), container().dataset.now);
  }
}

function notifications() {
  return [...container().querySelectorAll(".drm-notice")];
}

// Describes the focused element: the id and index of its notification, and whether it is the text or which of
// the buttons. Returns null if the focus is outside the list.
function saveFocus() {
  const active = document.activeElement;
  const notification = active?.closest?.(".drm-notice");
  if (!notification) return container().contains(active) ? {} : null;
  const action = active.closest("form")?.getAttribute("action");
  const inText = active.closest(".drm-notice-said") !== null;
  return { id: notification.id, index: notifications().indexOf(notification), action, inText };
}

// Focuses the same element, else the same notification, else the one at its index, else the heading.
function restoreFocus({ id, index, action, inText }) {
  const notification = document.getElementById(id) ?? notifications()[index] ?? notifications().at(-1);
  const selector = inText
    ? ".drm-notice-said :is(a, button)"
    : `.drm-notice-buttons form[action="${action}"] button`;
  const target = notification?.id === id && notification.querySelector(selector);
  (target || notification || byId("h")).focus();
}

async function refresh() {
  const number = (latest += 1);
  const list = (await getPage(location.href))?.getElementById("drm-notices");
  if (!list || number !== latest) return;
  const focus = saveFocus();
  container().replaceWith(list);
  updateTimes();
  if (focus) restoreFocus(focus);
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
