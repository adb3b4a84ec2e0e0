// Fetches the contents of an open page again and again, until the user pauses it or hides the page.

const fresh = document.querySelector(".drm-fresh");
const live = document.getElementById("drm-live");

// What a user has begun must not be replaced: a selection, also of text, an open part, or what has the focus.
const isInUse = () => {
  const selection = getSelection();
  return (
    live.contains(document.activeElement) ||
    live.querySelector("input:checked, details[open]") !== null ||
    (!selection.isCollapsed && live.contains(selection.anchorNode))
  );
};

const TOKENS = /csrfmiddlewaretoken. value=.\w+/g;

const start = () => {
  const { dataset } = fresh;
  const [button, status] = [fresh.querySelector("button"), fresh.querySelector("[role=status]")];
  const interval = dataset.refresh * 1000;
  let isPaused = false;
  let shown = "";

  const update = async () => {
    if (isPaused || document.hidden || isInUse()) return;
    try {
      const answer = await fetch(location.href, { headers: { "Messaging-Fragment": "1" }, redirect: "error" });
      if (!answer.ok) throw new Error(answer.statusText);
      const html = await answer.text();
      if (isPaused) return;
      status.textContent = "";
      // the answer has other CSRF tokens each time
      const content = html.replaceAll(TOKENS, "");
      if (content === shown || isInUse()) return;
      shown = content;
      live.innerHTML = html;
    } catch {
      if (!isPaused) status.textContent = dataset.failed;
    }
  };

  const repeat = async () => {
    await update();
    setTimeout(repeat, interval);
  };

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    status.textContent = isPaused ? dataset.paused : "";
    update();
  });
  document.addEventListener("visibilitychange", update);
  fresh.hidden = false;
  setTimeout(repeat, interval);
};

// on a narrow page, the sections scroll sideways
document.querySelector(".drm-sections [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
if (fresh && live) start();
