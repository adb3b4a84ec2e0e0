// Shared by the other modules: requests to the server, polling, and small helpers.

export const root = document.getElementById("drm");

// A request that failed. `code` and `status` are those of the response, `retryAfter` is in ms. Without a
// response, `code` is "offline" and `status` is 0.
export class RequestError extends Error {
  constructor(message, { code = "failed", status = 0, retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { code, status, retryAfter });
  }
}

// Returns the response and its JSON, which is null if nothing changed (304).
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

async function request(url, options) {
  return (await exchange(url, options)).data;
}

const acceptJson = { Accept: "application/json" };

function urlOf(address, parameters) {
  const url = new URL(address, location.href);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return url;
}

export function get(address, parameters = {}) {
  return request(urlOf(address, parameters), { headers: acceptJson });
}

// Returns a function like `get` for polling: its result is null if the response equals the last one.
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

export function post(address, fields = {}, { html = false } = {}) {
  const url = new URL(address, location.href);
  if (html) url.searchParams.set("html", "1");
  const headers = { ...acceptJson, "X-CSRFToken": root.dataset.csrf };
  return request(url, { method: "POST", headers, body: new URLSearchParams(fields) });
}

// All HTML that the modules parse comes from the server, which has escaped it, and passes through here: the only
// place that a Trusted Types policy must permit. Created on first use, because the bell parses no HTML.
let policy;
function trustHtml(html) {
  policy ??= globalThis.trustedTypes?.createPolicy("django-redis-messaging", { createHTML: (text) => text });
  return policy?.createHTML(html) ?? html;
}

// Creates an element from HTML that the server has escaped.
export function element(html) {
  const template = document.createElement("template");
  template.innerHTML = trustHtml(html.trim());
  return template.content.firstElementChild;
}

// Requests a page of the site and parses it, without running its scripts. Returns null if that fails.
export async function getPage(url) {
  const response = await fetch(url, { credentials: "same-origin" }).catch(() => null);
  if (!response?.ok) return null;
  return new DOMParser().parseFromString(trustHtml(await response.text()), "text/html");
}

// Formats a past moment in a few characters; `now` is the text for less than a minute ago.
export function relativeTime(moment, now) {
  const language = document.documentElement.lang || undefined;
  const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "narrow" });
  const minutes = Math.round((Date.now() - moment) / 60000);
  if (minutes < 1) return now;
  if (minutes < 60) return relative.format(-minutes, "minute");
  if (minutes < 60 * 12) return relative.format(-Math.round(minutes / 60), "hour");
  if (minutes < 60 * 24 * 7) return moment.toLocaleDateString(language, { weekday: "short" });
  return moment.toLocaleDateString(language, { day: "numeric", month: "short" });
}

// Calls `update` repeatedly. The delay (ms) is `minDelay` while `update` returns true (something changed), and
// grows up to `maxDelay` while it doesn't or fails; in a hidden tab it is `hiddenDelay`. `onResult` gets the
// error of each call, or null. Polling continues after any exception, also one of `onResult`; one that is not a
// RequestError is a defect, and is logged. `soon()` resets the delay, for example after the user changed something.
export function poll(
  update,
  { onResult = () => {}, minDelay = 2000, maxDelay = 15000, hiddenDelay = maxDelay } = {},
) {
  let delay = minDelay;
  let timer;
  let running = false;
  const schedule = (ms) => {
    clearTimeout(timer);
    // Random, so that pages that were opened at the same time don't poll at the same time.
    timer = setTimeout(run, ms * (0.9 + 0.2 * Math.random()));
  };
  async function run() {
    if (running) return;
    running = true;
    let error = null;
    try {
      delay = (await update()) ? minDelay : Math.min(delay * 1.4, maxDelay);
    } catch (caught) {
      error = caught;
      if (!(error instanceof RequestError)) console.error(error);
      delay = Math.max(Math.min(delay * 2, maxDelay), error?.retryAfter ?? 0);
    }
    running = false;
    // Signed out, not allowed, or deleted: polling can't succeed any more.
    if (![401, 403, 404].includes(error?.status)) schedule(document.hidden ? hiddenDelay : delay);
    onResult(error);
  }
  function soon() {
    delay = minDelay;
    schedule(document.hidden ? hiddenDelay : minDelay / 4);
  }
  document.addEventListener("visibilitychange", () => document.hidden || soon());
  addEventListener("online", soon);
  addEventListener("pageshow", (event) => event.persisted && soon());
  schedule(delay);
  return { soon };
}
