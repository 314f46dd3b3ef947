// Tool calls through Tidegate, as the SDKs of MCP see them: each row runs for each client, in each era of the protocol.

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { direct, FALLS_BACK, filesystem, PEERS, proxied } from "./harness.mjs";

const SLOW = "trigger-long-running-operation";

/** How exact the times of the log are, in milliseconds: waits and durations are rounded to a microsecond. */
const PRECISION = 0.005;

/** Runs `check` with a connection, and ends it. */
async function using(connecting, check) {
  const connection = await connecting;
  try {
    return await check(connection);
  } finally {
    await connection.close();
  }
}

const textOf = (result) => result.content.map((part) => part.text).join("\n");

/** All that a client sees of a server, and what it gets for good and bad calls; last, the answers as they came. */
async function transcript({ client, call, received }, calls) {
  const seen = [client.getServerVersion(), client.getServerCapabilities(), client.getInstructions()];
  seen.push(await client.listTools());
  for (const [name, args] of calls) {
    seen.push(await call(name, args).catch((error) => `${error.name} ${error.code}: ${error.message}`));
  }
  return [...seen, received.filter((message) => message.id !== undefined)];
}

const PACED = ["--limit", "20/s", "--burst", "3", "--max-in-flight", "4"];
const CALLS = [
  ["echo", { message: "höchste Zeit\n\u2028" }], ["get-sum", { a: 1, b: 2.5 }], [SLOW, { duration: 0.01, steps: 2 }],
  ["echo", { wrong: 1 }], ["no-such-tool", {}],
];

/** Milliseconds since 1970, with all digits of `time`. */
function milliseconds(time) {
  return Date.parse(`${time.slice(0, 19)}Z`) + 1000 * Number(`0${time.slice(19, -1)}`);
}

/** From when to when each call of the log ran, in milliseconds since 1970, in the order of their starts. */
function runs(log) {
  const run = ({ time, wait_ms, duration_ms }) => {
    const start = milliseconds(time) + wait_ms;
    return { start, end: start + duration_ms };
  };
  return log.map(run).sort((a, b) => a.start - b.start);
}

const ROWS = {
  "a client sees what it sees without Tidegate": async (peer) => {
    const seen = [];
    for (const connecting of [direct(peer), proxied(peer, []), proxied(peer, ["--limit", "100/s"])]) {
      await using(connecting, async (connection) => {
        seen.push(await transcript(connection, CALLS));
        // v1 does not tell.
        const version = connection.client.getNegotiatedProtocolVersion?.();
        if (version) assert.equal(version, peer.version);
      });
    }
    assert.ok(seen[0][3].tools.length >= 6, "it lists its tools");
    assert.match(textOf(seen[0][4]), /höchste Zeit/);
    assert.deepEqual(seen[1], seen[0], "without limits");
    assert.deepEqual(seen[2], seen[0], "with a limit");
  },

  "twenty calls at once are all answered, each with its own answer, and start as the limits say": (peer) =>
    using(proxied(peer, PACED), async ({ client, call, log }) => {
      await client.listTools();
      // Each third takes so long that the places in flight are what they wait for.
      const durations = Array.from({ length: 20 }, (_, i) => (i % 3 === 0 ? 0.4 + i / 1000 : null));
      const results = await Promise.all(durations.map((duration, i) => duration === null
        ? call("echo", { message: `call ${i}` }) : call(SLOW, { duration, steps: 1 })));
      results.forEach((result, i) => assert.equal(textOf(result), durations[i] === null ? `Echo: call ${i}`
        : `Long running operation completed. Duration: ${durations[i]} seconds, Steps: 1.`));

      const lines = await log();
      assert.deepEqual(lines.map((line) => line.decision), Array(20).fill("allowed"));
      const all = runs(lines);
      // Within a span there are no more starts than the burst and what the rate gives for it.
      all.forEach((last, j) => all.slice(0, j + 1).forEach((first, i) => {
        const span = last.start - first.start;
        assert.ok(j - i + 1 <= 3 + (20 * (span + PRECISION)) / 1000, `${j - i + 1} calls in ${span} ms`);
      }));
      const together = all.map(({ start }) =>
        all.filter((other) => other.start <= start && start + PRECISION < other.end).length);
      assert.equal(Math.max(...together), 4, `${together}`);
    }),

  "a call that is cancelled while it waits never reaches the server": (peer) =>
    using(proxied(peer, ["--limit", "1 per 3s"]), async ({ call, log, heard }) => {
      const first = call("echo", { message: "first" });
      const cancelling = new AbortController();
      // That it is told of its wait says that it waits.
      const waiting = call("echo", { message: "unwanted" }, {
        signal: cancelling.signal, onprogress: () => cancelling.abort("enough"),
      });
      await assert.rejects(waiting, /enough|abort/i);
      await first;
      assert.equal(textOf(await call("echo", { message: "third" })), "Echo: third");

      const lines = await log();
      assert.deepEqual(lines.map((line) => line.decision).sort(), ["allowed", "allowed", "cancelled"]);
      assert.ok(lines.every((line) => line.wait_ms <= 3000), "the cancelled call took no token");
      const told = await heard();
      const called = told.filter(({ method }) => method === "tools/call");
      assert.deepEqual(called.map(({ params }) => params.arguments.message), ["first", "third"]);
      assert.ok(told.every(({ method }) => method !== "notifications/cancelled"));
    }),

  "a call that waits is told so, and what the server tells afterwards is more": (peer) =>
    using(proxied(peer, ["--limit", "1 per 2s"]), async ({ call, received }) => {
      const told = [];
      const [, result] = await Promise.all([
        call("echo", { message: "first" }),
        call(SLOW, { duration: 0.2, steps: 2 }, { onprogress: (progress) => told.push(progress) }),
      ]);
      assert.match(textOf(result), /completed/);
      const all = [
        { progress: 0.001, message: "waiting for a rate limit, 1 s so far" },
        { progress: 1, total: 2 },
        { progress: 2, total: 2 },
      ];
      const came = received.filter(({ method }) => method === "notifications/progress").map(({ params }) => params);
      assert.deepEqual(came.map(({ progressToken, ...progress }) => progress), all);
      assert.equal(new Set(came.map(({ progressToken }) => progressToken)).size, 1);
      // Both SDKs keep back what they read together with the result.
      assert.ok(told.length > 0);
      assert.deepEqual(told, all.slice(0, told.length));
    }),

  "a refusal reaches the model with the seconds, and programs with _meta": (peer) =>
    using(proxied(peer, ["--limit", "1 per 1h"]), async ({ client, call }) => {
      const { tools } = await client.listTools();
      await call("echo", { message: "first" });
      // One whose results have a schema as well, which a client would check.
      const structured = tools.find((tool) => tool.outputSchema)?.name;
      for (const name of ["echo", ...(structured ? [structured] : [])]) {
        const refused = await call(name, { message: "second", location: "New York" });
        assert.equal(refused.isError, true);
        const words = new RegExp(`Rate limit reached for tool ${name} .*Not executed\\. Retry after 3600 s`);
        assert.match(textOf(refused), words);
        const { retryAfterMs, ...told } = refused._meta["io.github.tidegate/rateLimit"];
        assert.deepEqual(told, { executed: false, limit: "all-tools", reason: "rate", waitedMs: 0 });
        assert.ok(retryAfterMs > 3_590_000 && retryAfterMs <= 3_600_000, `${retryAfterMs}`);
      }
      assert.deepEqual((await client.listTools()).tools, tools, "the connection is usable");
    }),

  "a call that costs more than the capacity is told that waiting cannot help": (peer) =>
    using(proxied(peer, ["--limit", "10/s", "--burst", "2", "--cost", "echo=3"]), async ({ call, log }) => {
      const refused = await call("echo", { message: "too dear" });
      assert.equal(refused.isError, true);
      assert.match(textOf(refused), /^Not executed: tool echo costs 3, .* more than 2 at once\. Waiting cannot help/);
      const { capacity, reason, retryAfterMs } = refused._meta["io.github.tidegate/rateLimit"];
      assert.deepEqual({ capacity, reason, retryAfterMs }, { capacity: 2, reason: "never", retryAfterMs: null });
      assert.match(textOf(await call("get-sum", { a: 1, b: 2 })), /3/, "others are not touched");
      assert.deepEqual((await log()).map((line) => line.decision), ["never", "allowed"]);
    }),

  "calls that wait and run fail when the server dies, and the client can start anew": async (peer) => {
    await using(proxied(peer, ["--limit", "1 per 5s"]), async ({ call, closed, kill, log }) => {
      const calls = [call(SLOW, { duration: 60, steps: 1 })];
      const told = ["second", "third"].map((message) => new Promise((onprogress) => {
        calls.push(call("echo", { message }, { onprogress }));
      }));
      const ended = Promise.allSettled(calls);
      await Promise.all(told);
      await kill();
      const [running, ...waiting] = await ended;
      assert.match(`${running.reason}`, /closed/i);
      for (const { reason } of waiting) {
        assert.match(`${reason}`, /the MCP server ended before the call of tool echo started; not executed/);
        assert.deepEqual(reason.data, { executed: false });
      }
      await closed;
      assert.deepEqual((await log()).map((line) => line.decision), ["unserved", "unserved", "allowed"]);
    });
    await using(proxied(peer, ["--limit", "1 per 5s"]), async ({ call }) => {
      assert.equal(textOf(await call("echo", { message: "anew" })), "Echo: anew");
    });
  },

  "what the server asks the client passes both ways, and costs nothing": (peer) => {
    let connection;
    const answers = {
      roots: async () => ({ roots: [{ uri: "file:///harbour", name: "harbour" }] }),
      sampling: async () => ({ model: "none", role: "assistant", content: { type: "text", text: "ebb and flow" } }),
      // The client may call a tool to find its answer, while the other call goes on.
      elicitation: async () => {
        const sum = await connection.call("get-sum", { a: 40, b: 2 });
        return { action: "accept", content: { name: textOf(sum) } };
      },
    };
    const flags = ["--limit", "4 per 1h", "--max-in-flight", "2"];
    return using(proxied({ ...peer, answers }, flags), async ({ call }) => {
      connection = { call };
      assert.match(textOf(await call("get-roots-list", {})), /file:\/\/\/harbour/);
      assert.match(textOf(await call("trigger-sampling-request", { prompt: "tides?" })), /ebb and flow/);
      assert.match(textOf(await call("trigger-elicitation-request", {})), /The sum of 40 and 2 is 42/);
      assert.match(textOf(await call("echo", { message: "fifth" })), /Not executed/, "each call took one token");
    });
  },
};

const row = (name, peer) => test(name, { timeout: 30_000 }, () => ROWS[name](peer));

for (const peer of PEERS) {
  describe(peer.name, { concurrency: 4 }, () => Object.keys(ROWS).forEach((name) => row(name, peer)));
}

describe(FALLS_BACK.name, () => row("a client sees what it sees without Tidegate", FALLS_BACK));

describe("files and folders of server-filesystem are read as without Tidegate", { concurrency: 4 }, () => {
  for (const peer of [...PEERS.filter(({ version }) => version === "2025-11-25"), FALLS_BACK]) {
    test(peer.name, { timeout: 30_000 }, async () => {
      const folder = await mkdtemp(join(tmpdir(), "tidegate-files-"));
      try {
        await writeFile(join(folder, "tide.txt"), "high water 06:12\n");
        await writeFile(join(folder, "long.txt"), "ebb und flöße\u2028\n".repeat(100_000));
        const calls = [
          ["list_directory", { path: folder }], ["read_text_file", { path: join(folder, "tide.txt") }],
          ["read_text_file", { path: join(folder, "long.txt") }], ["read_text_file", { path: "/etc/hostname" }],
        ];
        const server = filesystem(folder);
        const seen = [];
        for (const connecting of [direct(peer, server), proxied(peer, ["--limit", "20/s", "--burst", "1"], server)]) {
          await using(connecting, async (connection) => seen.push(await transcript(connection, calls)));
        }
        const [listed, read, long, denied] = seen[0].slice(4, -1).map(textOf);
        assert.match(listed, /tide\.txt/);
        assert.equal(read, "high water 06:12\n");
        assert.ok(long.length > 1_000_000);
        assert.match(denied, /denied/);
        assert.deepEqual(seen[1], seen[0]);
      } finally {
        await rm(folder, { recursive: true });
      }
    });
  }
});
