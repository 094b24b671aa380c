"use strict";

/** Sends `body` and yields the objects of the answer's stream. Throws an Error with the server's own words. */
async function* streamed(path, body, key, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal }).catch((error) => {
    throw error.name === "TypeError" ? new Error("The server cannot be reached.") : error;
  });
  if (!reply.ok) throw await refusal(reply);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let whole = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done && !whole) throw new Error("The answer broke off.");
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") {
        whole = true;
        continue;
      }
      const told = JSON.parse(data);
      if (told.error) throw new Error(told.error.message);
      yield told;
    }
  }
}

async function refusal(reply) {
  const text = await reply.text();
  let message = `the server answered with status ${reply.status}`;
  try {
    message = JSON.parse(text).error.message;
  } catch { /* no JSON: the status has to do */ }
  const error = new Error(message);
  error.status = reply.status;
  return error;
}

/** Figures of one text as its tokens arrive. Origins are the server's: accepted, residual, bonus or plain. */
class Tally {
  tokens = 0;
  steps = 0;
  passed = []; // by draft position: steps in which its token stood
  reached = []; // and steps that came to it
  #streak = 0;
  #began = 0;
  #first = 0;
  #early = 0; // tokens of the first chunk, which waited for the prompt
  #last = 0;

  constructor(now) {
    this.#began = now;
  }

  add(origins, now) {
    if (!origins.length) return;
    if (!this.tokens) [this.#first, this.#early] = [now, origins.length];
    this.#last = now;
    this.tokens += origins.length;
    origins.forEach((origin) => this.#count(origin));
  }

  #count(origin) {
    if (this.#streak === 0) this.steps += 1;
    const place = this.#streak;
    if (origin === "accepted" || origin === "residual") this.reached[place] = (this.reached[place] ?? 0) + 1;
    this.passed[place] = (this.passed[place] ?? 0) + (origin === "accepted" ? 1 : 0);
    this.#streak = origin === "accepted" ? place + 1 : 0;
  }

  /** Tokens a second behind the first chunk; 0 while there is nothing to divide. */
  get speed() {
    const seconds = (this.#last - this.#first) / 1000;
    return seconds > 0 ? (this.tokens - this.#early) / seconds : 0;
  }

  /** Milliseconds until the first token. */
  get wait() {
    return this.#first - this.#began;
  }
}
