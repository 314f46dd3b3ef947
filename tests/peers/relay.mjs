// What stands between Tidegate and a server over HTTP in the tests: it writes down when each request came and what became
// of it, and it can break connections, or be gone, as a server that crashed.
//
// As a program: relay.mjs URL FILE, with the port in PORT (0 is a free one). It says its address, and appends to FILE
// what it heard as it comes.

import { appendFileSync } from "node:fs";
import { createServer, request as ask } from "node:http";
import { once } from "node:events";
import { pipeline } from "node:stream";
import { fileURLToPath } from "node:url";

const now = () => performance.timeOrigin + performance.now();

/** A relay to the server at `url`, which tells `hear` each request when it came whole. */
export async function relay(url, hear = () => {}, port = 0) {
  const heard = [];
  const server = createServer((request, response) => {
    const pieces = [];
    request.on("data", (piece) => pieces.push(piece));
    request.on("end", () => {
      const body = Buffer.concat(pieces);
      const entry = { at: now(), http: request.method, headers: request.headers };
      if (body.length > 0) entry.message = JSON.parse(body);
      heard.push(entry);
      hear(entry);
      const headers = { ...request.headers, host: new URL(url).host };
      const onward = ask(url, { method: request.method, headers }, (answer) => {
        entry.status = answer.statusCode;
        // Before it goes on, so that no call is taken for one that still runs.
        answer.on("data", (piece) => {
          if (/"(result|error)"/.test(piece)) entry.answered ??= now();
        });
        response.writeHead(answer.statusCode, answer.headers);
        response.flushHeaders();
        pipeline(answer, response, () => {});
      });
      onward.on("error", () => response.destroy());
      response.on("close", () => {
        if (response.writableFinished) return;
        entry.gone = now();
        onward.destroy();
      });
      onward.end(body);
    });
  });
  const listen = async (port) => {
    server.listen(port, "127.0.0.1");
    await once(server, "listening");
    return server.address().port;
  };
  const own = await listen(port);
  return {
    url: `http://127.0.0.1:${own}/mcp`,
    heard,
    /** Ends all connections; who asks again is served. */
    cut: () => server.closeAllConnections(),
    /** As if the server had crashed. */
    kill: () => {
      server.close();
      server.closeAllConnections();
    },
    /** And had been started anew. */
    restart: () => listen(own),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [url, file] = process.argv.slice(2);
  const hear = (entry) => appendFileSync(file, `${JSON.stringify(entry)}\n`);
  console.log((await relay(url, hear, Number(process.env.PORT ?? 0))).url);
}
