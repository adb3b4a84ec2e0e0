// Writing: what is sent stands in the room at once, and is sent again, with the same request id, until
// it has arrived or somebody discards it. So it arrives once, whatever the network does.

const { post } = await import(document.getElementById("drm-common").href);

const form = document.getElementById("drm-composer");
const body = document.getElementById("drm-body");
const button = document.getElementById("drm-send");
const banner = document.getElementById("drm-editing");
const status = document.getElementById("drm-status");
const log = document.getElementById("drm-log");
const pattern = document.getElementById("drm-pending");
const PAUSES = [1000, 3000, 8000];
const AGAIN = new Set(["offline", "unavailable", "outcome_unknown", "failed"]);
let requestId = form.elements.request_id.value;
let queue = Promise.resolve();

const wait = (ms) => new Promise((done) => setTimeout(done, ms));

function nextRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function pending(text) {
  const item = pattern.content.firstElementChild.cloneNode(true);
  item.querySelector(".drm-body").textContent = text;
  log.append(item);
  item.scrollIntoView({ block: "end" });
  return item;
}

async function deliver(fields) {
  for (let turn = 0; ; turn += 1) {
    try {
      return await post(form.dataset.send, fields, { html: true });
    } catch (error) {
      const transient = AGAIN.has(error.code) && (error.status === 0 || error.status >= 500);
      if (!transient || turn >= PAUSES.length) throw error;
      await wait(Math.max(PAUSES[turn], error.retry));
    }
  }
}

async function send(item, fields) {
  item.classList.remove("drm-failed");
  item.querySelector(".drm-retry").hidden = true;
  item.querySelector(".drm-state").hidden = false;
  try {
    const { message } = await deliver(fields);
    item.remove();
    document.dispatchEvent(new CustomEvent("drm:sent", { detail: message }));
  } catch (error) {
    item.classList.add("drm-failed");
    item.querySelector(".drm-state").hidden = true;
    item.querySelector(".drm-why").textContent = error.message || status.dataset.failed;
    item.querySelector(".drm-retry").hidden = false;
  }
}

// One after the other: what was written first arrives first.
function enqueue(item, fields) {
  queue = queue.then(() => send(item, fields));
}

function start(text) {
  const fields = { body: text, request_id: requestId };
  requestId = nextRequestId();
  const item = pending(text);
  item.querySelector("[data-retry]").addEventListener("click", () => enqueue(item, fields));
  item.querySelector("[data-discard]").addEventListener("click", () => item.remove());
  enqueue(item, fields);
}

async function save(text) {
  try {
    const { message } = await post(form.action, { body: text }, { html: true });
    stopEditing();
    document.dispatchEvent(new CustomEvent("drm:sent", { detail: message }));
  } catch (error) {
    status.textContent = error.message || status.dataset.failed;
  }
}

function edit(link) {
  form.action = link.dataset.edit;
  body.value = link.closest(".drm-message").querySelector(".drm-body").textContent;
  banner.hidden = false;
  button.textContent = button.dataset.save;
  link.closest("details").open = false;
  fit();
  body.focus();
}

function stopEditing() {
  form.action = form.dataset.send;
  body.value = "";
  banner.hidden = true;
  button.textContent = button.dataset.send;
  fit();
  body.focus();
}

function fit() {
  if (CSS.supports("field-sizing", "content")) return;
  body.rows = Math.min(body.value.split("\n").length, 7);
}

// A room shows older messages: then the form goes its plain way, to the newest.
if ("live" in log.dataset) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = body.value.trim();
    if (!text) return;
    if (!banner.hidden) {
      save(text);
      return;
    }
    start(text);
    body.value = "";
    fit();
  });
  log.addEventListener("click", (event) => {
    const link = event.target.closest("[data-edit]");
    if (!link) return;
    event.preventDefault();
    edit(link);
  });
  document.getElementById("drm-cancel").addEventListener("click", (event) => {
    event.preventDefault();
    stopEditing();
  });
}
body.addEventListener("input", fit);
body.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !banner.hidden) stopEditing();
  // Enter that ends the writing of a character (an input method) is none of ours.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
