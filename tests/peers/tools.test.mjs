// Tool calls over standard input and output.

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { direct, FALLS_BACK, filesystem, PEERS, proxied } from "./harness.mjs";
import { ROWS, SLOW, textOf, transcript, using } from "./rows.mjs";

const OF_PIPES = {
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
};

const row = (name, peer) => test(name, { timeout: 60_000 }, () => (ROWS[name] ?? OF_PIPES[name])(peer));

for (const peer of PEERS) {
  describe(peer.name, { concurrency: 6 }, () => Object.keys({ ...ROWS, ...OF_PIPES }).forEach((name) => row(name, peer)));
}

describe(FALLS_BACK.name, () => row("a client sees what it sees without Tidegate", FALLS_BACK));

describe("files and folders of server-filesystem are read as without Tidegate", { concurrency: 4 }, () => {
  for (const peer of [...PEERS.filter(({ version }) => version === "2025-11-25"), FALLS_BACK]) {
    test(peer.name, { timeout: 60_000 }, async () => {
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
