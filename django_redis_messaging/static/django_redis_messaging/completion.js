// Completes @name and :emoji: in the composer. Loaded when the first @ or : is typed.

const load = (name) => import(document.getElementById(`drm-${name}`).href);
const { byId, create, get } = await load("common");
const { addMention } = await load("compose");

const body = byId("body");
const list = byId("completions");
const { Listbox } = await import(list.dataset.listbox);
const MAX_OPTIONS = 8;
const WORD = /(?:^|\s)([@:])([^\s@:]{0,30})$/;
const EMOJI = {
  smile: "😄", joy: "😂", wink: "😉", heart_eyes: "😍", thinking: "🤔", sad: "😢", sob: "😭", angry: "😠",
  party: "🥳", shrug: "🤷", thumbsup: "👍", thumbsdown: "👎", ok: "👌", clap: "👏", wave: "👋", pray: "🙏",
  eyes: "👀", heart: "❤️", fire: "🔥", tada: "🎉", coffee: "☕", rocket: "🚀",
  bulb: "💡", warning: "⚠️", check: "✅", question: "❓",
};

function typedWord() {
  const match = WORD.exec(body.value.slice(0, body.selectionStart));
  return match ? { kind: match[1], prefix: match[2].toLowerCase() } : {};
}

async function find() {
  const { kind, prefix } = typedWord();
  if (kind === "@") {
    const { results } = await get(list.dataset.members, { q: prefix }).catch(() => ({ results: [] }));
    return results.map(({ id, text, hint }) => ({ id, label: text, hint, insert: `@${text}` }));
  }
  const names = kind && prefix.length > 1 ? Object.keys(EMOJI).filter((name) => name.startsWith(prefix)) : [];
  return names.slice(0, MAX_OPTIONS).map((name) => ({ label: `${EMOJI[name]} ${name}`, insert: EMOJI[name] }));
}

function choose({ id, insert }) {
  if (id) addMention(id, insert);
  const start = body.selectionStart - typedWord().prefix.length - 1;
  body.setRangeText(`${insert} `, start, body.selectionStart, "end");
  body.dispatchEvent(new Event("input"));
}

function describe({ label, hint }) {
  return [label, ...(hint ? [create("small", { textContent: hint })] : [])];
}

new Listbox(body, list, { find, choose, describe }).findNow();
