// The composer. A message appears in the room at once, marked as pending. It is sent again with the same request
// id until the server confirms it or the user discards it, so network errors neither lose nor duplicate it.

const { post } = await import(document.getElementById("drm-common").href);

const form = document.getElementById("drm-composer");
const body = document.getElementById("drm-body");
const button = document.getElementById("drm-send");
const banner = document.getElementById("drm-editing");
const status = document.getElementById("drm-status");
const log = document.getElementById("drm-log");
const pendingTemplate = document.getElementById("drm-pending");
const RETRY_DELAYS = [1000, 3000, 8000]; // ms
const RETRYABLE = new Set(["offline", "unavailable", "outcome_unknown", "failed"]);
const MAX_ROWS = 7;
let requestId = form.elements.request_id.value;
let queue = Promise.resolve();

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function newRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function appendPending(text) {
  const item = pendingTemplate.content.firstElementChild.cloneNode(true);
  item.querySelector(".drm-body").textContent = text;
  log.append(item);
  item.scrollIntoView({ block: "end" });
  return item;
}

async function postWithRetries(fields) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await post(form.dataset.send, fields, { html: true });
    } catch (error) {
      const retryable = RETRYABLE.has(error.code) && (error.status === 0 || error.status >= 500);
      if (!retryable || attempt >= RETRY_DELAYS.length) throw error;
      await wait(Math.max(RETRY_DELAYS[attempt], error.retryAfter));
    }
  }
}

async function send(item, fields) {
  item.classList.remove("drm-failed");
  item.querySelector(".drm-retry").hidden = true;
  item.querySelector(".drm-state").hidden = false;
  try {
    const { message } = await postWithRetries(fields);
    item.remove();
    document.dispatchEvent(new CustomEvent("drm:sent", { detail: message }));
  } catch (error) {
    item.classList.add("drm-failed");
    item.querySelector(".drm-state").hidden = true;
    item.querySelector(".drm-why").textContent = error.message || status.dataset.failed;
    item.querySelector(".drm-retry").hidden = false;
  }
}

// Sends one message at a time, which keeps their order.
function enqueue(item, fields) {
  queue = queue.then(() => send(item, fields));
}

function submitMessage(text) {
  const fields = { body: text, request_id: requestId };
  requestId = newRequestId();
  const item = appendPending(text);
  item.querySelector("[data-retry]").addEventListener("click", () => enqueue(item, fields));
  item.querySelector("[data-discard]").addEventListener("click", () => item.remove());
  enqueue(item, fields);
}

async function saveEdit(text) {
  try {
    const { message } = await post(form.action, { body: text }, { html: true });
    stopEditing();
    document.dispatchEvent(new CustomEvent("drm:sent", { detail: message }));
  } catch (error) {
    status.textContent = error.message || status.dataset.failed;
  }
}

// The text of a message without the "Show all" inside.
function textOf(element) {
  const copy = element.cloneNode(true);
  copy.querySelector("summary")?.remove();
  return copy.textContent;
}

function startEditing(link) {
  form.action = link.dataset.edit;
  body.value = textOf(link.closest(".drm-message").querySelector(".drm-body"));
  banner.hidden = false;
  button.textContent = button.dataset.save;
  link.closest("details").open = false;
  resize();
  body.focus();
}

function stopEditing() {
  form.action = form.dataset.send;
  body.value = "";
  banner.hidden = true;
  button.textContent = button.dataset.send;
  resize();
  body.focus();
}

function resize() {
  if (CSS.supports("field-sizing", "content")) return;
  body.rows = Math.min(body.value.split("\n").length, MAX_ROWS);
}

// On a page of older messages the form is submitted normally, and leads to the newest messages.
if ("live" in log.dataset) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = body.value.trim();
    if (!text) return;
    if (!banner.hidden) {
      saveEdit(text);
      return;
    }
    submitMessage(text);
    body.value = "";
    resize();
  });
  log.addEventListener("click", (event) => {
    const link = event.target.closest("[data-edit]");
    if (!link) return;
    event.preventDefault();
    startEditing(link);
  });
  document.getElementById("drm-cancel").addEventListener("click", (event) => {
    event.preventDefault();
    stopEditing();
  });
}
body.addEventListener("input", resize);
body.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !banner.hidden) stopEditing();
  // While an input method composes a character, Enter confirms that character.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
