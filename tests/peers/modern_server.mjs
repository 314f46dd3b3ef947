// A server that speaks MCP 2026-07-28, on the v2 SDK, since server-everything speaks 2025-11-25 at most. Its tools have
// the names of those of server-everything, and do the same, so that one row of the tests runs against both. It speaks
// over standard input and output, or with the argument `http` at the port in PORT.

import { createServer } from "node:http";
import { setTimeout as after } from "node:timers/promises";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { createMcpHandler, fromJsonSchema, inputRequired, McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const text = (text) => ({ content: [{ type: "text", text }] });

/** Asks the client for something in the answer; the client calls again, with what it found. */
const ask = (request) => async (_, { mcpReq }) => {
  const found = mcpReq.inputResponses?.found;
  return found ? text(JSON.stringify(found)) : inputRequired({ inputRequests: { found: request } });
};

/** Takes `duration` seconds, and tells of each step to whoever wants to know. */
async function run({ duration, steps }, { mcpReq }) {
  const progressToken = mcpReq._meta?.progressToken;
  for (let progress = 1; progress <= steps; progress += 1) {
    await after((duration / steps) * 1000);
    if (progressToken === undefined) continue;
    const params = { progress, total: steps, progressToken };
    await mcpReq.notify({ method: "notifications/progress", params });
  }
  return text(`Long running operation completed. Duration: ${duration} seconds, Steps: ${steps}.`);
}

/** The fields of each tool, and what it does. */
const TOOLS = {
  "echo": [{ message: "string" }, async ({ message }) => text(`Echo: ${message}`)],
  "get-sum": [{ a: "number", b: "number" }, async ({ a, b }) => text(`The sum of ${a} and ${b} is ${a + b}.`)],
  "trigger-long-running-operation": [{ duration: "number", steps: "number" }, run],
  "trigger-elicitation-request": [{}, ask(inputRequired.elicit({
    message: "Who?",
    requestedSchema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
  }))],
  "trigger-sampling-request": [{ prompt: "string" }, ask(inputRequired.createMessage({
    messages: [{ role: "user", content: { type: "text", text: "Who?" } }],
    maxTokens: 100,
  }))],
  "get-roots-list": [{}, ask(inputRequired.listRoots())],
};

const make = () => {
  const server = new McpServer({ name: "modern", version: "1.0.0" });
  for (const [name, [fields, tool]] of Object.entries(TOOLS)) {
    const properties = Object.fromEntries(Object.entries(fields).map(([field, type]) => [field, { type }]));
    const inputSchema = fromJsonSchema({ type: "object", properties, required: Object.keys(fields) });
    server.registerTool(name, { description: `As ${name} of server-everything`, inputSchema }, tool);
  }
  return server;
};

if (process.argv[2] === "http") {
  const server = createServer(toNodeHandler(createMcpHandler(make)));
  const port = Number(process.env.PORT ?? 0);
  server.listen(port, "127.0.0.1", () => console.error(`listening on port ${server.address().port}`));
} else {
  serveStdio(make);
}
