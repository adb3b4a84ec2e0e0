// Publishes events to a Broadcast channel of django_redis_messaging from Node.js 18 or later, without dependencies.
// It calls the app's own scripts, so order, request ids, limits and expiry are those of Broadcast.publish.
//
//     import { Publisher } from "./publisher.mjs";
//
//     const publisher = new Publisher({ connect: { host: "127.0.0.1", port: 6379 }, database: 1,
//                                       package: "…/site-packages/django_redis_messaging" });
//     const event = await publisher.publish("settings", { theme: "dark" });   // {id, publishedAt}
//     publisher.close();

import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import net from "node:net";
import path from "node:path";

// The version of the key layout, as in core/encoding.py.
const FORMAT = 2;
// How long the app keeps the head of an idle channel: ms.
const IDLE_TTL = 7 * 86_400_000;
// Characters that are percent-encoded in a key.
const UNSAFE = /[\u0000-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000{}%:]/g;

// Throws if the app would refuse `name` as the name of a channel or as a request id.
function checkName(name, what) {
  if (typeof name !== "string") throw new TypeError(`${what} must be a string.`);
  const bytes = Buffer.byteLength(name);
  if (bytes < 1 || bytes > 255 || /\u0000|\p{Surrogate}/u.test(name)) {
    throw new RangeError(`${what} must be 1 to 255 bytes of UTF-8, without NUL and lone surrogates.`);
  }
}

function encodeName(name) {
  return name.replace(UNSAFE, (found) =>
    [...Buffer.from(found)].map((byte) => "%" + byte.toString(16).toUpperCase().padStart(2, "0")).join(""),
  );
}

// Loads a script of the app, for example "broadcasts/publish". A header line "-- uses _piece.lua" puts that file of the
// same folder, or "-- uses common/_piece.lua" of another one, in front, after the files that it uses itself; each once.
function loadScript(directory, name) {
  const files = new Map();
  const add = (folder, file) => {
    const body = readFileSync(path.join(directory, "services", folder, file), "utf8");
    for (const [, other = folder, piece] of body.matchAll(/^-- uses (?:(\w+)\/)?(_\w+\.lua)$/gm)) {
      if (!files.has(`${other}/${piece}`)) add(other, piece);
    }
    files.set(`${folder}/${file}`, body);
  };
  const [folder, script] = name.split("/");
  add(folder, `${script}.lua`);
  const text = [...files.values()].join("\n");
  return { text, sha: createHash("sha1").update(text).digest("hex") };
}

// One connection. Replies arrive in the order of the requests.
class Connection {
  #pending = [];
  #data = Buffer.alloc(0);
  broken = null;

  constructor(connect) {
    this.socket = net.connect(connect);
    this.socket.on("data", (data) => this.#receive(data));
    this.socket.on("error", (error) => this.#fail(error));
    this.socket.on("close", () => this.#fail(new Error("Redis has closed the connection.")));
  }

  call(...words) {
    if (this.broken) return Promise.reject(this.broken);
    const parts = words.map((word) => Buffer.from(String(word)));
    const head = Buffer.from(`*${parts.length}\r\n`);
    const rest = parts.flatMap((part) => [Buffer.from(`$${part.length}\r\n`), part, Buffer.from("\r\n")]);
    return new Promise((resolve, reject) => {
      this.#pending.push({ resolve, reject });
      this.socket.write(Buffer.concat([head, ...rest]));
    });
  }

  #receive(data) {
    this.#data = Buffer.concat([this.#data, data]);
    for (let reply = this.#nextReply(); reply; reply = this.#nextReply()) {
      const { resolve, reject } = this.#pending.shift();
      if (reply.error) reject(new Error(reply.error));
      else resolve(reply.value);
    }
  }

  // Returns the next reply if it is complete, else null. None of the commands used here replies with an array.
  #nextReply() {
    const end = this.#data.indexOf("\r\n");
    if (end < 0) return null;
    const kind = String.fromCharCode(this.#data[0]);
    const line = this.#data.toString("utf8", 1, end);
    let value = line;
    let next = end + 2;
    if (kind === "$" && line !== "-1") {
      next += Number(line) + 2;
      if (this.#data.length < next) return null;
      value = this.#data.toString("utf8", end + 2, next - 2);
    }
    this.#data = this.#data.subarray(next);
    if (kind === "-") return { error: line };
    return { value: kind === ":" ? Number(line) : value };
  }

  #fail(error) {
    this.broken ??= error;
    for (const { reject } of this.#pending.splice(0)) reject(error);
  }
}

export class Publisher {
  // `connect` is the argument of net.connect. `prefix` … `requestWindow` are the settings of REDIS_MESSAGING, with
  // durations in ms; they must equal those of the site.
  constructor({
    connect, package: directory, username = "default", password, database = 0, prefix = "messaging", bucket = 10_000,
    retention = 300_000, maxLength = 100_000, maxBytes = 65_536, requestWindow = 120_000,
  }) {
    this.settings = { prefix, retention, maxLength, maxBytes, requestWindow };
    this.bucket = Math.max(bucket, Math.ceil(retention / 100));
    this.bucketCount = Math.ceil(retention / this.bucket) + 2;
    this.idleTtl = Math.max(IDLE_TTL, 2 * (retention + this.bucket));
    const names = ["publish", "open", "trim"];
    this.scripts = Object.fromEntries(names.map((name) => [name, loadScript(directory, `broadcasts/${name}`)]));
    this.server = { connect, username, password, database };
    this.connection = null;
  }

  // Publishes an event and returns its id and time. To repeat a failed call safely, pass the same requestId both
  // times. After a broken connection, the next call opens a new one.
  async publish(channel, payload, { requestId = randomBytes(8).toString("hex") } = {}) {
    checkName(channel, "channel");
    checkName(requestId, "requestId");
    const { prefix, retention, maxLength, maxBytes, requestWindow } = this.settings;
    const text = JSON.stringify(payload);
    if (text === undefined) throw new TypeError("The payload can't be written as JSON.");
    if (Buffer.byteLength(text) > maxBytes) throw new RangeError(`The payload has more than ${maxBytes} bytes.`);
    await this.#connect();
    const tag = `${prefix}:${FORMAT}:{broadcast:${encodeName(channel)}}`;
    const key = (number) => `${tag}:${this.bucket}x${this.bucketCount}:${number % this.bucketCount}`;
    const keys = ["head", "requests:0", "requests:1", "bell", "waiting"].map((name) => `${tag}:${name}`);
    const limits = [requestWindow, this.bucket, retention, maxLength, this.idleTtl];
    const ring = Array.from({ length: this.bucketCount }, (_, number) => key(number));
    let number = Math.floor(Date.now() / this.bucket);
    let reply = null;
    while (reply === null) {
      const named = [...keys, key(number), key(number + 1)];
      reply = await this.#run("publish", named, [text, requestId, ...limits, number]);
      if (reply === "none") {
        await this.#run("open", [...keys, ...ring], [this.idleTtl, ""]);
        reply = null;
      } else if (typeof reply === "number") {
        // The clock of this machine differs: the server replies with the number of its own bucket.
        number = reply;
        reply = null;
      }
    }
    if (reply.endsWith("+")) {
      // The event is published. If trimming fails now, the next publisher trims.
      await this.#run("trim", [...keys, ...ring], [this.bucket, maxLength, this.idleTtl]).catch(() => {});
    }
    const [id, microseconds] = reply.split("-").map(Number);
    return { id, publishedAt: new Date(microseconds / 1000) };
  }

  // Closes the connection. A later publish() opens a new one.
  close() {
    this.connection?.socket.end();
    this.connection = null;
  }

  // Concurrent calls share one connection attempt.
  async #connect() {
    const { connect, username, password, database } = this.server;
    if (!this.connection || this.connection.broken) {
      const connection = new Connection(connect);
      this.connection = connection;
      connection.ready = (async () => {
        if (password) await connection.call("AUTH", username, password);
        if (database) await connection.call("SELECT", database);
      })();
    }
    const { connection } = this;
    await connection.ready.catch((error) => {
      connection.socket.destroy();
      if (this.connection === connection) this.connection = null;
      throw error;
    });
  }

  async #run(name, keys, args) {
    const { sha, text } = this.scripts[name];
    try {
      return await this.connection.call("EVALSHA", sha, keys.length, ...keys, ...args);
    } catch (error) {
      if (!error.message.startsWith("NOSCRIPT")) throw error;
      return await this.connection.call("EVAL", text, keys.length, ...keys, ...args);
    }
  }
}
