// Completes @name and :emoji: in the composer. Loaded when the first @ or : is typed.

const { byId, createFace, get } = await import(document.getElementById("drm-common").href);
const { Listbox } = await import(byId("completions").dataset.listbox);
const MAX_OPTIONS = 8;
const WORD = /(?:^|\s)([@:])([^\s@:]{0,30})$/;
const EMOJI = {
  smile: "😄", joy: "😂", wink: "😉", heart_eyes: "😍", thinking: "🤔", sad: "😢", sob: "😭", angry: "😠",
  party: "🥳", shrug: "🤷", thumbsup: "👍", thumbsdown: "👎", ok: "👌", clap: "👏", wave: "👋", pray: "🙏",
  eyes: "👀", heart: "❤️", fire: "🔥", tada: "🎉", coffee: "☕", rocket: "🚀",
  bulb: "💡", warning: "⚠️", check: "✅", question: "❓",
};

export class Completion {
  constructor(composer) {
    this.composer = composer;
    this.body = composer.body;
    this.list = byId("completions");
    const find = () => this.find();
    new Listbox(this.body, this.list, { find, choose: (option) => this.choose(option), describe }).findNow();
  }

  typedWord() {
    const match = WORD.exec(this.body.value.slice(0, this.body.selectionStart));
    return match ? { kind: match[1], prefix: match[2].toLowerCase() } : {};
  }

  async find() {
    const { kind, prefix } = this.typedWord();
    if (kind === "@") {
      const { results } = await get(this.list.dataset.members, { q: prefix }).catch(() => ({ results: [] }));
      return results.map((person) => ({ ...person, insert: `@${person.text}` }));
    }
    const names = kind && prefix.length > 1 ? Object.keys(EMOJI).filter((name) => name.startsWith(prefix)) : [];
    return names.slice(0, MAX_OPTIONS).map((name) => ({ label: `${EMOJI[name]} ${name}`, insert: EMOJI[name] }));
  }

  choose({ id, insert }) {
    const { body, composer } = this;
    const { prefix } = this.typedWord();
    if (prefix === undefined) return; // the caret has left the word
    if (id) composer.addMention(id, insert);
    const start = body.selectionStart - prefix.length - 1;
    body.setRangeText(`${insert} `, start, body.selectionStart, "end");
    body.dispatchEvent(new Event("input"));
  }
}

const describe = (option) => (option.id ? createFace(option) : [option.label]);
