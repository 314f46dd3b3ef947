// Clients of others, servers of others, and Tidegate between them; all ended with the test.

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client as ClientV1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as StdioV1 } from "@modelcontextprotocol/sdk/client/stdio.js";
import {
  CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";
import { Client as ClientV2 } from "@modelcontextprotocol/client";
import { StdioClientTransport as StdioV2 } from "@modelcontextprotocol/client/stdio";

const here = new URL(".", import.meta.url).pathname;
const tidegate = process.env.TIDEGATE ?? join(here, "../../target/debug/tidegate");
const published = (name) => join(here, "node_modules/@modelcontextprotocol", name, "dist/index.js");

const everything = [process.execPath, published("server-everything"), "stdio"];
export const filesystem = (folder) => [process.execPath, published("server-filesystem"), folder];
const modern = [process.execPath, join(here, "modern_server.mjs")];

/** Starts a server, and leaves in a folder which process it is, and each line that it hears. */
const WATCHED = 'echo $$ > "$0/pid"; exec "$@" < <(tee -a "$0/heard.jsonl")';

const INFO = { name: "tidegate-peer-tests", version: "1.0.0" };

/** What the v1 and the v2 SDK call differently. */
const v1 = {
  make: (capabilities) => new ClientV1(INFO, { capabilities }),
  Stdio: StdioV1,
  call: (client, params, options) => client.callTool(params, undefined, options),
  requests: {
    elicitation: ElicitRequestSchema, sampling: CreateMessageRequestSchema, roots: ListRootsRequestSchema,
  },
};
const v2 = (mode) => ({
  make: (capabilities) => new ClientV2(INFO, { capabilities, versionNegotiation: { mode } }),
  Stdio: StdioV2,
  call: (client, params, options) => client.callTool(params, options),
  requests: { elicitation: "elicitation/create", sampling: "sampling/createMessage", roots: "roots/list" },
});

/**
 * A client in an era of the protocol, and a server that speaks it. A row may add `answers`: what the client says when a
 * server asks it for something.
 */
export const PEERS = [
  { name: "sdk 1.32 (2025-11-25)", sdk: v1, server: everything, version: "2025-11-25" },
  { name: "client 2.4 (2025-11-25)", sdk: v2("legacy"), server: everything, version: "2025-11-25" },
  { name: "client 2.4 (2026-07-28)", sdk: v2({ pin: "2026-07-28" }), server: modern, version: "2026-07-28" },
];

/** One that tries 2026-07-28 first. */
export const FALLS_BACK = { ...PEERS[1], name: "client 2.4 (falls back to 2025-11-25)", sdk: v2("auto") };

/** A client that talks to `server` without anything between them; `received` are the messages that came to it. */
export async function direct(peer, server = peer.server) {
  return connect(peer, server);
}

/**
 * A client that talks to `server` through Tidegate, with these flags. Besides what `direct` has: the lines of `--log`,
 * what the server has heard, and its end.
 */
export async function proxied(peer, flags, server = peer.server) {
  const folder = await mkdtemp(join(tmpdir(), "tidegate-peers-"));
  const logged = ["--log", join(folder, "log.jsonl")];
  const watched = ["bash", "-c", WATCHED, folder, ...server];
  const connected = await connect(peer, [tidegate, "mcp", ...flags, ...logged, "--", ...watched]);
  const lines = async (file) => {
    const text = await readFile(join(folder, file), "utf8");
    return text.trimEnd().split("\n").map((line) => JSON.parse(line));
  };
  return {
    ...connected,
    log: () => lines("log.jsonl"),
    heard: () => lines("heard.jsonl"),
    kill: async () => process.kill(Number(await readFile(join(folder, "pid"), "utf8")), "SIGKILL"),
    close: async () => {
      await connected.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

async function connect({ sdk, answers = {} }, [command, ...args]) {
  const client = sdk.make(Object.fromEntries(Object.keys(answers).map((kind) => [kind, {}])));
  for (const [kind, answer] of Object.entries(answers)) client.setRequestHandler(sdk.requests[kind], answer);
  const closed = new Promise((resolve) => { client.onclose = resolve; });
  const transport = new sdk.Stdio({ command, args, stderr: "ignore" });
  await client.connect(transport);
  const received = [];
  const take = transport.onmessage;
  transport.onmessage = (message, extra) => {
    received.push(message);
    take(message, extra);
  };
  return {
    client, closed, received,
    call: (name, args, options) => sdk.call(client, { name, arguments: args }, options),
    close: () => client.close(),
  };
}
