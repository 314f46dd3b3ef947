// `tidegate serve --resp` and a Redis client of npm.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, test } from "node:test";
import { Redis } from "ioredis";

const here = new URL(".", import.meta.url).pathname;
const tidegate = process.env.TIDEGATE ?? join(here, "../../target/debug/tidegate");
const CALL = ["CL.THROTTLE", "user123", 15, 30, 60];

/** A server, and the port at which it speaks RESP. */
async function serve(...flags) {
  const args = ["serve", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", ...flags];
  const server = spawn(tidegate, args, { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: server.stdout })) {
    const [, port] = line.match(/^resp on .*:(\d+)$/) ?? [];
    if (port) return { server, port: Number(port) };
  }
  throw new Error("it does not say where it speaks RESP");
}

describe("ioredis 6.0", () => {
  let server, port, client;
  before(async () => {
    ({ server, port } = await serve());
    client = new Redis({ port, connectionName: "harbour" });
  });
  after(() => {
    client.disconnect();
    server.kill();
  });

  test("it connects with its checks, and a call is decided: five integers", async () => {
    await once(client, "ready");
    assert.deepEqual(await client.call(...CALL), [0, 16, 15, -1, 2]);
    assert.deepEqual((await client.call(...CALL, 16)).slice(0, 4), [1, 16, 15, 2]);
    assert.equal(await client.client("GETNAME"), "harbour");
    assert.match(await client.info(), /server_name:tidegate/);
  });

  test("calls in a pipeline are decided in order, and an error stays with its call", async () => {
    const pipeline = client.pipeline();
    [1, 2, "x", 0].forEach((quantity) => pipeline.call("CL.THROTTLE", Buffer.from([0, 13, 10, 255]), 99, 1, 3600, quantity));
    const answers = await pipeline.ping().exec();
    assert.deepEqual(answers.map(([, answer]) => answer?.[2] ?? null), [99, 97, null, 97, "N"]);
    assert.match(`${answers[2][0]}`, /ERR quantity is not an integer/);
  });

  test("a hundred calls at once are allowed the burst and no more", async () => {
    const calls = Array.from({ length: 100 }, () => client.call("CL.THROTTLE", "together", 39, 1, 3600));
    assert.equal((await Promise.all(calls)).filter(([rejected]) => rejected === 0).length, 40);
  });

  test("the password is asked for", async () => {
    const folder = await mkdtemp(join(tmpdir(), "tidegate-resp-"));
    await writeFile(join(folder, "password"), "high water\n");
    const { server, port } = await serve("--resp-password-file", join(folder, "password"));
    const options = { port, lazyConnect: true, retryStrategy: () => null };
    const trusted = new Redis({ ...options, password: "high water" });
    const stranger = new Redis({ ...options, password: "low water" });
    stranger.on("error", () => {});
    try {
      assert.equal((await trusted.call(...CALL))[0], 0);
      await assert.rejects(stranger.call(...CALL), /WRONGPASS|NOAUTH|closed/i);
    } finally {
      trusted.disconnect();
      stranger.disconnect();
      server.kill();
      await rm(folder, { recursive: true });
    }
  });
});
