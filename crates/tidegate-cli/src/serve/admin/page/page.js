// The live page: asks the server for its state twice a second and shows it.

import { count, html, rate, seconds, time } from "./draw.js";
import { begin } from "./playground.js";

const POLL_MS = 500;
/** How many keys of a limit have a bar. */
const BARS = 4;
/** How many rows "rejected most" has. */
const ROWS = 10;

const at = (id) => document.getElementById(id);
const say = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

/** The last totals, for the rates of about a second. */
let polls = [];
/** The cards of the limits, by their names. */
let cards = new Map();
let latest = null;

async function poll() {
  try {
    const response = await fetch("api/state", { signal: AbortSignal.timeout(4000) });
    if (!response.ok) throw new Error(`${response.status}`);
    latest = await response.json();
    at("lost").hidden = true;
    show(latest);
  } catch {
    at("lost").hidden = false;
    say(at("status"), "no answer");
    at("status").className = "status lost";
    polls = [];
  }
  setTimeout(poll, document.hidden ? 4 * POLL_MS : POLL_MS);
}

function show(state) {
  const { requests } = state;
  const allowed = requests.allowed + requests.queued;
  const rejected = requests.rejected + requests.never + requests.key_full + requests.shed + requests.unanswered;
  say(at("status"), state.status);
  at("status").className = `status ${state.status}`;
  const reloads = state.reloads.ok + state.reloads.failed > 0
    ? ` · ${state.reloads.ok} reloads${state.reloads.failed > 0 ? `, ${state.reloads.failed} failed` : ""}` : "";
  say(at("about"), `${state.listen} · up ${time(state.uptime_ms * 1e6)} · ${state.version}${reloads}`);

  const [allowedRate, rejectedRate] = rates(state.uptime_ms, allowed, rejected);
  say(at("allowed-rate"), rate(allowedRate));
  say(at("rejected-rate"), rate(rejectedRate));
  say(at("allowed-total"), count(allowed));
  say(at("rejected-total"), count(rejected));
  say(at("in-flight"), count(state.in_flight));
  say(at("waiting"), count(state.waiting));
  const full = requests.shed + requests.key_full;
  say(at("shed"), full > 0 ? `${count(full)} found no place` : "now");
  say(at("queued"), requests.queued > 0 ? `${count(requests.queued)} waited so far` : "in line now");
  seconds(at("minute"), state.seconds, { scale: true });
  say(at("took"), state.decision_p50_ns === null ? "" :
    `Half of the decisions took at most ${time(state.decision_p50_ns)}` +
    (state.decision_p99_ns === null ? "." : `, 99 of 100 at most ${time(state.decision_p99_ns)}.`));
  limits(state.limits);
  sides(state);
  rejectedMost(state.limits);
}

/** Requests a second, over the polls of about the last second. */
function rates(now, allowed, rejected) {
  if (polls.length > 0 && polls.at(-1).now > now) polls = [];
  polls.push({ now, allowed, rejected });
  while (polls.length > 2 && now - polls[1].now >= 1000) polls.shift();
  const [first] = polls;
  const elapsed = (now - first.now) / 1000;
  return elapsed > 0 ? [(allowed - first.allowed) / elapsed, (rejected - first.rejected) / elapsed] : [0, 0];
}

function limits(all) {
  const names = all.map((limit) => limit.name);
  if (names.join("\n") !== [...cards.keys()].join("\n")) {
    cards = new Map(names.map((name) => [name, card()]));
    at("limits").replaceChildren(...[...cards.values()].map((card) => card.root));
  }
  for (const limit of all) update(cards.get(limit.name), limit);
}

/** Who is answered beside HTTP, if somebody is. */
function sides({ resp, grpc }) {
  at("sides").hidden = resp === null && grpc === null;
  side("resp", resp, resp && [
    `RESP at ${resp.address}`,
    `${some(resp.commands, "command")}${errors(resp)}, ${some(resp.connections_open, "connection")} open` +
      (resp.connections_refused > 0 ? `, ${count(resp.connections_refused)} found no place` : ""),
    "TG.CHECK is also counted in its limit; CL.THROTTLE has buckets of its own" +
      (resp.evicted > 0 ? `, of which ${count(resp.evicted)} were forgotten early` : ""),
  ]);
  side("grpc", grpc, grpc && [
    `gRPC at ${grpc.address}`,
    `${some(grpc.requests, "request")}${errors(grpc)}, ${some(grpc.connections_open, "connection")} open`,
    "Also counted in the limits on descriptors",
  ]);
}

const some = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
const errors = (side) => (side.errors > 0 ? `, ${some(side.errors, "error")}` : "");

function side(id, state, texts) {
  const root = at(id);
  root.hidden = state === null;
  if (state === null) return;
  totals(root.querySelector(".totals"), state.allowed, state.rejected, "rejected");
  root.querySelectorAll(".words p, .note").forEach((element, index) => say(element, texts[index]));
  seconds(root.querySelector(".chart"), state.seconds, { scale: false });
}

function totals(element, allowed, refused, word) {
  element.replaceChildren(html("b", "", count(allowed)), " allowed, ", html("b", "", count(refused)), ` ${word}`);
}

function card() {
  const root = html("article", "card limit");
  const head = html("div", "head");
  const title = html("h2");
  const name = html("span");
  const badge = html("span", "badge");
  title.append(name, badge);
  const totals = html("p", "totals");
  head.append(title, totals);
  const words = html("div", "words");
  const levels = html("ul", "levels");
  const chart = html("figure", "chart small");
  const table = html("p", "note");
  root.append(head, words, levels, chart, table);
  return { root, name, badge, totals, words, levels, chart, table, bars: [] };
}

function update(card, limit) {
  say(card.name, limit.name);
  card.badge.hidden = limit.mode !== "shadow";
  say(card.badge, "shadow");
  const refused = limit.rejected + limit.never;
  totals(card.totals, limit.allowed, refused, limit.mode === "shadow" ? "would be rejected" : "rejected");
  if (card.words.textContent !== limit.words.join("")) {
    card.words.replaceChildren(...limit.words.map((line) => html("p", "", line)));
  }
  const keys = limit.asked_most.filter((key) => key.level !== null).slice(0, BARS);
  while (card.bars.length > keys.length) card.bars.pop().root.remove();
  while (card.bars.length < keys.length) {
    const next = bar();
    card.bars.push(next);
    card.levels.append(next.root);
  }
  card.levels.hidden = keys.length === 0;
  keys.forEach((key, index) => level(card.bars[index], key));
  seconds(card.chart, limit.seconds, { scale: false });
  const { table } = limit;
  say(card.table, table === null || limit.key.length === 0 ? "" :
    `${count(table.used)} of ${count(table.slots)} slots hold a key with a debt` +
    (table.evicted > 0 ? `; ${count(table.evicted)} were forgotten early` : ""));
}

function bar() {
  const root = html("li");
  const key = html("span", "key");
  const left = html("span", "left");
  const meter = html("div", "meter");
  const fill = html("i");
  meter.setAttribute("role", "meter");
  meter.setAttribute("aria-valuemin", "0");
  meter.append(fill);
  root.append(key, left, meter);
  return { root, key, left, meter, fill };
}

function level(bar, { key, level }) {
  const name = key === "*" ? "all together" : key;
  say(bar.key, name);
  bar.key.title = name;
  say(bar.left, `${count(level.remaining)} of ${count(level.capacity)} left`);
  bar.meter.setAttribute("aria-label", `Left for ${name}`);
  bar.meter.setAttribute("aria-valuemax", level.capacity);
  bar.meter.setAttribute("aria-valuenow", level.remaining);
  const part = fraction(level);
  bar.meter.classList.toggle("low", level.remaining === 0);
  bar.fill.style.transform = `scaleX(${part.toFixed(4)})`;
}

/** How full it is, parts of tokens included where they come back one by one. */
function fraction({ remaining, capacity, reset_after_ns: reset, refill }) {
  if (capacity === 0) return 0;
  const full = refill === null ? remaining / capacity : 1 - (reset * refill.count) / refill.per_ns / capacity;
  return Math.min(1, Math.max(0, full));
}

function rejectedMost(all) {
  const rows = all.flatMap((limit) => limit.rejected_most.map((key) => ({ limit, ...key })))
    .sort((one, other) => (one.limit.mode === "shadow") - (other.limit.mode === "shadow") || other.at_least - one.at_least || other.at_most - one.at_most).slice(0, ROWS);
  at("nobody").hidden = rows.length > 0;
  at("most").hidden = rows.length === 0;
  const body = at("most").tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  while (body.rows.length < rows.length) {
    const row = body.insertRow();
    for (const kind of ["key", "", "number", "left"]) row.insertCell().className = kind;
  }
  rows.forEach((row, index) => {
    const [key, limit, number, left] = body.rows[index].cells;
    say(key, row.key === "*" ? "all together" : row.key);
    say(limit, row.limit.name + (row.limit.mode === "shadow" ? " (shadow)" : ""));
    say(number, row.at_least === row.at_most ? count(row.at_least) : `${count(row.at_least)} – ${count(row.at_most)}`);
    say(left, row.level === null ? "–" : `${count(row.level.remaining)} of ${count(row.level.capacity)}`);
  });
}

new ResizeObserver(() => latest && show(latest)).observe(document.querySelector("main"));
begin();
poll();
