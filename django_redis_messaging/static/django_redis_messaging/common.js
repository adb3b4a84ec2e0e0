// What the other modules share: asking the server, and asking it again and again without being a nuisance.

export const root = document.getElementById("drm");

// The server's answer to `what`, an Error with `code`, `status` and `retry` (ms) where it is no success.
export class Refused extends Error {
  constructor(message, { code = "failed", status = 0, retry = 0 } = {}) {
    super(message);
    Object.assign(this, { code, status, retry });
  }
}

async function ask(address, options) {
  let answer;
  try {
    answer = await fetch(address, { credentials: "same-origin", redirect: "error", ...options });
  } catch {
    throw new Refused("", { code: "offline" });
  }
  const data = await answer.json().catch(() => null);
  if (answer.ok && data) return data;
  const retry = 1000 * Number(answer.headers.get("Retry-After") || 0);
  const error = data?.error ?? {};
  throw new Refused(error.message ?? "", { code: error.code, status: answer.status, retry });
}

const json = { Accept: "application/json" };

export function get(address, parameters = {}) {
  const url = new URL(address, location.href);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return ask(url, { headers: json });
}

export function post(address, fields = {}, { html = false } = {}) {
  const url = new URL(address, location.href);
  if (html) url.searchParams.set("html", "1");
  const headers = { ...json, "X-CSRFToken": root.dataset.csrf };
  return ask(url, { method: "POST", headers, body: new URLSearchParams(fields) });
}

// One element made of markup that the server escaped.
export function element(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html.trim();
  return holder.content.firstElementChild;
}

// How long ago a moment was, shortly; `now` is what stands for less than a minute.
export function ago(moment, now) {
  const language = document.documentElement.lang || undefined;
  const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "narrow" });
  const minutes = Math.round((Date.now() - moment) / 60000);
  if (minutes < 1) return now;
  if (minutes < 60) return relative.format(-minutes, "minute");
  if (minutes < 60 * 12) return relative.format(-Math.round(minutes / 60), "hour");
  if (minutes < 60 * 24 * 7) return moment.toLocaleDateString(language, { weekday: "short" });
  return moment.toLocaleDateString(language, { day: "numeric", month: "short" });
}

// Calls `look` every 2 s (`near`) while it finds something (returns true), ever more rarely up to 15 s
// (`far`) while it doesn't, or the tab is hidden. `soon()` makes the next look the near one: something was
// done, or somebody is back.
export function poll(look, { away = () => {}, near = 2000, far = 15000, hidden = far } = {}) {
  let pause = near;
  let timer;
  let looking = false;
  const later = (ms) => {
    clearTimeout(timer);
    // Many pages that were opened together must not ask together.
    timer = setTimeout(turn, ms * (0.9 + 0.2 * Math.random()));
  };
  async function turn() {
    if (looking) return;
    looking = true;
    try {
      pause = (await look()) ? near : Math.min(pause * 1.4, far);
      away(null);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      pause = Math.max(Math.min(pause * 2, far), error.retry);
      away(error);
      if ([401, 403, 404].includes(error.status)) return;
    } finally {
      looking = false;
    }
    later(document.hidden ? hidden : pause);
  }
  function soon() {
    pause = near;
    later(document.hidden ? hidden : near / 4);
  }
  document.addEventListener("visibilitychange", () => document.hidden || soon());
  addEventListener("online", soon);
  addEventListener("pageshow", (event) => event.persisted && soon());
  later(pause);
  return { soon };
}
