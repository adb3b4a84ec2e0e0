// Shared by the other modules: requests, polling, storage, times.

// Has the data of the page. Null on other pages of the site.
export const root = document.getElementById("drm");

export const byId = (name) => document.getElementById(`drm-${name}`);
export const create = (tag, properties) => Object.assign(document.createElement(tag), properties);

// A request that failed, with `code` and `status` of the response ("offline" and 0 without one); `retryAfter` is in ms.
export class RequestError extends Error {
  constructor(message, { code = "failed", status = 0, retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { code, status, retryAfter });
  }
}

// Avatar, name and second line of a suggestion.
export function createFace({ text, description, initials, hue, picture }) {
  const avatar = create("span", { className: `drm-avatar drm-hue-${Number(hue)}`, textContent: initials, ariaHidden: "true" });
  if (picture) avatar.append(create("img", { alt: "", decoding: "async", src: picture }));
  const name = create("span", { className: "drm-person" });
  name.append(create("bdi", { textContent: text }));
  if (description) name.append(" ", create("small", { className: "drm-detail", textContent: description }));
  return [avatar, name];
}

// Python's casefold(), almost.
export const fold = (text) => text.normalize("NFKC").toUpperCase().toLowerCase().normalize("NFKC");

const namesakes = new Map(); // folded name → ids of those who have been on the page with it

// Shows what tells people with one name apart, once several of them have been on the page.
export function tellApart() {
  const names = Array.from(root.querySelectorAll("[data-distinction] > bdi"), (bdi) => [bdi, fold(bdi.textContent)]);
  for (const [bdi, name] of names) namesakes.set(name, (namesakes.get(name) ?? new Set()).add(bdi.parentElement.dataset.person));
  for (const [bdi, name] of names) {
    if (namesakes.get(name).size < 2 || bdi.nextElementSibling?.matches(".drm-distinction")) continue;
    const { distinction } = bdi.parentElement.dataset;
    bdi.after(" ", create("small", { className: "drm-distinction", textContent: `(${distinction})` }));
  }
}

// Returns the response and its JSON, null if nothing changed (304).
async function exchange(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", redirect: "error", ...options });
  } catch {
    throw new RequestError("", { code: "offline" });
  }
  if (response.status === 304) return { response, data: null };
  const data = await response.json().catch(() => null);
  if (response.ok && data) return { response, data };
  const retryAfter = 1000 * Number(response.headers.get("Retry-After") || 0);
  const error = data?.error ?? {};
  throw new RequestError(error.message ?? "", { code: error.code, status: response.status, retryAfter });
}

// The server refuses requests of a page that was made for another user, who has signed out since.
const acceptJson = { Accept: "application/json" };
if (root?.dataset.user) acceptJson["Messaging-User"] = encodeURIComponent(root.dataset.user);

function urlOf(address, parameters) {
  const url = new URL(address, location.href);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return url;
}

export function get(address, parameters = {}) {
  return createConditionalGet()(address, parameters);
}

// Returns a function like `get` for polling: null if the response equals the last one.
export function createConditionalGet() {
  let last = {};
  return async (address, parameters = {}) => {
    const url = urlOf(address, parameters);
    const headers = { ...acceptJson };
    if (last.url === url.href && last.etag) headers["If-None-Match"] = last.etag;
    const { response, data } = await exchange(url, { headers });
    if (data) last = { url: url.href, etag: response.headers.get("ETag") };
    return data;
  };
}

// Messages in the answer are HTML, too. `options`: further ones of `fetch`.
export async function post(address, fields = {}, options = {}) {
  const url = urlOf(address, { html: 1 });
  const send = () => {
    const headers = { ...acceptJson, "X-CSRFToken": root.dataset.csrf };
    return exchange(url, { method: "POST", headers, body: new URLSearchParams(fields), ...options });
  };
  const { data } = await send().catch(async (error) => {
    // Django's own answer to a wrong token is not JSON.
    if (error.status !== 403 || error.code !== "failed") throw error;
    await renewToken();
    return send();
  });
  return data;
}

// After signing in in another tab, the tokens of this page are no longer valid.
async function renewToken() {
  const { csrf } = await get(root.dataset.session);
  root.dataset.csrf = csrf;
  for (const field of document.getElementsByName("csrfmiddlewaretoken")) field.value = csrf;
}

export function newRequestId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (number) => number.toString(36)).join("-");
}

// All HTML that the modules parse comes from the server, which has escaped it, and passes through here. The policy of
// Trusted Types is created on first use: the bell needs none.
let policy;
function trustHtml(html) {
  policy ??= globalThis.trustedTypes?.createPolicy("django-redis-messaging", { createHTML: (text) => text });
  return policy?.createHTML(html) ?? html;
}

export function element(html) {
  const template = document.createElement("template");
  template.innerHTML = trustHtml(html.trim());
  return template.content.firstElementChild;
}

// A page of the site, parsed without running its scripts; null if that fails.
export async function getPage(url, headers = {}) {
  const response = await fetch(url, { credentials: "same-origin", headers }).catch(() => null);
  if (!response?.ok) return null;
  return new DOMParser().parseFromString(trustHtml(await response.text()), "text/html");
}

const STORAGE_PREFIX = "drm:";
const MAX_DRAFTS = 50;
const MAX_AGE = 30 * 86_400_000; // ms for which the unsent text of other users is kept

export function storageKey(name) {
  return `${STORAGE_PREFIX}${encodeURIComponent(root.dataset.user)}:${name}`;
}

const memory = new Map(); // by key: what can't be stored

export function storedKeys(prefix) {
  let stored = [];
  try {
    stored = Object.keys(localStorage);
  } catch {
    // no localStorage
  }
  return [...new Set([...stored, ...memory.keys()])].filter((key) => key.startsWith(prefix));
}

const removeKeys = (keys) => keys.forEach((key) => (new Stored(key).value = null));

const writtenAt = (key) => new Stored(key).value?.at ?? 0;

// Removes the oldest drafts, and what other users of this browser left long ago. The rest is kept for them: the page says
// so until the user has read it.
function pruneStorage() {
  const isOwn = (key) => key.startsWith(storageKey(""));
  const isOld = (key) => !isOwn(key) && writtenAt(key) < Date.now() - MAX_AGE;
  removeKeys(storedKeys(STORAGE_PREFIX).filter(isOld));
  const { length: kept } = storedKeys(STORAGE_PREFIX).filter((key) => !isOwn(key));
  if (kept < chosen("kept")) choose("kept", kept);
  const note = byId("kept");
  note.hidden = kept <= chosen("kept");
  onClick(note.querySelector("button"), () => {
    choose("kept", kept);
    note.hidden = true;
  });
  const drafts = storedKeys(storageKey("draft:")).sort((a, b) => writtenAt(b) - writtenAt(a));
  removeKeys(drafts.slice(MAX_DRAFTS));
}

// One JSON value in localStorage. If that is full or not available, it lives as long as the page.
export class Stored {
  constructor(key) {
    this.key = key;
  }

  get value() {
    if (memory.has(this.key)) return memory.get(this.key);
    try {
      return JSON.parse(localStorage.getItem(this.key));
    } catch {
      return null;
    }
  }

  set value(value) {
    memory.delete(this.key);
    try {
      if (value === null) localStorage.removeItem(this.key);
      else localStorage.setItem(this.key, JSON.stringify(value));
    } catch {
      if (value !== null) memory.set(this.key, value);
    }
  }
}

// What a user has switched on or off in this browser, and how many texts of others they know to be kept. Stays after
// signing out.
const choices = new Stored(`drm-choices:${root?.dataset.user}`);

export const chosen = (name) => ({ keys: true, notify: false, sound: false, kept: 0, ...choices.value })[name];

export function choose(name, value) {
  choices.value = { ...choices.value, [name]: value };
}

// Moves an element to its place in a list, if it isn't there.
export function putAt(list, item, index) {
  if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
}

// Shows the times of a list in a few characters; its `data-now` is the text for less than a minute ago.
export function showTimes(list) {
  for (const time of list.querySelectorAll("time")) {
    time.textContent = relativeTime(new Date(time.dateTime), list.dataset.now);
  }
}

function relativeTime(moment, now) {
  const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "narrow" });
  const minutes = Math.round((Date.now() - moment) / 60000);
  if (minutes < 1) return now;
  if (minutes < 60) return relative.format(-minutes, "minute");
  if (minutes < 60 * 12) return relative.format(-Math.round(minutes / 60), "hour");
  if (minutes < 60 * 24 * 7) return moment.toLocaleDateString(language, { weekday: "short" });
  return moment.toLocaleDateString(language, { day: "numeric", month: "short" });
}

const language = document.documentElement.lang || undefined;
const formatter = (options) => new Intl.DateTimeFormat(language, options).format;
const formatDay = formatter({ dateStyle: "full" });
export const clock = formatter({ timeStyle: "short" });
export const fullTime = formatter({ dateStyle: "medium", timeStyle: "short" });
export const dayOf = (moment) => new Date(moment).setHours(0, 0, 0, 0);

export function dayName(day) {
  const daysAgo = Math.round((dayOf(new Date()) - day) / 86_400_000);
  if (daysAgo < 0 || daysAgo > 1) return formatDay(day);
  return new Intl.RelativeTimeFormat(language, { numeric: "auto" }).format(-daysAgo, "day");
}

// The module that receives what the server pushes, if it does.
const { live: liveModule } = document.querySelector("[data-live]")?.dataset ?? {};
export const live = liveModule && import(liveModule);

const LIVE_DELAY = 45_000; // ms between two polls while the server pushes

// Calls `update` repeatedly. The delay (ms) is `minDelay` while `update` returns true (something changed), and grows up to
// `maxDelay` while it doesn't or fails; in a hidden tab it is `hiddenDelay`, and LIVE_DELAY while the server pushes.
// `onResult` gets the error of each call, or null. An exception that is not a RequestError is a defect: it is logged.
// `soon()` resets the delay, unless the server pushes; `now()` does so always. `signal` ends it.
export function poll(
  update,
  { onResult = () => {}, minDelay = 2000, maxDelay = 15000, hiddenDelay = maxDelay, signal } = {},
) {
  let delay = minDelay;
  let timer;
  let running = false;
  let again = false; // called `now()` while running
  let isLive = false;
  const schedule = (ms) => {
    clearTimeout(timer);
    if (signal?.aborted) return;
    // Not all at the same time.
    timer = setTimeout(run, ms * (0.9 + 0.2 * Math.random()));
  };
  async function run() {
    if (running) return;
    running = true;
    again = false;
    let error = null;
    try {
      delay = (await update()) ? minDelay : Math.min(delay * 1.4, maxDelay);
    } catch (caught) {
      error = caught;
      if (!(error instanceof RequestError)) console.error(error);
      delay = Math.max(Math.min(delay * 2, maxDelay), error?.retryAfter ?? 0);
    }
    running = false;
    if (signal?.aborted) return;
    // After 404, polling can't succeed. The user may sign in in another tab.
    const isSlow = document.hidden || [401, 403].includes(error?.status);
    if (again) now();
    else if (error?.status !== 404) schedule(isLive ? LIVE_DELAY : isSlow ? hiddenDelay : delay);
    onResult(error);
  }
  function now() {
    again = running;
    delay = minDelay;
    schedule(document.hidden && !isLive ? hiddenDelay : minDelay / 4);
  }
  const soon = () => isLive || now();
  const goLive = ({ detail }) => {
    isLive = detail;
    schedule(isLive ? LIVE_DELAY : minDelay);
  };
  document.addEventListener("drm:live", goLive, { signal });
  document.addEventListener("visibilitychange", () => document.hidden || soon(), { signal });
  addEventListener("online", soon, { signal });
  addEventListener("pageshow", (event) => event.persisted && soon(), { signal });
  signal?.addEventListener("abort", () => clearTimeout(timer));
  schedule(delay);
  return { soon, now };
}

const STEPS = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };

// A list with one Tab stop: arrow keys, Home and End move the focus among its items. `items()` returns what can have the
// focus; `first(items)`: which of them Tab reaches if none had the focus yet, or if that one has gone.
export class Roving {
  constructor(list, items, first) {
    Object.assign(this, { items, first, current: null });
    list.addEventListener("keydown", (event) => this.handleKey(event));
    list.addEventListener("focusin", ({ target }) => this.update(this.itemOf(target)));
    new MutationObserver(() => this.update()).observe(list, { childList: true });
    this.update();
  }

  itemOf(target) {
    return this.items().find((item) => item.contains(target));
  }

  update(current = this.current) {
    const items = this.items();
    this.current = items.includes(current) ? current : this.first(items);
    for (const item of items) {
      const tabIndex = item === this.current ? 0 : -1;
      if (item.tabIndex !== tabIndex) item.tabIndex = tabIndex;
    }
  }

  handleKey(event) {
    const { altKey, ctrlKey, key, metaKey, shiftKey, target } = event;
    const step = STEPS[key];
    if (!step || event.defaultPrevented || altKey || ctrlKey || metaKey || shiftKey) return;
    const items = this.items();
    const index = items.indexOf(this.itemOf(target)) + step;
    const item = items[Math.max(0, Math.min(index, items.length - 1))];
    event.preventDefault();
    item?.focus({ preventScroll: true });
    item?.scrollIntoView({ block: "nearest" });
  }
}

// Menus close with Escape, and on a click elsewhere.
function closeMenus(event) {
  for (const menu of document.querySelectorAll("details:has(> .drm-panel)[open]")) {
    if (event.type === "click" && menu.contains(event.target)) continue;
    menu.open = false;
    if (event.type === "keydown") menu.querySelector("summary").focus();
  }
}

export function onClick(target, act) {
  target.addEventListener("click", (event) => {
    event.preventDefault();
    act(event);
  });
}

// A key presses or focuses the element that is marked with it, except where text is typed.
function useKey(event) {
  const { key, target } = event;
  if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || !chosen("keys")) return;
  const marked = document.querySelector(`[data-key~="${CSS.escape(key)}"]`);
  if (!marked || target.closest("input, textarea, select, dialog[open], [contenteditable]")) return;
  event.preventDefault();
  if (marked.matches("input, textarea")) marked.focus();
  else marked.click();
}

// What a user has typed does not stay in the browser after signing out with our button.
function signOut(event) {
  const form = event.target;
  if (!form.matches("[data-sign-out]")) return;
  const keys = storedKeys(storageKey(""));
  if (keys.length && !confirm(form.dataset.sure)) event.preventDefault();
  else removeKeys(keys);
}

if (root?.dataset.user) {
  pruneStorage();
  document.addEventListener("submit", signOut);
  document.addEventListener("click", closeMenus);
  document.addEventListener("keydown", (event) => (event.key === "Escape" ? closeMenus(event) : useKey(event)));
  byId("account").addEventListener("toggle", () => import(root.dataset.choices), { once: true });
  byId("show-keys").addEventListener("click", async () => (await import(root.dataset.choices)).showKeys());
  document.querySelector("[role=alert][tabindex]")?.focus();
  for (const time of root.querySelectorAll("[data-at]")) time.textContent = fullTime(new Date(time.dateTime));
}
