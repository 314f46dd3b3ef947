// The playground: limiters on a pattern or a pasted trace, decided by the server in virtual time.

import { count, html, lines, strip, time } from "./draw.js";

const at = (id) => document.getElementById(id);
const KINDS = { a: "allowed", w: "waiting", r: "rejected" };
const PER = { s: 1, min: 60, h: 3600 };
/** The limiters in the order of their colours. */
const LIMITERS = ["token-bucket", "fixed-window", "sliding-window", "sliding-log", "leaky-bucket", "none"];

let running = null;
let played = null;

/** Waits for whoever turns a knob. */
export function begin() {
  for (const id of ["pace", "duration", "rate", "burst"]) pair(at(id), at(`${id}-slider`));
  at("controls").addEventListener("input", () => {
    fields();
    play();
  });
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  new ResizeObserver(() => played && draw(played)).observe(at("curve"));
  fields();
  play();
}

/** A slider that goes in equal ratios, and its number. */
function pair(number, slider) {
  const [least, most] = [Number(number.min), number.id === "burst" || number.id === "rate" ? 1000 : Number(number.max)];
  const ratio = most / least;
  const follow = () => {
    const part = Math.log(Math.max(Number(number.value), least) / least) / Math.log(ratio);
    slider.value = Math.round(part * Number(slider.max));
    slider.setAttribute("aria-valuetext", number.value);
  };
  slider.addEventListener("input", () => {
    const value = least * ratio ** (Number(slider.value) / Number(slider.max));
    const digits = Math.max(0, 1 - Math.floor(Math.log10(value)));
    const rounded = Number(number.step) === 1 ? Math.round(value) : Number(value.toFixed(Math.min(digits, 2)));
    number.value = value >= 100 ? Math.round(Number(value.toPrecision(2))) : rounded;
    slider.setAttribute("aria-valuetext", number.value);
  });
  number.addEventListener("input", follow);
  follow();
}

/** Shows what the pattern has. */
function fields() {
  for (const row of document.querySelectorAll(".of-pattern")) {
    row.hidden = !row.dataset.for.split(" ").includes(at("pattern").value);
  }
}

function question() {
  const limiters = [...document.querySelectorAll("[name=limiter]:checked")].map((box) => box.value);
  const ask = { quota: `${at("rate").value}/${at("per").value} burst ${at("burst").value}`, limiters };
  const pattern = at("pattern").value;
  if (pattern === "trace") {
    const unit = at("time-unit").value;
    return { ...ask, trace: at("trace").value, key: at("key").value, ...(unit && { time_unit: unit }) };
  }
  return {
    ...ask, pattern, rate: `${at("pace").value}/s`, duration: `${at("duration").value}s`,
    seed: Math.trunc(Number(at("seed").value)) || 0,
  };
}

/** Asks for the latest question only. */
async function play() {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  try {
    const response = await fetch("api/simulate", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(question()),
      signal: mine.signal,
    });
    const answer = await response.json();
    if (mine.signal.aborted) return;
    at("wrong").hidden = response.ok;
    at("played").hidden = !response.ok;
    if (!response.ok) {
      at("wrong").textContent = answer.error;
      return;
    }
    played = answer;
    draw(answer);
  } catch (error) {
    if (error.name === "AbortError") return;
    at("wrong").hidden = false;
    at("wrong").textContent = "No answer from the server.";
  }
}

function draw(played) {
  const color = (limiter) => `s${LIMITERS.indexOf(limiter)}`;
  const requests = `${count(played.requests)} request${played.requests === 1 ? "" : "s"}`;
  const keys = played.keys === null ? "" : ` of ${count(played.keys)} keys`;
  const title = `${requests}${keys} in ${time(played.span_ns)}, limit ${played.words}`;
  if (at("played-title").textContent !== title) at("played-title").textContent = title;

  const all = [{ kind: "asked", points: curve(played, played.results[0], "arw"), steps: true }];
  const legend = [html("li", "asked", "came")];
  const promise = played.keys === null && bound();
  if (promise) {
    const seconds = Math.max(played.span_ns / 1e9, 1e-9);
    const points = [[0, promise.burst], [seconds, promise.burst + promise.rate * seconds]];
    all.push({ kind: "promise", points, fits: false });
    const line = html("li", "promise", "burst + rate × time");
    legend.push(line);
  }
  for (const row of played.results) {
    all.push({ kind: color(row.limiter), points: curve(played, row, "aw"), steps: true });
    const line = html("li", color(row.limiter));
    line.append(html("span", "", row.limiter));
    legend.push(line);
  }
  at("lines").replaceChildren(...legend);
  lines(at("curve"), all, `Requests so far over time: ${played.results.map((row) => `${row.limiter} ${row.words}`).join("; ")}`);

  const rows = played.results.map((row) => {
    const result = html("div", "result");
    const words = html("p");
    words.append(html("b", color(row.limiter), row.limiter), html("span", "", ` ${row.words}`));
    const figure = html("figure", "chart strip");
    result.append(words, figure);
    return { result, figure, row };
  });
  at("rows").replaceChildren(...rows.map(({ result }) => result));
  for (const { figure, row } of rows) {
    const ticks = played.times_ns?.map((time, index) => [time, KINDS[row.decisions[index]]]);
    strip(figure, { ticks, bins: row.bins }, played.span_ns,
      `${row.limiter}: ${count(row.allowed)} allowed, ${count(row.rejected)} rejected over time`);
  }
  at("notes").textContent = played.notes.join("; ");
}

/** The limit as numbers, for the dashed line. */
function bound() {
  const [rate, burst] = [Number(at("rate").value), Number(at("burst").value)];
  return { rate: rate / PER[at("per").value], burst };
}

/** How many of these letters came by each time. */
function curve(played, row, letters) {
  const points = [[0, 0]];
  let sum = 0;
  if (played.times_ns) {
    played.times_ns.forEach((time, index) => {
      if (letters.includes(row.decisions[index])) points.push([time / 1e9, (sum += 1)]);
    });
  } else {
    row.bins.allowed.forEach((number, index) => {
      sum += number + (letters.includes("r") ? row.bins.rejected[index] : 0);
      points.push([Math.min((index + 1) * played.bin_ns, played.span_ns) / 1e9, sum]);
    });
  }
  points.push([played.span_ns / 1e9, sum]);
  return points;
}
