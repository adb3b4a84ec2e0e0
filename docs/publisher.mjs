// Publishes to a channel of django_redis_messaging from Node.js 18 or later, with nothing installed: the
// app's own script, so order, request ids, limits and expiry are those of Broadcast.publish.
//
//     import { Publisher } from "./publisher.mjs";
//
//     const publisher = new Publisher({ connect: { host: "127.0.0.1", port: 6379 }, database: 1,
//                                       scripts: "…/site-packages/django_redis_messaging/lua" });
//     const event = await publisher.publish("settings", { theme: "dark" });   // {id, publishedAt}
//     publisher.close();

import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import net from "node:net";
import path from "node:path";

// What the app keeps a channel for, while nobody publishes to it: ms.
const LIFE = 7 * 86_400_000;
// What stands percent-encoded in a key.
const UNSAFE = /[\u0000-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000{}%:]/g;

// Throws where the app would not take this as the name of a channel, or as a request id.
function check(name, what) {
  if (typeof name !== "string") throw new TypeError(`${what} must be a string.`);
  const bytes = Buffer.byteLength(name);
  if (bytes < 1 || bytes > 255 || /\u0000|\p{Surrogate}/u.test(name)) {
    throw new RangeError(`${what} must be 1 to 255 bytes of UTF-8, without NUL and lone surrogates.`);
  }
}

function encoded(name) {
  return name.replace(UNSAFE, (found) =>
    [...Buffer.from(found)].map((byte) => "%" + byte.toString(16).toUpperCase().padStart(2, "0")).join(""),
  );
}

// A script of the app: "-- uses _piece.lua" in its header puts that file in front.
function script(directory, name) {
  const read = (file) => readFileSync(path.join(directory, file), "utf8");
  const body = read(`${name}.lua`);
  const pieces = [...body.matchAll(/^-- uses (_\w+\.lua)$/gm)].map((found) => read(found[1]));
  const text = [...pieces, body].join("\n");
  return { text, sha: createHash("sha1").update(text).digest("hex") };
}

// One connection, on which replies come in the order of the requests.
class Connection {
  #waiting = [];
  #data = Buffer.alloc(0);
  broken = null;

  constructor(connect) {
    this.socket = net.connect(connect);
    this.socket.on("data", (data) => this.#received(data));
    this.socket.on("error", (error) => this.#ended(error));
    this.socket.on("close", () => this.#ended(new Error("Redis has closed the connection.")));
  }

  call(...words) {
    if (this.broken) return Promise.reject(this.broken);
    const parts = words.map((word) => Buffer.from(String(word)));
    const head = Buffer.from(`*${parts.length}\r\n`);
    const rest = parts.flatMap((part) => [Buffer.from(`$${part.length}\r\n`), part, Buffer.from("\r\n")]);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.socket.write(Buffer.concat([head, ...rest]));
    });
  }

  #received(data) {
    this.#data = Buffer.concat([this.#data, data]);
    for (let found = this.#reply(); found; found = this.#reply()) {
      const { resolve, reject } = this.#waiting.shift();
      if (found.error) reject(new Error(found.error));
      else resolve(found.value);
    }
  }

  // The next reply, if all of it is here. The replies to what is sent are no arrays.
  #reply() {
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

  #ended(error) {
    this.broken ??= error;
    for (const { reject } of this.#waiting.splice(0)) reject(error);
  }
}

export class Publisher {
  // connect: as net.connect takes it; durations are ms, and these settings are those of REDIS_MESSAGING.
  constructor({
    connect, scripts, username = "default", password, database = 0, prefix = "messaging", bucket = 10_000,
    retention = 300_000, maxLength = 100_000, maxBytes = 65_536, requestWindow = 120_000,
  }) {
    this.settings = { prefix, retention, maxLength, maxBytes, requestWindow };
    this.bucket = Math.max(bucket, Math.ceil(retention / 100));
    this.count = Math.ceil(retention / this.bucket) + 2;
    this.life = Math.max(LIFE, 2 * (retention + this.bucket));
    const names = ["publish", "open", "trim"];
    this.scripts = Object.fromEntries(names.map((name) => [name, script(scripts, `broadcast_${name}`)]));
    this.server = { connect, username, password, database };
    this.connection = null;
  }

  // To repeat safely after an error, give a requestId, and the same one again. The next call after a connection
  // broke makes another one.
  async publish(channel, payload, { requestId = randomBytes(8).toString("hex") } = {}) {
    check(channel, "channel");
    check(requestId, "requestId");
    const { prefix, retention, maxLength, maxBytes, requestWindow } = this.settings;
    const text = JSON.stringify(payload);
    if (text === undefined) throw new TypeError("JSON has no form for this payload.");
    if (Buffer.byteLength(text) > maxBytes) throw new RangeError(`The payload has more than ${maxBytes} bytes.`);
    await this.#connected();
    const tag = `${prefix}:1:{broadcast:${encoded(channel)}}`;
    const key = (number) => `${tag}:${this.bucket}x${this.count}:${number % this.count}`;
    const keys = ["head", "requests:0", "requests:1", "bell", "waiting"].map((name) => `${tag}:${name}`);
    const limits = [requestWindow, this.bucket, retention, maxLength, this.life];
    const ring = Array.from({ length: this.count }, (_, number) => key(number));
    let number = Math.floor(Date.now() / this.bucket);
    let reply = null;
    while (reply === null) {
      const named = [...keys, key(number), key(number + 1)];
      reply = await this.#run("publish", named, [text, requestId, ...limits, number]);
      if (reply === "none") {
        await this.#run("open", [keys[0], keys[3], ...ring], [this.life, ""]);
        reply = null;
      } else if (typeof reply === "number") {
        // the bucket that it is; the server says so, if this clock is wrong
        number = reply;
        reply = null;
      }
    }
    if (reply.endsWith("+")) {
      // the event is published; what can't be trimmed now, the next publisher does
      await this.#run("trim", [keys[0], ...ring], [this.bucket, maxLength, this.life]).catch(() => {});
    }
    const [id, microseconds] = reply.split("-").map(Number);
    return { id, publishedAt: new Date(microseconds / 1000) };
  }

  // It can be used again: then it connects anew.
  close() {
    this.connection?.socket.end();
    this.connection = null;
  }

  // Whoever comes while it connects waits for the same.
  async #connected() {
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
