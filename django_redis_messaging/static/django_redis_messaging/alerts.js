// Tells of new messages: a notification of the browser, and a sound.

const { Stored, chosen, storageKey } = await import(document.getElementById("drm-common").href);

const SOUND_LENGTH = 0.25; // s
let audio;

// `link`: to the chat, in the list.
export function tell({ id, version }, link) {
  const told = new Stored(storageKey(`told:${id}`)); // the version, in any tab
  if (told.value === version) return;
  told.value = version;
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
