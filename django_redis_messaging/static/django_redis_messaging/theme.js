// The colour scheme that a user has chosen: light, dark, or as the system has it. Stored as Django's admin stores it. Not
// a module, so that it runs before the page is shown.
"use strict";
(() => {
  const apply = () => {
    const theme = localStorage.getItem("theme") || "auto";
    document.documentElement.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-choose-theme]")) {
      button.setAttribute("aria-pressed", String(button.dataset.chooseTheme === theme));
    }
  };
  try {
    apply();
  } catch {
    return; // no localStorage: the system decides
  }
  document.addEventListener("DOMContentLoaded", apply);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-choose-theme]");
    if (!button) return;
    localStorage.setItem("theme", button.dataset.chooseTheme);
    apply();
  });
})();
