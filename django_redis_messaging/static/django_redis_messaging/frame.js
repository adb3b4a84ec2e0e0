// What must be right before the page is shown, so no module: the colour scheme, and how high the panes are.

// The chosen colour scheme, stored as the admin stores it. Another layout may have its own use of the attribute.
{
  const { documentElement } = document;
  const apply = () => {
    if (!document.querySelector(".drm-alone, .drm-themed")) return;
    const theme = localStorage.getItem("theme") || "auto";
    documentElement.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-choose-theme]")) {
      button.setAttribute("aria-pressed", String(button.dataset.chooseTheme === theme));
    }
  };
  try {
    apply();
    requestAnimationFrame(apply); // before the first look at a layout of which the body says that it is themed
    document.addEventListener("DOMContentLoaded", apply);
    document.addEventListener("click", ({ target }) => {
      const button = target.closest("[data-choose-theme]");
      if (button) localStorage.setItem("theme", button.dataset.chooseTheme);
      if (button) apply();
    });
  } catch {
    // no localStorage: the system decides
  }
}

// In a layout of the site, the panes reach from where they are to the end of the window. In our own frames, CSS alone does that.
{
  const MIN_SHARE = 0.5; // of the window; if there is less space, the page has to scroll anyway
  const MAX_BELOW = 0.25; // of the space: more than this below the panes is left below the window

  // Panes end where the window ends, or what scrolls them.
  const fit = () => {
    const panes = document.querySelector(".drm-panes:not(.drm-frame *)");
    if (!panes) return;
    const { height, scale } = window.visualViewport; // is less than the window while a phone shows its keyboard
    const visible = height * scale;
    // For the moment, so much follows that everything scrolls that can't grow.
    panes.classList.add("drm-measured");
    const { end, top, below } = measure(panes);
    panes.classList.remove("drm-measured");
    const space = Math.min(end, visible) - top;
    const rest = space - below;
    const fitting = rest < space * (1 - MAX_BELOW) ? space : rest;
    const wanted = fitting < visible * MIN_SHARE ? visible * 0.8 : fitting;
    panes.style.setProperty("--drm-height", `${Math.floor(wanted)}px`);
  };

  // Where the scroller ends, where the panes begin if it is not scrolled, and how much follows them: px.
  const measure = (panes) => {
    const page = document.scrollingElement;
    let scroller = panes.parentElement;
    const scrolls = () => scroller.scrollHeight > scroller.clientHeight && getComputedStyle(scroller).overflowY !== "visible";
    while (scroller !== page && scroller.parentElement && !scrolls()) scroller = scroller.parentElement;
    const start = scroller === page ? 0 : scroller.getBoundingClientRect().top + scroller.clientTop;
    const box = panes.getBoundingClientRect();
    const top = box.top + scroller.scrollTop;
    const below = start + scroller.scrollHeight - top - box.height;
    return { end: start + scroller.clientHeight, top, below };
  };

  // The script of the admin opens its sidebar later: everything would move.
  const openSidebar = () => {
    let isOpen = true;
    try {
      isOpen = localStorage.getItem("django.admin.navSidebarIsOpen") !== "false";
    } catch {
      // as the admin does without localStorage
    }
    const sidebar = document.querySelector(".drm-frame #nav-sidebar");
    sidebar?.parentElement.classList.toggle("shifted", isOpen);
  };

  // Before each frame until everything is there, then when something around the panes has another size.
  let frame = 0;
  const fitSoon = () => (frame ||= requestAnimationFrame(() => ((frame = 0), fit())));
  const observer = new ResizeObserver(fitSoon);
  const observe = () => {
    for (let one = document.querySelector(".drm-panes"); one?.parentElement; one = one.parentElement) {
      observer.observe(one.parentElement);
      for (const other of one.parentElement.children) if (other !== one) observer.observe(other);
    }
  };
  const start = () => {
    fit();
    openSidebar();
    if (document.readyState === "complete") observe();
    else requestAnimationFrame(start);
  };
  requestAnimationFrame(start);
  for (const target of [window, window.visualViewport]) target.addEventListener("resize", fitSoon);
}
