// The notifications: changed without leaving the page, and shown anew when the bell's count moves. The forms
// do the same without this; that of a link is one, too, and is left alone.

const { ago, post, root, Refused } = await import(document.getElementById("drm-common").href);

const status = document.getElementById("drm-status");
let turn = 0;

function holder() {
  return document.getElementById("drm-notices");
}

function showTimes() {
  for (const time of holder().querySelectorAll("time")) {
    time.textContent = ago(new Date(time.dateTime), holder().dataset.now);
  }
}

function notices() {
  return [...holder().querySelectorAll(".drm-notice")];
}

// Where the focus was: on which notification, by id and by place, and on what it says or which of its buttons.
function focused() {
  const notice = document.activeElement?.closest?.(".drm-notice");
  if (!notice) return holder().contains(document.activeElement) ? {} : null;
  const action = document.activeElement.closest("form")?.getAttribute("action");
  const said = document.activeElement.closest(".drm-notice-said") !== null;
  return { id: notice.id, at: notices().indexOf(notice), action, said };
}

function focus({ id, at, action, said }) {
  const notice = document.getElementById(id) ?? notices()[at] ?? notices().at(-1);
  const within = said ? ".drm-notice-said :is(a, button)" : `.drm-notice-buttons form[action="${action}"] button`;
  const element = notice?.id === id && notice.querySelector(within);
  (element || notice || document.getElementById("drm-h")).focus();
}

async function refresh() {
  const mine = (turn += 1);
  const answer = await fetch(location.href, { credentials: "same-origin" }).catch(() => null);
  if (!answer?.ok || mine !== turn) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const found = page.getElementById("drm-notices");
  if (!found || mine !== turn) return;
  const place = focused();
  holder().replaceWith(found);
  showTimes();
  if (place) focus(place);
}

async function change(address, fields) {
  try {
    await post(address, fields);
    status.textContent = "";
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
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
showTimes();
setInterval(showTimes, 30000);
