const at = (id) => document.getElementById(id);
const server = JSON.parse(at("server").textContent);
const NAMES = {
  accepted: "accepted from the draft", residual: "drawn after a rejection",
  bonus: "drawn behind a whole draft", plain: "without a draft",
};
const tallies = { fast: null, plain: null };
let running = null; // the AbortController of what runs

function asked(k, seed) {
  const prompt = at("prompt").value;
  const chat = at("chat").checked;
  return {
    path: chat ? "/v1/chat/completions" : "/v1/completions",
    body: {
      model: server.model,
      ...(chat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
      temperature: Number(at("temperature").value),
      max_tokens: Number(at("most").value),
      seed,
      stream: true,
      return_token_origins: true,
      speculative: { num_speculative_tokens: k, rule: at("rule").value },
    },
  };
}

async function run(panel, k, seed) {
  const { path, body } = asked(k, seed);
  const box = at(panel);
  const text = box.querySelector(".text");
  const tally = (tallies[panel] = new Tally(performance.now()));
  box.setAttribute("aria-busy", "true");
  try {
    for await (const chunk of streamed(path, body, at("key").value, running.signal)) {
      const choice = chunk.choices[0];
      if (!choice) continue;
      tally.add((choice.token_origins ?? []).map((token) => token.origin), performance.now());
      write(text, choice.token_origins ?? [], choice.text ?? choice.delta.content ?? "");
      show(panel);
    }
  } finally {
    box.removeAttribute("aria-busy");
  }
}

/** Each token in the colour of its origin; what the text has beyond them, an incomplete character's end, plainly. */
function write(box, tokens, text) {
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
  let rest = text;
  for (const { origin, text: piece } of tokens) {
    rest = rest.slice(piece.length);
    if (!piece) continue;
    const span = document.createElement("span");
    span.className = origin;
    span.title = NAMES[origin];
    span.textContent = piece;
    box.append(span);
  }
  if (rest) box.append(rest);
  if (follows) box.scrollTop = box.scrollHeight;
}

function show(panel) {
  const tally = tallies[panel];
  if (!tally.tokens) return;
  const each = (tally.tokens / tally.steps).toFixed(2);
  const line = `${tally.tokens} tokens in ${tally.steps} steps, ${each} a step; first after ${tally.wait.toFixed(0)} ms`;
  at(panel).querySelector(".figures-line").textContent = line;
  showSpeeds();
  if (panel === "fast") showPositions(tally);
}

function showSpeeds() {
  const most = Math.max(...Object.values(tallies).map((tally) => tally?.speed ?? 0));
  at("speeds").hidden = most === 0;
  for (const [panel, tally] of Object.entries(tallies)) {
    const row = at(`speed-${panel}`);
    const speed = tally?.speed ?? 0;
    row.querySelector("i").style.width = `${most ? (100 * speed) / most : 0}%`;
    row.querySelector("b").textContent = speed ? `${speed.toFixed(1)} tokens/s` : "";
  }
}

function showPositions(tally) {
  at("positions").hidden = tally.reached.length === 0;
  const rows = tally.reached.map((reached, place) => {
    const share = tally.passed[place] / reached;
    const row = document.createElement("tr");
    const cells = [place + 1, "", `${(100 * share).toFixed(0)} %`, `${tally.passed[place]} of ${reached}`];
    cells.forEach((told, i) => {
      const cell = row.insertCell();
      cell.textContent = told;
      if (i > 1) cell.className = "num";
    });
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.append(document.createElement("i"));
    bar.firstChild.style.width = `${100 * share}%`;
    row.cells[1].append(bar);
    return row;
  });
  at("positions").querySelector("tbody").replaceChildren(...rows);
}

function say(text, bad = false) {
  at("said").textContent = text;
  at("said").classList.toggle("bad", bad);
}

/** What both texts together say, once both are whole. */
function verdict(seed) {
  const { fast, plain } = tallies;
  const end = `Seed ${seed}.`;
  if (!fast?.speed || !plain?.speed) return `Done. ${end}`;
  const [one, other] = ["fast", "plain"].map((panel) => at(panel).querySelector(".text").textContent);
  const promised = Number(at("temperature").value) === 0 || ["coupled", "sampled"].includes(at("rule").value);
  const alike = one === other ? "The texts are the same."
    : promised ? "The texts differ."
    : "The texts are two samples of one law; with the rule coupled or sampled they are the same.";
  return `${(fast.speed / plain.speed).toFixed(2)} × the speed of plain decoding. ${alike} ${end}`;
}

async function generate() {
  if (running || !at("form").reportValidity()) return;
  running = new AbortController();
  const seed = at("seed").value === "" ? Math.floor(Math.random() * 2 ** 32) : Number(at("seed").value);
  begin();
  try {
    await compared(seed);
    say(verdict(seed));
  } catch (error) {
    if (running.signal.aborted) say(`Stopped. Seed ${seed}.`);
    else say(error.message, true);
    running.abort(); // of two that ran side by side, the one that is left
    if (error.status === 401) at("key").focus();
  } finally {
    running = null;
    at("go").disabled = false;
    at("stop").disabled = true;
  }
}

function begin() {
  for (const panel of ["fast", "plain"]) {
    tallies[panel] = null;
    at(panel).querySelector(".text").replaceChildren();
    at(panel).querySelector(".figures-line").textContent = "";
  }
  at("positions").hidden = true;
  at("go").disabled = true;
  at("stop").disabled = false;
  showSpeeds();
}

async function compared(seed) {
  const k = at("auto").checked ? "auto" : Number(at("k").value);
  if (!server.speculates) {
    say("Generating …");
    return run("plain", 0, seed);
  }
  const how = at("compare").value;
  say(how === "beside" ? "Generating both at once …" : "Generating with speculation …");
  if (how === "beside") return Promise.all([run("fast", k, seed), run("plain", 0, seed)]);
  await run("fast", k, seed);
  if (how === "alone") return undefined;
  say("Generating without speculation …");
  return run("plain", 0, seed);
}

function settle() {
  at("k").disabled = at("auto").checked;
  at("k-told").textContent = at("auto").checked ? "auto" : at("k").value === "0" ? "0: plain" : at("k").value;
  at("temperature-told").textContent = Number(at("temperature").value).toFixed(1);
  at("fast").hidden = !server.speculates;
  at("plain").hidden = server.speculates && at("compare").value === "alone";
  at("speed-plain").hidden = at("plain").hidden;
  at("speed-fast").hidden = at("fast").hidden;
}

function stop() {
  running?.abort();
}

at("key-control").hidden = !server.key;
at("lengths").hidden = !server.speculates;
at("auto").checked = server.adapts;
at("auto").parentElement.hidden = !server.adapts;
at("chat").checked = server.chats;
at("chat").parentElement.parentElement.hidden = !server.chats;
at("compare").parentElement.hidden = !server.speculates;
at("form").addEventListener("input", settle);
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
at("stop").addEventListener("click", stop);
at("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  generate();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
settle();
