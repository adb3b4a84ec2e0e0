// The chosen colour scheme, stored as the admin stores it. Not a module: it runs before the page is shown.
{
  const apply = () => {
    const theme = localStorage.getItem("theme") || "auto";
    document.documentElement.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-choose-theme]")) {
      button.setAttribute("aria-pressed", String(button.dataset.chooseTheme === theme));
    }
  };
  try {
    apply();
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
