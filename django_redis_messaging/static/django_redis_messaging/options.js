// The options of a message: one menu for all.

const load = (name) => import(document.getElementById(`drm-${name}`).href);
const { byId, post } = await load("common");
const { room, show, showError } = await load("room");
const { startEditing, startReplying } = await load("compose");

const list = byId("log");
const menu = byId("menu");
const dialog = byId("confirm");
const status = byId("status");
const body = byId("body");
const scroll = byId("scroll");
let link = null; // to the page of the message whose options are shown
let item = null; // the message

const actions = {
  reply: () => startReplying(Number(item.dataset.id), item.querySelector(".drm-author").textContent.trim()),
  edit: () => startEditing(item.id, link.href),
  delete: () => confirmDelete(link.href),
  async copy() {
    await navigator.clipboard.writeText(new URL(`?at=${item.dataset.id}`, new URL(room.urls.room, location.href)));
    status.textContent = status.dataset.copied;
  },
};

const items = () => [...menu.querySelectorAll("button:not([hidden])")];

// Shows the menu in a message, above the link if there is no room below.
function open(target) {
  close();
  link = target;
  item = link.closest(".drm-message");
  for (const button of menu.querySelectorAll("button")) button.hidden = !isPossible(button.dataset.act);
  link.after(menu);
  menu.hidden = false;
  const space = scroll.getBoundingClientRect().bottom - link.getBoundingClientRect().bottom;
  menu.classList.toggle("drm-up", menu.offsetHeight > space);
  link.setAttribute("aria-expanded", "true");
  items()[0].focus();
}

function close() {
  const hadFocus = menu.contains(document.activeElement);
  menu.hidden = true;
  link?.removeAttribute("aria-expanded");
  if (hadFocus) link.focus();
}

function isPossible(action) {
  if (action === "copy") return Boolean(navigator.clipboard);
  return action === "reply" || item.dataset.can.split(" ").includes(action);
}

async function confirmDelete(url) {
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue !== "delete") return;
  const { message } = await post(new URL("delete/", url));
  await show(message);
  body.focus({ preventScroll: true });
}

function handleKey(event) {
  const index = items().indexOf(document.activeElement);
  const steps = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: -1 };
  if (event.key === "Escape") close();
  else if (event.key in steps) items().at(steps[event.key] % items().length).focus();
  else return;
  event.preventDefault();
}

list.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-act]");
  const target = event.target.closest(".drm-dots");
  if (!button && (!target || event.ctrlKey || event.metaKey || event.shiftKey)) return;
  event.preventDefault();
  if (target) {
    if (target === link && !menu.hidden) close();
    else open(target);
    return;
  }
  close();
  try {
    await actions[button.dataset.act]();
  } catch (error) {
    showError(error);
  }
});
menu.addEventListener("keydown", handleKey);
document.addEventListener("click", (event) => menu.hidden || menu.parentElement.contains(event.target) || close());
