// Tool calls through Tidegate, as the SDKs of MCP see them: each row runs for each client, in each era of the protocol,
// over standard input and output (`tools.test.mjs`) and over HTTP (`http.test.mjs`).

import assert from "node:assert/strict";
import { direct, proxied } from "./harness.mjs";

export const SLOW = "trigger-long-running-operation";

/** How exact the times of the log are, in milliseconds: waits and durations are rounded to a microsecond. */
const PRECISION = 0.005;

/** Runs `check` with a connection, and ends it. */
export async function using(connecting, check) {
  const connection = await connecting;
  try {
    return await check(connection);
  } finally {
    await connection.close();
  }
}

export const textOf = (result) => result.content.map((part) => part.text).join("\n");

/** All that a client sees of a server, and what it gets for good and bad calls; last, the answers as they came. */
export async function transcript({ client, call, received }, calls) {
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

/** How much later than it was sent a message may be seen on a machine that has other work, in milliseconds. */
const LATE = 100;

/** Within a span there are no more starts than the burst and what the rate gives for it, as `PACED` says. */
function keepTo(starts, inexact) {
  starts.forEach((last, j) => starts.slice(0, j + 1).forEach((first, i) => {
    const span = last - first;
    assert.ok(j - i + 1 <= 3 + (20 * (span + inexact)) / 1000, `${j - i + 1} calls in ${span} ms`);
  }));
}

export const ROWS = {
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
    using(proxied(peer, PACED), async ({ client, call, log, heard }) => {
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
      keepTo(all.map(({ start }) => start), PRECISION);
      const together = all.map(({ start }) =>
        all.filter((other) => other.start <= start && start + PRECISION < other.end).length);
      assert.equal(Math.max(...together), 4, `${together}`);

      // The server agrees.
      const came = (await heard()).filter(({ message }) => message?.method === "tools/call");
      assert.equal(came.length, 20);
      keepTo(came.map(({ at }) => at), LATE);
      if (peer.over === "stdio") return;
      const at_server = came.map(({ at }) => came.filter((other) => other.at <= at && at < other.answered).length);
      assert.ok(Math.max(...at_server) <= 4, `${at_server}`);
    }),

  "a call that is cancelled while it waits never reaches the server": (peer) =>
    using(proxied(peer, ["--limit", "1 per 3s"]), async ({ call, log, heard }) => {
      // Over HTTP either may come first. The one that is told of its wait waits.
      const results = await Promise.allSettled(["one", "two"].map((message) => {
        const cancelling = new AbortController();
        const onprogress = () => cancelling.abort("enough");
        return call("echo", { message }, { signal: cancelling.signal, onprogress });
      }));
      const [wanted] = results.flatMap(({ value }) => value ?? []);
      const [reason] = results.flatMap(({ reason }) => reason ?? []);
      assert.match(`${reason}`, /enough|abort/i);
      assert.equal(textOf(await call("echo", { message: "third" })), "Echo: third");

      const lines = await log();
      assert.deepEqual(lines.map((line) => line.decision).sort(), ["allowed", "allowed", "cancelled"]);
      assert.ok(lines.every((line) => line.wait_ms <= 3000), "the cancelled call took no token");
      const told = (await heard()).flatMap(({ message }) => message ?? []);
      const called = told.filter(({ method }) => method === "tools/call");
      const messages = called.map(({ params }) => `Echo: ${params.arguments.message}`);
      assert.deepEqual(messages, [textOf(wanted), "Echo: third"]);
      assert.ok(told.every(({ method }) => method !== "notifications/cancelled"));
    }),

  "a call that is cancelled while it runs is cancelled at the server, and its place comes free": (peer) =>
    using(proxied(peer, ["--max-in-flight", "1"]), async ({ call, log, heard }) => {
      const cancelling = new AbortController();
      // That the server tells of it says that it runs.
      const running = call(SLOW, { duration: 8, steps: 80 }, {
        signal: cancelling.signal, onprogress: () => cancelling.abort("enough"),
      });
      await assert.rejects(running, /enough|abort/i);
      assert.equal(textOf(await call("echo", { message: "next" })), "Echo: next");

      const lines = await log();
      assert.deepEqual(lines.map(({ tool, decision }) => [tool, decision]), [[SLOW, "allowed"], ["echo", "allowed"]]);
      assert.ok(lines[1].wait_ms < 6000, `${lines[1].wait_ms} ms, and the grace is 5 s`);
      const told = await heard();
      const [cancelled] = told.filter(({ message }) => message?.method === "tools/call");
      if (peer.over === "http" && peer.version === "2026-07-28") {
        assert.ok(cancelled.gone, "in this era the end of its stream is what cancels a call");
      } else {
        const ids = told.filter(({ message }) => message?.method === "notifications/cancelled")
          .map(({ message }) => message.params.requestId);
        assert.deepEqual(ids, [cancelled.message.id]);
      }
    }),

  "a call that waits is told so, and what the server tells afterwards is more": (peer) =>
    using(proxied(peer, ["--limit", "1 per 2s"]), async ({ call, received }) => {
      const told = [[], []];
      const results = await Promise.all(told.map((told) =>
        call(SLOW, { duration: 0.2, steps: 2 }, { onprogress: (progress) => told.push(progress) })));
      results.forEach((result) => assert.match(textOf(result), /completed/));
      const ran = [{ progress: 1, total: 2 }, { progress: 2, total: 2 }];
      const waited = [{ progress: 0.001, message: "waiting for a rate limit, 1 s so far" }, ...ran];
      const came = received.filter(({ method }) => method === "notifications/progress").map(({ params }) => params);
      const tokens = [...new Set(came.map(({ progressToken }) => progressToken))];
      const of = (token) => came.filter(({ progressToken }) => progressToken === token)
        .map(({ progressToken, ...progress }) => progress);
      const [one, other] = tokens.map(of).sort((a, b) => a.length - b.length);
      assert.deepEqual([one, other], [ran, waited]);
      // Both SDKs keep back what they read together with the result.
      const [of_one, of_other] = told.sort((a, b) => a.length - b.length);
      assert.ok(of_other.length > 0);
      assert.deepEqual(of_one, ran.slice(0, of_one.length));
      assert.deepEqual(of_other, waited.slice(0, of_other.length));
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
        const words = new RegExp(`Rate limit reached for tool ${name} .*Not executed\\. Retry after 3[56]\\d\\d s`);
        assert.match(textOf(refused), words);
        const { retryAfterMs, ...told } = refused._meta["io.github.tidegate/rateLimit"];
        assert.deepEqual(told, { executed: false, limit: "all-tools", reason: "rate", waitedMs: 0 });
        assert.ok(retryAfterMs > 3_500_000 && retryAfterMs <= 3_600_000, `${retryAfterMs}`);
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
    // Over HTTP a call that goes on is charged again, as a stranger could say so.
    const tokens = peer.over === "http" && peer.version === "2026-07-28" ? 4 + 3 : 4;
    const flags = ["--limit", `${tokens} per 1h`, "--max-in-flight", "2"];
    return using(proxied({ ...peer, answers }, flags), async ({ call, heard }) => {
      connection = { call };
      // A server drops what it asks while its client does not listen yet, and then waits for an answer for a minute.
      if (peer.over === "http" && peer.version === "2025-11-25") {
        const start = performance.now();
        while (!(await heard()).some(({ http, status }) => http === "GET" && status === 200)) {
          assert.ok(performance.now() - start < 15_000, "the client does not listen");
          await new Promise((resolve) => { setTimeout(resolve, 20); });
        }
      }
      assert.match(textOf(await call("get-roots-list", {})), /file:\/\/\/harbour/);
      assert.match(textOf(await call("trigger-sampling-request", { prompt: "tides?" })), /ebb and flow/);
      assert.match(textOf(await call("trigger-elicitation-request", {})), /The sum of 40 and 2 is 42/);
      assert.match(textOf(await call("echo", { message: "one more" })), /Not executed/, "each call took one token");
    });
  },
};
