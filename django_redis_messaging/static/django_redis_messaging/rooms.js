// Opens the room of the page, and others in its place: choosing a chat in the list loads no new page.

const load = (name) => import(document.getElementById(`drm-${name}`).href);
const { byId, getPage, root } = await load("common");

let latest = 0; // number of the latest choice: earlier responses are ignored
let shown = location.href;
let room = null;
let closing = new AbortController(); // ends what belongs to the room
let modules; // of rooms, loaded with the first one

const withoutHash = (url) => url.split("#")[0];

// In a template, their links load nothing.
function loadModules() {
  const inert = byId("room-modules");
  inert?.replaceWith(inert.content);
  return Promise.all(["room", "compose", "options"].map(load));
}

async function open() {
  const { signal } = (closing = new AbortController());
  room = null;
  if (!byId("log")) return;
  const [{ Room }, { Composer }, { Options }] = await (modules ??= loadModules());
  if (signal.aborted) return;
  room = new Room(signal, history.state?.place);
  new Options(room, new Composer(room, signal), signal);
}

// The entry of the history keeps where the user is in the room.
function keepPlace() {
  if (withoutHash(location.href) !== withoutHash(shown)) return; // the one that is gone back to
  history.replaceState({ ...history.state, inPlace: true, place: room?.here }, "");
}

// Shows the room of another page, or what is beside the list there, in the place of this room.
async function show(url, { isNew }) {
  const number = (latest += 1);
  (modules ??= loadModules()).catch(() => {}); // that it fails is seen when the room is opened
  const page = await getPage(url, { "Messaging-Without": "list" });
  if (number !== latest) return;
  const other = page?.getElementById("drm");
  if (other?.dataset.user !== root.dataset.user || !other.querySelector(".drm-room")) {
    // The page says that the user has been signed out, or that the chat is gone.
    if (isNew) location.assign(url);
    else location.reload();
    return;
  }
  const left = room?.state.chat;
  closing.abort();
  if (isNew) history.pushState({ inPlace: true }, "", url);
  shown = url;
  for (const part of [".drm-room", ".drm-skip", ".drm-crumbs"]) {
    const [own, its] = [document, page].map((one) => one.querySelector(part));
    if (own && its) own.replaceWith(its);
  }
  root.className = other.className;
  root.dataset.signIn = other.dataset.signIn;
  document.title = page.title;
  try {
    await open();
  } catch {
    location.reload(); // without the modules of rooms, or with those of another version of the site, it can't be opened here
  }
  if (url !== shown) return;
  document.dispatchEvent(new CustomEvent("drm:room", { detail: { chat: room?.state.chat, title: page.title } }));
  if (document.activeElement === document.body) (byId("title") ?? rowOf(left))?.focus({ preventScroll: true });
}

const rowOf = (chat) => byId("rows").querySelector(`[data-id="${CSS.escape(chat)}"] > a`);

function handleClick(event) {
  const link = event.target.closest(".drm-row > a, .drm-back");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (link.matches(".drm-back") && !("feed" in byId("rows").dataset)) return; // the list is of older chats
  event.preventDefault();
  keepPlace();
  show(link.href, { isNew: link.href !== location.href });
}

function handlePop({ state }) {
  if (!state?.inPlace) return;
  if (withoutHash(location.href) === withoutHash(shown)) latest += 1; // back where the user is: nothing else is wanted
  else show(location.href, { isNew: false });
}

root.addEventListener("click", handleClick);
document.addEventListener("scrollend", keepPlace, { capture: true });
addEventListener("pagehide", keepPlace);
addEventListener("popstate", handlePop);
await open();
keepPlace();
