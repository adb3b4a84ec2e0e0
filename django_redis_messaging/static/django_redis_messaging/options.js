// The options of a message: one menu for all.

const load = (name) => import(document.getElementById(`drm-${name}`).href);
const { byId, onClick, post } = await load("common");
const { textOf } = await load("view");

const LONG_PRESS = 500; // ms
const MAX_SLIP = 10; // px: further, a finger that presses has moved
const MARGIN = 8; // px between the menu and the edge of the window

export class Options {
  constructor(room, composer, signal) {
    Object.assign(this, { room, composer, signal });
    this.menu = byId("menu");
    this.dialog = byId("confirm");
    this.id = ""; // of the element of the message whose options are shown
    this.pressed = null; // where the finger was, which no button opens the menu
    this.opener = null; // has the focus again when the menu is closed
    this.listen();
  }

  listen() {
    const { menu, room, signal } = this;
    const { list } = room;
    list.addEventListener("click", (event) => this.handleClick(event));
    list.addEventListener("keydown", (event) => this.handleEnter(event));
    list.addEventListener("pointerdown", (event) => this.handlePress(event));
    list.addEventListener("contextmenu", (event) => this.pressTarget(event) && event.preventDefault());
    menu.addEventListener("keydown", (event) => this.handleKey(event));
    for (const button of menu.querySelectorAll("button")) onClick(button, () => this.choose(button.dataset.act));
    const closeElsewhere = ({ target }) => menu.contains(target) || this.link?.contains(target) || this.close();
    document.addEventListener("pointerdown", closeElsewhere, { signal });
    const place = () => this.isOpen && this.place();
    new MutationObserver(place).observe(list, { childList: true });
    room.scroll.addEventListener("scroll", place, { passive: true });
    for (const name of ["resize", "scroll"]) {
      for (const view of [window, visualViewport]) view.addEventListener(name, place, { passive: true, signal });
    }
  }

  get isOpen() {
    return this.menu.matches(":popover-open");
  }

  // The message, which may have been replaced since the menu was opened; its link to the page of the message.
  get item() {
    return document.getElementById(this.id);
  }

  get link() {
    return this.item?.querySelector(".drm-dots");
  }

  get buttons() {
    return [...this.menu.querySelectorAll("button:not([hidden])")];
  }

  open(item, pressed = null) {
    const { menu, room } = this;
    this.close();
    if (room.ended) return;
    Object.assign(this, { id: item.id, pressed, opener: document.activeElement });
    for (const button of menu.querySelectorAll("button")) button.hidden = !this.isPossible(button.dataset.act);
    menu.showPopover();
    this.place();
    if (this.isOpen) this.buttons[0].focus({ preventScroll: true });
  }

  close() {
    if (!this.isOpen) return;
    const hadFocus = this.menu.contains(document.activeElement);
    this.menu.hidePopover();
    this.link?.setAttribute("aria-expanded", "false");
    const hasOpener = this.opener.isConnected && this.opener !== document.body;
    if (hadFocus) (hasOpener ? this.opener : this.link)?.focus({ preventScroll: true });
  }

  // Puts the menu beside the button or the finger, inside the part of the window that is in sight. Closes it if the
  // message has left that part.
  place() {
    const { link, menu, room } = this;
    const anchor = link && this.findAnchor();
    const log = room.scroll.getBoundingClientRect();
    if (!link || anchor.bottom < log.top || anchor.top > log.bottom) {
      this.close();
      return;
    }
    link.setAttribute("aria-expanded", "true");
    const { offsetHeight: height, offsetWidth: width } = menu;
    const { height: viewHeight, offsetLeft, offsetTop, width: viewWidth } = visualViewport;
    const bubble = this.item.querySelector(".drm-bubble").getBoundingClientRect();
    const left = bubble.right > anchor.right ? anchor.right - width : anchor.left;
    const isAbove = anchor.bottom + height + MARGIN > offsetTop + viewHeight;
    const top = isAbove ? anchor.top - height : anchor.bottom;
    const inside = (value, from, space) => from + Math.max(MARGIN, Math.min(value - from, space - MARGIN));
    menu.style.left = `${inside(left, offsetLeft, viewWidth - width)}px`;
    menu.style.top = `${inside(top, offsetTop, viewHeight - height)}px`;
  }

  findAnchor() {
    const { item, link, pressed } = this;
    if (!pressed) return link.getBoundingClientRect();
    return new DOMRect(pressed.x, item.getBoundingClientRect().top + pressed.y, 0, 0);
  }

  isPossible(action) {
    if (["copy", "text"].includes(action)) return Boolean(navigator.clipboard);
    return action === "reply" || this.item.dataset.can.split(" ").includes(action);
  }

  choose(action) {
    const { item, link, room } = this;
    this.close();
    if (link) this.act(action, item, link.href).catch((error) => room.showError(error));
  }

  // `url`: of the page of the message.
  async act(action, item, url) {
    const { composer, room } = this;
    if (action === "reply") composer.startReplying(item);
    else if (action === "edit") await composer.startEditing(item.id, url);
    else if (action === "delete") await this.confirmDelete(url);
    else {
      const address = new URL(`?at=${item.dataset.id}`, new URL(room.state.urls.room, location.href));
      await navigator.clipboard.writeText(action === "text" ? textOf(item) : address);
      room.status.textContent = action === "text" ? room.status.dataset.copiedText : room.status.dataset.copied;
    }
  }

  async confirmDelete(url) {
    const { composer, dialog, room } = this;
    dialog.returnValue = "";
    dialog.showModal();
    await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
    if (dialog.returnValue !== "delete") return;
    const { message } = await post(new URL("delete/", url));
    await room.show(message);
    composer.body.focus({ preventScroll: true });
  }

  handleClick(event) {
    const link = event.target.closest(".drm-dots");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (this.isOpen && link === this.link) this.close();
    else this.open(link.closest(".drm-message"));
  }

  handleEnter(event) {
    const { key, target } = event;
    if (key !== "Enter" || !target.matches(".drm-message:has(.drm-dots)")) return;
    event.preventDefault();
    this.open(target);
  }

  // The message that a finger presses, unless what it presses has a meaning of its own.
  pressTarget({ pointerType, target }) {
    if (pointerType !== "touch" || !target.closest(".drm-bubble") || target.closest("a, summary")) return null;
    return target.closest(".drm-message:has(.drm-dots)");
  }

  handlePress(event) {
    const item = this.pressTarget(event);
    if (!item) return;
    const { clientX: x, clientY: y } = event;
    const press = new AbortController();
    const { signal } = press;
    const timer = setTimeout(() => {
      press.abort();
      if (!item.isConnected) return;
      this.open(item, { x, y: y - item.getBoundingClientRect().top });
      document.addEventListener("touchend", (end) => end.cancelable && end.preventDefault(), { once: true, passive: false }); // no click
    }, LONG_PRESS);
    signal.addEventListener("abort", () => clearTimeout(timer));
    for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => press.abort(), { signal });
    const move = (moved) => Math.hypot(moved.clientX - x, moved.clientY - y) > MAX_SLIP && press.abort();
    document.addEventListener("pointermove", move, { signal });
  }

  handleKey(event) {
    const { buttons } = this;
    const index = buttons.indexOf(document.activeElement);
    const steps = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: -1 };
    if (event.key === "Tab") this.close(); // and Tab goes on from the message
    else if (event.key === "Escape") this.close();
    else if (event.key in steps) buttons.at(steps[event.key] % buttons.length).focus();
    if (event.key === "Escape" || event.key in steps) event.preventDefault();
  }
}
