// Tells of new messages: a notification of the browser, and a sound.

const { chosen } = await import(document.getElementById("drm-common").href);

const HOLD = 60_000; // ms: longer than hidden tabs wait between polls
let audio;

// Of several tabs, the first one tells. `link`: to the chat, in the list.
export function tell({ id, version }, link) {
  navigator.locks?.request(`drm-told:${id}:${version}`, { ifAvailable: true }, (lock) => {
    if (!lock) return null;
    announce(id, link);
    return new Promise((resolve) => setTimeout(resolve, HOLD));
  });
}

function announce(id, link) {
  const textOf = (name) => {
    const parts = link.querySelectorAll(`.drm-row-${name} > :is(bdi, .drm-companion, .drm-distinction)`);
    const before = (part) => (part.matches(".drm-distinction") ? " " : " · ");
    return Array.from(parts, (part) => before(part) + part.textContent).join("").slice(3);
  };
  if (chosen("sound")) playSound();
  if (!chosen("notify") || document.hasFocus()) return;
  const notification = new Notification(textOf("title"), { body: textOf("text"), tag: id });
  notification.addEventListener("click", () => {
    focus();
    notification.close();
    if (!link.ariaCurrent) link.click();
  });
}

export function playSound() {
  audio ??= new AudioContext();
  audio.resume();
  const tone = new OscillatorNode(audio, { frequency: 740 });
  tone.connect(new GainNode(audio, { gain: 0.1 })).connect(audio.destination);
  tone.start();
  tone.stop(audio.currentTime + 0.15);
}
