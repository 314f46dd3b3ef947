// A server, hammers and a browser, all on this machine and all ended with the test.

import { execFile, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

const root = new URL("../..", import.meta.url).pathname;
const tidegate = process.env.TIDEGATE ?? join(root, "target/debug/tidegate");
const browser = process.env.CHROMIUM ?? "/usr/bin/chromium";
export const pictures = join(root, "target/page");

const QUIET = [
  "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-default-apps", "--no-default-browser-check",
];

/** A `tidegate serve` with an admin address. */
export async function serve(...args) {
  const child = spawn(tidegate, ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", ...args], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const line = async (begin) => {
    const { value } = await lines.next();
    if (!value?.startsWith(begin)) throw new Error(`expected ${begin}, got ${value}`);
    return value.slice(begin.length);
  };
  const url = await line("listening on ");
  await line("");
  const admin = await line("admin on ");
  const ended = new Promise((resolve) => child.once("exit", resolve));
  return {
    url, admin,
    signal: (name) => child.kill(name),
    stop: async () => {
      child.kill("SIGKILL");
      await ended;
    },
  };
}

/** Runs a hammer, and says what it counted. That it is not alone at its limits is a verdict of 1, and no matter here. */
export async function hammer(url, ...args) {
  const run = promisify(execFile)(tidegate, ["hammer", `${url}/`, "--json", ...args]);
  const { stdout } = await run.catch((fault) => {
    if (fault.code === 1) return fault;
    throw fault;
  });
  return JSON.parse(stdout);
}

/** A browser without a past, and a page of which everything strange is written down. */
export async function open(admin, options = {}) {
  const folder = await mkdtemp(join(tmpdir(), "tidegate-page-"));
  const context = await chromium.launchPersistentContext(folder, {
    executablePath: browser, headless: true, chromiumSandbox: false, args: QUIET,
    viewport: { width: 1280, height: 900 }, ...options,
  });
  const page = context.pages()[0] ?? (await context.newPage());
  const strange = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && strange.push(message.text()));
  page.on("pageerror", (error) => strange.push(`${error}`));
  page.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (protocol !== "data:" && origin !== admin) strange.push(`a request to ${request.url()}`);
  });
  await page.goto(`${admin}/`);
  return {
    page, strange,
    close: async () => {
      await context.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** The number that an element shows. */
export async function number(page, selector) {
  return Number((await page.locator(selector).innerText()).replaceAll(",", ""));
}
