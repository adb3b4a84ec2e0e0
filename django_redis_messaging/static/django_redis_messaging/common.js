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

async function request(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", redirect: "error", ...options });
  } catch {
    throw new RequestError("", { code: "offline" });
  }
  const data = await response.json().catch(() => null);
  if (response.ok && data) return data;
  const retryAfter = 1000 * Number(response.headers.get("Retry-After") || 0);
  const error = data?.error ?? {};
  throw new RequestError(error.message ?? "", { code: error.code, status: response.status, retryAfter });
}

const acceptJson = { Accept: "application/json" };

export function get(address, parameters = {}) {
  const url = new URL(address, location.href);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return request(url, { headers: acceptJson });
}

export function post(address, fields = {}, { html = false } = {}) {
  const url = new URL(address, location.href);
  if (html) url.searchParams.set("html", "1");
  const headers = { ...acceptJson, "X-CSRFToken": root.dataset.csrf };
  return request(url, { method: "POST", headers, body: new URLSearchParams(fields) });
}

// Creates an element from HTML that the server has escaped.
export function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
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
// error of each call, or null. `soon()` resets the delay, for example after the user changed something.
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
    try {
      delay = (await update()) ? minDelay : Math.min(delay * 1.4, maxDelay);
      onResult(null);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      delay = Math.max(Math.min(delay * 2, maxDelay), error.retryAfter);
      onResult(error);
      // Signed out, not allowed, or deleted: polling can't succeed any more.
      if ([401, 403, 404].includes(error.status)) return;
    } finally {
      running = false;
    }
    schedule(document.hidden ? hiddenDelay : delay);
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
