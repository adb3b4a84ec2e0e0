// The contacts page: searches while the user types.

const { byId, getPage } = await import(document.getElementById("drm-common").href);

const form = byId("find");
const input = byId("q");
const TYPING_DELAY = 200; // ms
let timer;
let latest = 0; // number of the latest search: earlier responses are ignored

async function search() {
  const number = (latest += 1);
  const url = new URL(form.action);
  url.searchParams.set("q", input.value);
  const results = (await getPage(url))?.getElementById("drm-results");
  if (!results || number !== latest) return;
  byId("results").replaceChildren(...results.childNodes);
  history.replaceState(null, "", url);
}

input.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(search, TYPING_DELAY);
});
if (input.value !== input.defaultValue) search(); // typed before this script was there
