// Reloads the list of orders regularly, and counts down in between. The form keeps what the user has typed.

const REFRESH_INTERVAL = 2000; // ms
const COUNTDOWN_INTERVAL = 250; // ms
let list = document.querySelector(".orders");
let loadedAt = performance.now();

function countDown() {
  const elapsed = (performance.now() - loadedAt) / 1000;
  for (const field of list.querySelectorAll("[data-remaining]")) {
    field.textContent = Math.max(0, Math.round(field.dataset.remaining - elapsed));
  }
}

async function refresh() {
  const response = await fetch(location.href).catch(() => null); // offline: try again after the interval
  const page = response?.ok && new DOMParser().parseFromString(await response.text(), "text/html");
  const newList = page && page.querySelector(".orders");
  // Keep a button that has the focus: the user may be about to press it.
  if (!newList || list.contains(document.activeElement)) return;
  list.replaceWith(newList);
  list = newList;
  loadedAt = performance.now();
}

async function refreshRegularly() {
  if (!document.hidden) await refresh();
  setTimeout(refreshRegularly, REFRESH_INTERVAL);
}

countDown();
setInterval(countDown, COUNTDOWN_INTERVAL);
setTimeout(refreshRegularly, REFRESH_INTERVAL);
