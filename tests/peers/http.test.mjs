// Tool calls over HTTP.

import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { direct, overHttp, proxied } from "./harness.mjs";
import { ROWS, SLOW, textOf, using } from "./rows.mjs";

const { peers, fallsBack, end } = await overHttp();
after(end);

const OF_HTTP = {
  "calls that wait while the server goes are told, and it is used again when it is back": (peer) =>
    using(proxied(peer, ["--limit", "1 per 3s"]), async ({ call, kill, restart, log }) => {
      let waiting = 0;
      let tell;
      const two_wait = new Promise((resolve) => { tell = resolve; });
      const onprogress = () => {
        waiting += 1;
        if (waiting === 2) tell();
      };
      const calls = ["one", "two", "three"].map((message) => call("echo", { message }, { onprogress }));
      const ended = Promise.allSettled(calls);
      await Promise.all([two_wait, Promise.any(calls)]);
      kill();
      const reasons = (await ended).flatMap(({ reason }) => reason ?? []);
      assert.deepEqual(reasons.map(({ data }) => data), [{ httpStatus: 502 }, { httpStatus: 502 }]);
      await restart();
      assert.equal(textOf(await call("echo", { message: "anew" })), "Echo: anew");
      assert.deepEqual((await log()).map((line) => line.decision), Array(4).fill("allowed"));
    }),

  "a server that is not there is told, and the client goes on when it is": (peer) =>
    using(proxied(peer, ["--limit", "100/s"]), async ({ call, kill, restart }) => {
      kill();
      await assert.rejects(call("echo", { message: "to nobody" }), /502|Bad Gateway|cannot be reached/);
      await restart();
      assert.equal(textOf(await call("echo", { message: "anew" })), "Echo: anew");
    }),

  "a call whose connection breaks ends as it does without Tidegate, whether it had to wait or not": async (peer) => {
    const ended = async (connecting) => using(connecting, async ({ call, cut }) => {
      await call("echo", { message: "first" });
      let tell;
      const runs = new Promise((resolve) => { tell = resolve; });
      const onprogress = ({ total }) => total && tell();
      // A client asks again after 1 s, and of what server-everything says after that nothing comes.
      const duration = peer.version === "2025-11-25" ? 0.4 : 4;
      const result = call(SLOW, { duration, steps: 4 }, { onprogress, timeout: 5000 });
      await runs;
      cut();
      return result.then(textOf, (error) => `${error}`);
    });
    const flags = [["--limit", "100/s"], ["--limit", "1 per 2s"]];
    const all = [direct(peer), ...flags.map((flags) => proxied(peer, flags))].map(ended);
    const [expected, ...seen] = await Promise.all(all);
    assert.deepEqual(seen, [expected, expected]);
    if (peer.version === "2025-11-25") assert.match(expected, /completed/, "it is resumed");
  },

  "clients of one proxy share its limits, and each has its own answers": (peer) =>
    using(proxied(peer, ["--limit", "3 per 1h"]), async (one) =>
      using(one.another(), async (other) => {
        const calls = [one, other, one, other].map(({ call }, i) => call("echo", { message: `call ${i}` }));
        const texts = (await Promise.all(calls)).map(textOf);
        assert.equal(texts.filter((text) => /Not executed/.test(text)).length, 1, `${texts}`);
        texts.forEach((text, i) => assert.ok(text === `Echo: call ${i}` || /Not executed/.test(text), text));
        const sessions = (await one.heard()).filter(({ message }) => message?.method === "tools/call")
          .map(({ headers }) => headers["mcp-session-id"]);
        assert.equal(new Set(sessions).size, peer.version === "2025-11-25" ? 2 : 1);
      })),
};

/** Of the era that has sessions. */
const OF_SESSIONS = {
  "a session is ended by its client, and is over then": async (peer) => {
    const after = [];
    for (const connecting of [direct(peer), proxied(peer, ["--limit", "100/s"])]) {
      await using(connecting, async ({ call, transport, heard }) => {
        await call("echo", { message: "first" });
        const { sessionId } = transport;
        assert.ok(sessionId);
        await transport.terminateSession();
        const ended = (await heard()).filter(({ http }) => http === "DELETE");
        assert.deepEqual(ended.map(({ headers, status }) => [headers["mcp-session-id"], status]), [[sessionId, 200]]);
        after.push(await call("echo", { message: "afterwards" }).catch((error) => `${error}`));
      });
    }
    assert.match(after[0], /Bad Request/);
    assert.equal(after[1], after[0]);
  },

  "notifications come by the stream that a client listens to": (peer) =>
    using(proxied(peer, ["--limit", "100/s"]), async ({ call, received, heard }) => {
      await call("toggle-simulated-logging", {});
      const start = performance.now();
      while (!received.some(({ method }) => method === "notifications/message")) {
        assert.ok(performance.now() - start < 15_000, JSON.stringify(received));
        await new Promise((resolve) => { setTimeout(resolve, 20); });
      }
      const listening = (await heard()).filter(({ http }) => http === "GET");
      assert.deepEqual(listening.map(({ status }) => status), [200]);
      await call("toggle-simulated-logging", {});
    }),
};

describe("over HTTP", { concurrency: 3 }, () => {
  for (const peer of peers) {
    const rows = { ...ROWS, ...OF_HTTP, ...(peer.version === "2025-11-25" ? OF_SESSIONS : {}) };
    describe(peer.name, { concurrency: 4 }, () => Object.entries(rows).forEach(([name, row]) => {
      test(name, { timeout: 60_000 }, () => row(peer));
    }));
  }

  test(`${fallsBack.name}: a client sees what it sees without Tidegate`, { timeout: 60_000 }, () =>
    ROWS["a client sees what it sees without Tidegate"](fallsBack));
});
