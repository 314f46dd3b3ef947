// Clients of others, servers of others, and Tidegate between them; all ended with the test.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Client as ClientV1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as StdioV1 } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport as HttpV1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";
import { Client as ClientV2, StreamableHTTPClientTransport as HttpV2 } from "@modelcontextprotocol/client";
import { StdioClientTransport as StdioV2 } from "@modelcontextprotocol/client/stdio";
import { relay } from "./relay.mjs";

const here = new URL(".", import.meta.url).pathname;
const tidegate = process.env.TIDEGATE ?? join(here, "../../target/debug/tidegate");
const published = (name) => join(here, "node_modules/@modelcontextprotocol", name, "dist/index.js");

const everything = (transport) => [process.execPath, published("server-everything"), transport];
export const filesystem = (folder) => [process.execPath, published("server-filesystem"), folder];
const modern = (transport) => [process.execPath, join(here, "modern_server.mjs"), transport];

/** Starts a server, and leaves in a folder which process it is, and each line that it hears, with the time. */
const WATCHED = `echo $$ > "$0/pid"; exec "$@" < <(
  while IFS= read -r line; do
    printf '{"at":%s,"message":%s}\\n' "$EPOCHREALTIME" "$line" >> "$0/heard.jsonl"
    printf '%s\\n' "$line"
  done
)`;

const INFO = { name: "tidegate-peer-tests", version: "1.0.0" };

/** What the v1 and the v2 SDK call differently. */
const v1 = {
  make: (capabilities) => new ClientV1(INFO, { capabilities }),
  Stdio: StdioV1,
  Http: HttpV1,
  call: (client, params, options) => client.callTool(params, undefined, options),
  requests: {
    elicitation: ElicitRequestSchema, sampling: CreateMessageRequestSchema, roots: ListRootsRequestSchema,
  },
};
const v2 = (mode) => ({
  make: (capabilities) => new ClientV2(INFO, { capabilities, versionNegotiation: { mode } }),
  Stdio: StdioV2,
  Http: HttpV2,
  call: (client, params, options) => client.callTool(params, options),
  requests: { elicitation: "elicitation/create", sampling: "sampling/createMessage", roots: "roots/list" },
});

/**
 * A client in an era of the protocol, and a server that speaks it. A row may add `answers`: what the client says when a
 * server asks it for something. `over` is how they reach each other.
 */
export const PEERS = [
  { name: "sdk 1.32 (2025-11-25)", sdk: v1, server: everything("stdio"), version: "2025-11-25", over: "stdio" },
  { name: "client 2.4 (2025-11-25)", sdk: v2("legacy"), server: everything("stdio"), version: "2025-11-25", over: "stdio" },
  { name: "client 2.4 (2026-07-28)", sdk: v2({ pin: "2026-07-28" }), server: modern("stdio"), version: "2026-07-28", over: "stdio" },
];

/** One that tries 2026-07-28 first. */
export const FALLS_BACK = { ...PEERS[1], name: "client 2.4 (falls back to 2025-11-25)", sdk: v2("auto") };

/** The same peers over HTTP, at servers that they share until `end`. */
export async function overHttp() {
  const [legacy, newest] = await Promise.all([serving(everything("streamableHttp")), serving(modern("http"))]);
  const at = (peer) => ({ ...peer, over: "http", server: peer.version === "2026-07-28" ? newest.url : legacy.url });
  return {
    peers: PEERS.map(at),
    fallsBack: at(FALLS_BACK),
    end: () => [legacy, newest].forEach(({ child }) => child.kill("SIGKILL")),
  };
}

/** Starts a server that takes its port from the environment, since server-everything does not say which it found. */
async function serving([command, ...args]) {
  const free = createServer().listen(0, "127.0.0.1");
  await once(free, "listening");
  const { port } = free.address();
  free.close();
  const env = { ...process.env, PORT: String(port) };
  const child = spawn(command, args, { env, stdio: ["ignore", "ignore", "pipe"] });
  await said(child, /listening on port/);
  return { child, url: `http://127.0.0.1:${port}/mcp` };
}

/** Waits until a program says on stderr what is looked for. */
async function said(child, wanted) {
  const lines = [];
  for await (const line of createInterface({ input: child.stderr })) {
    lines.push(line);
    const match = wanted.exec(line);
    if (match) {
      child.stderr.resume();
      return match;
    }
  }
  throw new Error(`it ended: ${lines.join("\n")}`);
}

/** A client that talks to `server` without Tidegate between them; `received` are the messages that came to it. */
export async function direct(peer, server = peer.server) {
  if (peer.over === "stdio") return connect(peer, stdio(peer, server));
  const between = await relay(server);
  return beside(between, await connect(peer, http(peer, between.url)));
}

/**
 * A client that talks to `server` through Tidegate, with these flags. Besides what `direct` has: the lines of `--log`,
 * what the server has heard and when, and its end.
 */
export async function proxied(peer, flags, server = peer.server) {
  const folder = await mkdtemp(join(tmpdir(), "tidegate-peers-"));
  const lines = async (file) => {
    const text = await readFile(join(folder, file), "utf8");
    return text.trimEnd().split("\n").map((line) => JSON.parse(line));
  };
  const args = ["mcp", ...flags, "--log", join(folder, "log.jsonl")];
  const through = peer.over === "stdio" ? throughPipes : throughHttp;
  const connected = await through(peer, args, server, folder, lines);
  return {
    ...connected,
    log: () => lines("log.jsonl"),
    close: async () => {
      await connected.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

async function throughPipes(peer, args, server, folder, lines) {
  const watched = ["bash", "-c", WATCHED, folder, ...server];
  return {
    ...await connect(peer, stdio(peer, [tidegate, ...args, "--", ...watched])),
    heard: async () => (await lines("heard.jsonl")).map(({ at, message }) => ({ at: at * 1000, message })),
    kill: async () => process.kill(Number(await readFile(join(folder, "pid"), "utf8")), "SIGKILL"),
  };
}

async function throughHttp(peer, args, server) {
  const between = await relay(server);
  const http_args = ["--listen", "127.0.0.1:0", "--upstream", between.url];
  const child = spawn(tidegate, [...args, ...http_args], { stdio: ["ignore", "ignore", "pipe"] });
  const ended = once(child, "exit");
  const [, address] = await said(child, /listening on (\S+)/);
  const end = async () => {
    child.kill();
    await ended;
  };
  try {
    const connected = beside(between, await connect(peer, http(peer, `${address}/mcp`)));
    return {
      ...connected,
      /** One more client of the same proxy. */
      another: () => connect(peer, http(peer, `${address}/mcp`)),
      close: async () => {
        await connected.client.close();
        await end();
        between.kill();
      },
    };
  } catch (error) {
    await end();
    between.kill();
    throw error;
  }
}

/** What a relay adds to a connection. */
function beside(between, connected) {
  const { cut, kill, restart } = between;
  const close = async () => {
    await connected.close();
    kill();
  };
  return { ...connected, close, heard: async () => between.heard, cut, kill, restart };
}

const stdio = ({ sdk }, [command, ...args]) => new sdk.Stdio({ command, args, stderr: "ignore" });
const http = ({ sdk }, url) => new sdk.Http(new URL(url));

async function connect({ sdk, answers = {} }, transport) {
  const client = sdk.make(Object.fromEntries(Object.keys(answers).map((kind) => [kind, {}])));
  for (const [kind, answer] of Object.entries(answers)) client.setRequestHandler(sdk.requests[kind], answer);
  const closed = new Promise((resolve) => { client.onclose = resolve; });
  await client.connect(transport);
  const received = [];
  const take = transport.onmessage;
  transport.onmessage = (message, extra) => {
    received.push(message);
    take(message, extra);
  };
  return {
    client, closed, received, transport,
    call: (name, args, options) => sdk.call(client, { name, arguments: args }, options),
    close: () => client.close(),
  };
}
