// The switches of the account menu, and the list of keys. Loaded when it is opened.

const { byId, choose, chosen, root } = await import(document.getElementById("drm-common").href);

const switches = [...root.querySelectorAll("[data-choice]")];
const status = byId("choice-status");

// What must succeed before something is switched on: the user sees, or hears, it.
const trials = {
  async notify() {
    if ((await globalThis.Notification?.requestPermission()) !== "granted") return false;
    try {
      return Boolean(new Notification(status.dataset.works, { tag: "drm-trial" }));
    } catch {
      return false; // phones: only a service worker may notify
    }
  },
  async sound() {
    (await import(root.dataset.alerts)).playSound();
    return Boolean(navigator.locks);
  },
  keys: () => true,
};

function show() {
  for (const one of switches) one.setAttribute("aria-checked", String(chosen(one.dataset.choice)));
}

async function change({ currentTarget: { dataset } }) {
  const name = dataset.choice;
  const wanted = !chosen(name);
  status.textContent = "";
  if (wanted && !(await trials[name]())) status.textContent = status.dataset.refused;
  else choose(name, wanted);
  show();
}

export function showKeys() {
  byId("keys").showModal();
}

for (const row of root.querySelectorAll("[data-scripted]")) row.hidden = false;
for (const one of switches) one.addEventListener("click", change);
show();
