// The live page in a real browser: what it shows is what hammers counted, and everyone can use it.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdir } from "node:fs/promises";
import { test } from "node:test";
import { envoy, hammer, number, open, pictures, redis, serve } from "./harness.mjs";

const LIMITS = new URL("limits.toml", import.meta.url).pathname;
const SIDES = new URL("sides.toml", import.meta.url).pathname;
const CLIENTS = [["checkout", 35], ["mobile-app", 28], ["nightly-report", 12], ["<b>crawler</b>", 60], ["partner", 6]];

/** Waits until the page shows what it should; it asks the server twice a second. */
async function shows(page, selector, text) {
  await page.waitForFunction(
    ([selector, text]) => document.querySelector(selector)?.textContent === text, [selector, text], { timeout: 20_000 });
}

/** Takes a picture of all of the page. */
async function picture(page, name) {
  await mkdir(pictures, { recursive: true });
  await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true });
}

test("the counts on the page are those of hammer, in light, in dark and on a telephone", async (t) => {
  const server = await serve("--limits", LIMITS);
  t.after(server.stop);
  const views = [
    ["light", { colorScheme: "light" }],
    ["dark", { colorScheme: "dark" }],
    ["narrow", { colorScheme: "light", viewport: { width: 400, height: 800 } }],
  ];
  const opened = [];
  t.after(() => Promise.all(opened.map((view) => view.close())));
  for (const [, options] of views) opened.push(await open(server.admin, options));

  const hammers = CLIENTS.map(([name, rate]) =>
    hammer(server.url, "--rate", `${rate}`, "--duration", "12s", "--header", `x-api-key: ${name}`));
  // Pictures of a server at work: some seconds of the minute are there.
  for (const [index, [name]] of views.entries()) {
    const { page } = opened[index];
    await page.waitForFunction(() => document.querySelectorAll("#minute rect.allowed").length >= 8, null, { timeout: 20_000 });
    await picture(page, name);
  }
  const reports = await Promise.all(hammers);
  const sum = (...statuses) => reports.reduce(
    (sum, report) => sum + statuses.reduce((sum, status) => sum + (report.statuses[status] ?? 0), 0), 0);
  const [allowed, rejected] = [sum("200"), sum("429", "503")];
  assert.ok(allowed > 500 && rejected > 200, `${allowed} ${rejected}`);
  assert.equal(allowed + rejected, reports.reduce((sum, report) => sum + report.requests, 0));

  for (const [index, [name]] of views.entries()) {
    const { page, strange } = opened[index];
    await shows(page, "#allowed-total", allowed.toLocaleString("en"));
    await shows(page, "#rejected-total", rejected.toLocaleString("en"));
    assert.equal(await number(page, "#waiting"), 0);
    const crawler = page.locator("#most tbody tr").first();
    assert.equal(await crawler.locator("td").nth(0).innerText(), "<b>crawler</b>");
    const most = Number(await crawler.locator("td").nth(2).innerText());
    assert.ok(most > 100 && most <= reports[3].statuses["429"], `${most} is no more than its hammer saw`);
    assert.equal(await page.locator("article.limit").count(), 3);
    assert.match(await page.locator("article.limit").first().innerText(), /20 per second, burst 40 for each header:x-api-key/);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= page.viewportSize().width, `${name}: ${width} wide`);
    assert.deepEqual(strange, []);
  }
  // What Prometheus itself says of the text.
  const metrics = await (await fetch(`${server.admin}/metrics`)).text();
  const checked = spawnSync("promtool", ["check", "metrics"], { input: metrics, encoding: "utf8" });
  assert.equal(checked.status, 0, `${checked.error ?? ""}${checked.stdout}${checked.stderr}`);
  const ground = ({ page }) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.notEqual(await ground(opened[0]), await ground(opened[1]));
});

test("levels move, and those who wait are in line", async (t) => {
  const server = await serve("--limiter", "leaky-bucket", "--quota", "2/s burst 1", "--queue", "8");
  t.after(server.stop);
  const { page, strange, close } = await open(server.admin);
  t.after(close);
  const running = hammer(server.url, "--requests", "12", "--interval", "0s");
  await page.waitForFunction(() => Number(document.querySelector("#waiting").textContent) > 0);
  const level = page.locator("[role=meter]").first();
  await level.waitFor();
  const before = Number(await level.getAttribute("aria-valuenow"));
  const report = await running;
  await shows(page, "#allowed-total", `${report.statuses["200"]}`);
  await shows(page, "#rejected-total", `${report.statuses["429"]}`);
  await shows(page, "#waiting", "0");
  await page.waitForFunction((before) => Number(document.querySelector("[role=meter]").ariaValueNow) > before, before);
  assert.deepEqual(strange, []);
});

test("Redis clients and Envoys have cards when they are answered, and limits on descriptors are limits", async (t) => {
  const plain = await serve();
  t.after(plain.stop);
  const alone = await open(plain.admin);
  t.after(alone.close);
  await shows(alone.page, "#status", "ready");
  assert.ok(await alone.page.locator("#sides").isHidden());

  const server = await serve("--limits", SIDES, "--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0");
  t.after(server.stop);
  const client = await redis(server.resp);
  t.after(client.close);
  const proxy = await envoy(server.grpc);
  t.after(proxy.close);
  const views = [
    ["sides", { colorScheme: "light" }],
    ["sides-dark-narrow", { colorScheme: "dark", viewport: { width: 390, height: 800 } }],
  ];
  const opened = [];
  t.after(() => Promise.all(opened.map((view) => view.close())));
  for (const [, options] of views) opened.push(await open(server.admin, options));

  const users = [["ann", 14], ["bob", 9], ["carl", 5]];
  const codes = [];
  for (const [user, asks] of users) {
    for (let ask = 0; ask < asks; ask += 1) codes.push(await proxy.ask("shop", "user", user));
  }
  for (let ask = 0; ask < 3; ask += 1) assert.equal(await proxy.ask("shop", "user", "root"), 1, "an exception is not asked");
  const [over, all] = [codes.filter((code) => code === 2).length, codes.length];
  assert.equal(over, 4, "10 an hour each");
  for (let ask = 0; ask < 6; ask += 1) await client.ask("CL.THROTTLE key 3 1 3600");
  assert.equal((await client.ask("TG.CHECK account ann"))[1], ":0");
  assert.match((await client.ask("TG.CHECK nobody ann"))[0], /^-ERR there is no limit/);

  for (const [index, [name]] of views.entries()) {
    const { page, strange } = opened[index];
    await shows(page, "#grpc .totals", `${all - over + 3} allowed, ${over} rejected`);
    await shows(page, "#grpc .words", `gRPC at ${server.grpc}${all + 3} requests, 1 connection open`);
    await shows(page, "#resp .totals", "5 allowed, 2 rejected");
    await shows(page, "#resp .words", `RESP at ${server.resp}8 commands, 1 error, 1 connection open`);
    await page.waitForFunction(() => document.querySelectorAll("#sides rect.allowed").length >= 2, null, { timeout: 20_000 });
    const limit = page.locator("article.limit", { hasText: "shop: user=*" });
    assert.equal(await page.locator("article.limit").count(), 2);
    assert.match(await limit.innerText(), /per-user/);
    assert.equal(await limit.locator(".totals").innerText(), `${all - over} allowed, ${over} rejected`);
    assert.equal(await limit.locator("[role=meter]").first().getAttribute("aria-label"), "Left for ann");
    assert.equal(await limit.locator("[role=meter]").first().getAttribute("aria-valuenow"), "0");
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= page.viewportSize().width, `${name}: ${width} wide`);
    assert.deepEqual(strange, []);
    await picture(page, name);
  }
});

test("the playground decides again when a slider moves, and reads a pasted trace", async (t) => {
  const server = await serve();
  t.after(server.stop);
  const { page, strange, close } = await open(server.admin);
  t.after(close);
  const row = page.locator("#rows .result p").first();
  const allowed = async () => Number(/ (\d+) of /.exec(await row.innerText())[1]);
  await row.waitFor();
  const before = await allowed();
  await page.focus("#rate-slider");
  for (let press = 0; press < 30; press += 1) await page.keyboard.press("ArrowRight");
  const rate = Number(await page.inputValue("#rate"));
  assert.ok(rate > 10, `${rate}`);
  await page.waitForFunction((rate) => document.querySelector("#played-title").textContent.includes(`limit ${rate} per second`), rate);
  assert.ok(await allowed() > before);

  await page.selectOption("#pattern", "trace");
  await page.fill("#trace", "time,client\n1,ann\n1,ann\n1,bob\n2,bob");
  await page.fill("#rate", "1");
  await page.fill("#burst", "1");
  await page.selectOption("#per", "h");
  await page.waitForFunction(() => document.querySelector("#played-title").textContent.startsWith("4 requests of 2 keys"));
  await page.waitForFunction(() => document.querySelector("#rows .result p").textContent.includes(" 2 of 4 allowed"));
  assert.equal(await page.locator("#rows .result").first().locator("rect.allowed").count(), 2);

  assert.deepEqual(strange, []);
  await page.fill("#trace", "hello");
  await page.locator("#wrong").waitFor();
  assert.match(await page.locator("#wrong").innerText(), /trace/);
  // The browser itself notes the status 400, and nothing else.
  assert.ok(strange.every((line) => line.includes("status of 400")), `${strange}`);
});

test("a keyboard reaches every control, and each has a name and a visible focus", async (t) => {
  const server = await serve();
  t.after(server.stop);
  const { page, strange, close } = await open(server.admin);
  t.after(close);
  await page.locator("#rows .result").first().waitFor();
  const controls = await page.evaluate(() => [...document.querySelectorAll("a[href], button, input, select, textarea")]
    .filter((element) => element.checkVisibility()).length);
  const reached = new Set();
  for (let press = 0; press < controls; press += 1) {
    await page.keyboard.press("Tab");
    const seen = await page.evaluate(() => {
      const element = document.activeElement;
      const name = element.ariaLabel ?? element.labels?.[0]?.textContent ?? element.textContent;
      const style = getComputedStyle(element);
      const number = [...document.querySelectorAll("*")].indexOf(element);
      return { number, name: name.trim(), outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
    });
    assert.ok(seen.name.length > 0, `${seen.number} has no name`);
    assert.ok(seen.outline, `${seen.name} shows no focus`);
    reached.add(seen.number);
  }
  assert.equal(reached.size, controls);
  assert.ok(controls > 20, `${controls}`);
  assert.deepEqual(strange, []);
});

test("a page that lost its server says so, and one that drains too", async (t) => {
  const server = await serve("--limiter", "leaky-bucket", "--quota", "1 per 4s burst 1", "--queue", "4");
  t.after(server.stop);
  const { page, close } = await open(server.admin);
  t.after(close);
  await shows(page, "#status", "ready");
  const last = hammer(server.url, "--requests", "2", "--interval", "0s");
  await shows(page, "#waiting", "1");
  server.signal("SIGTERM");
  await shows(page, "#status", "draining");
  await last;
  await shows(page, "#status", "no answer");
  assert.ok(await page.locator("#lost").isVisible());
});
