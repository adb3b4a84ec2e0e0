// Keeps the list of orders fresh, and counts down in between; what is being filled in stays as it is.

const FRESH = 2000; // ms
let list = document.querySelector(".orders");
let began = performance.now();

function count() {
  const gone = (performance.now() - began) / 1000;
  for (const line of list.querySelectorAll("[data-remaining]")) {
    line.textContent = Math.max(0, Math.round(line.dataset.remaining - gone));
  }
}

async function look() {
  const answer = await fetch(location.href).catch(() => null); // offline: the next look tells
  const page = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page && page.querySelector(".orders");
  // a button somebody is about to press is not taken away
  if (!fresh || list.contains(document.activeElement)) return;
  list.replaceWith(fresh);
  list = fresh;
  began = performance.now();
}

async function keepLooking() {
  if (!document.hidden) await look();
  setTimeout(keepLooking, FRESH);
}

count();
setInterval(count, 250);
setTimeout(keepLooking, FRESH);
