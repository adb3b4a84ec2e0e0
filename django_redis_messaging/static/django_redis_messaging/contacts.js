// Contacts: the search's results come while one types; the form does the same without this.

const form = document.getElementById("drm-find");
const input = document.getElementById("drm-q");
const PAUSE = 200;
let timer;
let turn = 0;

async function search() {
  const mine = (turn += 1);
  const url = new URL(form.action);
  url.searchParams.set("q", input.value);
  const answer = await fetch(url, { credentials: "same-origin" }).catch(() => null);
  if (!answer?.ok || mine !== turn) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const found = page.getElementById("drm-results");
  if (!found || mine !== turn) return;
  document.getElementById("drm-results").replaceChildren(...found.childNodes);
  history.replaceState(null, "", url);
}

input.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(search, PAUSE);
});
