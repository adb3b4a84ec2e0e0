// Tells of new messages: a notification of the browser, and a sound.

const { Stored, chosen, storageKey } = await import(document.getElementById("drm-common").href);

const SOUND_LENGTH = 0.25; // s
const MAX_TOLD = 50;
// Chat → version of its row that was told of, in any tab.
const told = new Stored(storageKey("told"));
let audio;

function remember(id, version) {
  const versions = { ...told.value };
  if (versions[id] === version) return false;
  told.value = Object.fromEntries(Object.entries({ ...versions, [id]: version }).slice(-MAX_TOLD));
  return true;
}

// `link`: to the chat, in the list.
export function tell({ id, version }, link) {
  if (!remember(id, version)) return;
  const textOf = (name) => link.querySelector(`.drm-row-${name} > bdi`).textContent;
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
  const end = audio.currentTime + SOUND_LENGTH;
  const tone = new OscillatorNode(audio, { frequency: 740 });
  const volume = new GainNode(audio, { gain: 0.12 });
  volume.gain.exponentialRampToValueAtTime(0.001, end);
  tone.connect(volume).connect(audio.destination);
  tone.start();
  tone.stop(end);
}
