// Tells of new messages with a notification of the browser and a sound, as far as the user has switched them on.

const { Stored, chosen, storageKey } = await import(document.getElementById("drm-common").href);

const SOUND_LENGTH = 0.25; // s
const MAX_TOLD = 50;
// The version of each chat's row in the list that was told of, in any tab.
const told = new Stored(storageKey("told"));
let audio;

function remember(id, version) {
  const versions = { ...told.value };
  if (versions[id] === version) return false;
  told.value = Object.fromEntries(Object.entries({ ...versions, [id]: version }).slice(-MAX_TOLD));
  return true;
}

// `link`: to a chat with new messages, in the list of chats.
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

// Resolves when the sound is over.
export function playSound() {
  audio ??= new AudioContext();
  audio.resume();
  const [tone, volume] = [audio.createOscillator(), audio.createGain()];
  tone.frequency.value = 740; // Hz
  volume.gain.setValueAtTime(0.12, audio.currentTime);
  volume.gain.exponentialRampToValueAtTime(0.001, audio.currentTime + SOUND_LENGTH);
  tone.connect(volume).connect(audio.destination);
  tone.start();
  tone.stop(audio.currentTime + SOUND_LENGTH);
  return new Promise((resolve) => tone.addEventListener("ended", resolve));
}
