// Small charts in SVG. Texts of a server are only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

/** An element of HTML with a class and a text. */
export function html(tag, kind = "", text = "") {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text !== "") element.textContent = text;
  return element;
}

/** An element of SVG with attributes. */
export function svg(tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== "") element.textContent = text;
  return element;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (number) => whole.format(number);

/** A rate: whole above ten, else with one decimal; no decimal for nothing. */
export const rate = (number) => (number === 0 || number >= 10 ? whole : tenths).format(number);

/** A time in nanoseconds, as people say it. */
export function time(ns) {
  if (ns === 0) return "0s";
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  if (ns >= 60e9) {
    const seconds = Math.round(ns / 1e9);
    if (seconds >= 86400) return `${Math.floor(seconds / 86400)}d ${Math.floor((seconds % 86400) / 3600)}h`;
    if (seconds >= 3600) return `${Math.floor(seconds / 3600)}h ${Math.floor((seconds % 3600) / 60)}m`;
    return `${Math.floor(seconds / 60)}m ${seconds % 60}s`;
  }
  const [size, unit] = units.find(([size]) => ns >= size) ?? [1, "ns"];
  const number = ns / size;
  return `${number >= 100 || Number.isInteger(number) ? Math.round(number) : number.toPrecision(2)}${unit}`;
}

/** The smallest of ..., 0.5, 1, 2, 5, 10, ... that is at least `most`, so that a scale does not move all the time. */
function ceiling(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= most);
}

/** Makes an empty picture of the size that its figure has on the page, and says what it shows. */
function picture(figure, label) {
  const width = Math.max(figure.clientWidth, 50);
  const height = Math.max(figure.clientHeight, 20);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  return { root, width, height };
}

/** Each second of a minute as a bar, allowed below and rejected on top. */
export function seconds(figure, { allowed, rejected }, { scale }) {
  const most = Math.max(0, ...allowed.map((number, index) => number + rejected[index]));
  const label = `Requests in each second of the last minute: at most ${count(most)}`;
  const { root, width, height } = picture(figure, label);
  const left = scale ? 34 : 0;
  const bottom = scale ? height - 18 : height;
  const top = ceiling(Math.max(most, 1));
  const y = (number) => bottom - (number / top) * (bottom - 6);
  if (scale) {
    for (const number of [0, top / 2, top]) {
      if (!Number.isInteger(number)) continue;
      root.append(svg("line", { class: "grid", x1: left, x2: width, y1: y(number), y2: y(number) }));
      root.append(svg("text", { x: left - 8, y: y(number) + 4, "text-anchor": "end" }, short(number)));
    }
    for (const [ago, anchor] of [[60, "start"], [30, "middle"], [0, "end"]]) {
      const x = width - (ago / 60) * (width - left);
      root.append(svg("text", { x, y: height - 2, "text-anchor": anchor }, ago === 0 ? "now" : `${ago} s ago`));
    }
  } else {
    root.append(svg("line", { class: "grid", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }));
  }
  const step = (width - left) / 60;
  const bar = (kind, x, from, to) =>
    root.append(svg("rect", { class: kind, x, width: Math.max(step - 2, 1), y: y(to), height: y(from) - y(to), rx: 1 }));
  allowed.forEach((number, index) => {
    const x = left + (60 - allowed.length + index) * step + 1;
    if (number > 0) bar("allowed", x, 0, number);
    if (rejected[index] > 0) bar("rejected", x, number, number + rejected[index]);
  });
  figure.replaceChildren(root);
}

/** A number of an axis. */
function short(number) {
  if (number >= 1e6) return `${number / 1e6}M`;
  return number >= 1e4 ? `${number / 1e3}k` : `${number}`;
}

/** Lines over time: `lines` of `{kind, points: [[second, number]], steps}`. */
export function lines(figure, all, label) {
  const { root, width, height } = picture(figure, label);
  const [left, bottom] = [40, height - 20];
  const points = all.flatMap((line) => (line.fits === false ? [] : line.points));
  const last = Math.max(1e-9, ...points.map(([second]) => second));
  const most = Math.max(1, ...points.map(([, number]) => number));
  const x = (second) => left + (second / last) * (width - left - 2);
  const y = (number) => bottom - (number / most) * (bottom - 8);
  const step = Math.max(1, ceiling(most / 4.5));
  for (let number = 0; number <= most; number += step) {
    root.append(svg("line", { class: "grid", x1: left, x2: width, y1: y(number), y2: y(number) }));
    root.append(svg("text", { x: left - 8, y: y(number) + 4, "text-anchor": "end" }, short(number)));
  }
  const every = ceiling(last / (width > 600 ? 8 : 4));
  for (let tick = 0; tick * every <= last * 1.0001; tick += 1) {
    const second = tick * every;
    const anchor = tick === 0 ? "start" : x(second) > width - 24 ? "end" : "middle";
    root.append(svg("text", { x: x(second), y: height - 3, "text-anchor": anchor }, time(Math.round(second * 1e9))));
  }
  const clip = svg("clipPath", { id: "plot" });
  clip.append(svg("rect", { x: left, y: 0, width: width - left, height: bottom + 2 }));
  root.append(clip);
  for (const line of all) {
    const path = line.points.map(([second, number], index) => {
      const at = `${x(second).toFixed(1)} ${y(number).toFixed(1)}`;
      if (index === 0) return `M${at}`;
      return line.steps ? `H${x(second).toFixed(1)}V${y(number).toFixed(1)}` : `L${at}`;
    });
    root.append(svg("path", { class: `line ${line.kind}`, d: path.join(""), "clip-path": "url(#plot)" }));
  }
  figure.replaceChildren(root);
}

/** What became of each request (`ticks`), or of those in each piece of time (`bins`). */
export function strip(figure, { ticks, bins }, span, label) {
  const { root, width, height } = picture(figure, label);
  const left = 40;
  const room = width - left - 2;
  root.append(svg("line", { class: "grid", x1: left, x2: width, y1: height - 0.5, y2: height - 0.5 }));
  if (ticks) {
    for (const [at, kind] of ticks) {
      const x = left + (span > 0 ? at / span : 0) * (room - 2);
      const tall = kind === "rejected" ? 0.45 : 1;
      root.append(svg("rect", { class: kind, x, width: 2, y: height - height * tall, height: height * tall, rx: 1 }));
    }
  } else {
    const most = Math.max(1, ...bins.allowed.map((number, index) => number + bins.rejected[index]));
    const step = room / bins.allowed.length;
    bins.allowed.forEach((number, index) => {
      const x = left + index * step;
      const tall = (part) => (part / most) * height;
      const sizes = { x, width: Math.max(step - 1, 1) };
      const refused = bins.rejected[index];
      if (number > 0) root.append(svg("rect", { class: "allowed", ...sizes, y: height - tall(number), height: tall(number) }));
      if (refused > 0) {
        root.append(svg("rect", { class: "rejected", ...sizes, y: height - tall(number + refused), height: tall(refused) }));
      }
    });
  }
  figure.replaceChildren(root);
}
