// A server, hammers and a browser, all on this machine and all ended with the test.

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { connect as connectHttp2 } from "node:http2";
import { connect } from "node:net";
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
  const beside = async (name) => {
    if (!args.includes(`--${name}`)) return null;
    const address = await line(`${name} on `);
    await line("");
    return address;
  };
  const [resp, grpc] = [await beside("resp"), await beside("grpc")];
  const ended = new Promise((resolve) => child.once("exit", resolve));
  return {
    url, admin, resp, grpc,
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

/** A Redis client: what is answered to lines, one after the other. */
export async function redis(address) {
  const [host, port] = address.split(":");
  const socket = connect({ host, port: Number(port) });
  await once(socket, "connect");
  const answers = createInterface({ input: socket })[Symbol.asyncIterator]();
  const next = async () => (await answers.next()).value;
  return {
    ask: async (line) => {
      socket.write(`${line}\r\n`);
      const answer = [await next()];
      if (answer[0].startsWith("*")) for (let left = Number(answer[0].slice(1)); left > 0; left -= 1) answer.push(await next());
      return answer;
    },
    close: () => socket.destroy(),
  };
}

/** An Envoy that asks about a descriptor of one entry: the overall code of each answer, 1 for OK and 2 for OVER_LIMIT. */
export async function envoy(address) {
  const client = connectHttp2(`http://${address}`);
  await once(client, "connect");
  const field = (number, bytes) => Buffer.concat([Buffer.from([(number << 3) | 2, bytes.length]), bytes]);
  const text = (number, text) => field(number, Buffer.from(text));
  return {
    ask: async (domain, key, value) => {
      const entry = Buffer.concat([text(1, key), text(2, value)]);
      const message = Buffer.concat([text(1, domain), field(2, field(1, entry))]);
      const request = client.request({
        ":method": "POST", ":path": "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        "content-type": "application/grpc", te: "trailers",
      });
      request.end(Buffer.concat([Buffer.from([0, 0, 0, 0, message.length]), message]));
      const parts = [];
      for await (const part of request) parts.push(part);
      // Five bytes of a frame, and then the first field.
      return Buffer.concat(parts)[6];
    },
    close: () => client.destroy(),
  };
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
