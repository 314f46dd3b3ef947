"""`tidegate mcp` between the Python client of MCP and servers of others, in both eras of the protocol.

Run by ./test, which installs them all: mcp_client.py TIDEGATE. It prints a line for each row, and fails with a
traceback.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from mcp import Client, MCPError, StdioServerParameters
from mcp.types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

TIDEGATE = sys.argv[1]
HERE = Path(__file__).resolve().parent
EVERYTHING = ["node", str(HERE / "node_modules/@modelcontextprotocol/server-everything/dist/index.js")]
MODERN = ["node", str(HERE / "modern_server.mjs")]
PEERS = {"2025-11-25": ("legacy", EVERYTHING), "2026-07-28": ("auto", MODERN)}
TIME = [str(Path(sys.executable).with_name("mcp-server-time")), "--local-timezone", "UTC"]
LIMIT = ("--limit", "100/s")
SLOW = "trigger-long-running-operation"

# Starts a server, and leaves in a folder which process it is, and each line that it hears.
WATCHED = 'echo $$ > "$0/pid"; exec "$@" < <(tee -a "$0/heard.jsonl")'


class Connection:
    """A client that talks to a server through Tidegate."""

    def __init__(self, client, folder):
        self.client = client
        self.folder = folder

    async def call(self, tool, arguments, **options):
        return await self.client.call_tool(tool, arguments, **options)

    async def echo(self, message, **options):
        return (await self.call("echo", {"message": message}, **options)).content[0].text

    def lines(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def decisions(self):
        return sorted(line["decision"] for line in self.lines("log.jsonl"))

    def kill(self):
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)


@asynccontextmanager
async def proxied(peer, *flags, **answers):
    mode, server = peer
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        args = ["mcp", *flags, "--log", str(folder / "log.jsonl"), "--", "bash", "-c", WATCHED, name, *server]
        async with Client(StdioServerParameters(command=TIDEGATE, args=args), mode=mode, **answers) as client:
            yield Connection(client, folder)


async def seen_as_without(peer, calls, *limits):
    mode, (command, *args) = peer
    seen = []

    async def look(client):
        results = [(await client.call_tool(*call)).model_dump() for call in calls]
        tools = (await client.list_tools()).model_dump()
        seen.append((client.protocol_version, client.server_info, client.instructions, tools, results))

    async with Client(StdioServerParameters(command=command, args=args), mode=mode) as client:
        await look(client)
    for flags in limits:
        async with proxied(peer, *flags) as connection:
            await look(connection.client)
    assert all(other == seen[0] for other in seen[1:]), seen
    assert seen[0][0] == ("2025-11-25" if mode == "legacy" else "2026-07-28"), seen[0][0]


async def time_as_without(peer):
    """So it does of mcp-server-time, which speaks both eras."""
    mode, _ = peer
    await seen_as_without((mode, TIME), [("get_current_time", {"timezone": "nowhere"})], LIMIT)


async def as_without(peer):
    """A client sees what it sees without Tidegate."""
    calls = [("echo", {"message": "höchste Zeit\n\u2028"}), ("get-sum", {"a": 1, "b": 2.5}), ("echo", {"wrong": 1})]
    await seen_as_without(peer, calls, (), LIMIT)


def seconds(moment):
    """Seconds since 1970, with all digits of `moment`."""
    return datetime.fromisoformat(moment[:19] + "+00:00").timestamp() + float("0" + moment[19:-1])


async def twenty_at_once(peer):
    """Twenty calls at once are all answered, each with its own answer, and start as the limits say."""
    async with proxied(peer, "--limit", "20/s", "--burst", "3", "--max-in-flight", "4") as connection:
        await connection.client.list_tools()
        calls = [connection.echo(f"call {i}") for i in range(10)]
        calls += [connection.call(SLOW, {"duration": 0.4 + i / 1000, "steps": 1}) for i in range(10)]
        results = await asyncio.gather(*calls)
        lines = connection.lines("log.jsonl")
    assert results[:10] == [f"Echo: call {i}" for i in range(10)], results
    for i, result in enumerate(results[10:]):
        expected = f"Long running operation completed. Duration: {0.4 + i / 1000} seconds, Steps: 1."
        assert result.content[0].text == expected, result
    runs = []
    for line in lines:
        start = seconds(line["time"]) + line["wait_ms"] / 1e3
        runs.append((start, start + line["duration_ms"] / 1e3))
    runs.sort()
    assert len(runs) == 20, lines
    for i, (first, _) in enumerate(runs):
        for j, (last, _) in enumerate(runs[i:]):
            assert j + 1 <= 3 + 20 * (last - first + 1e-5), (j + 1, last - first)
    together = [sum(start <= now and now + 5e-6 < end for start, end in runs) for now, _ in runs]
    assert max(together) == 4, together


async def cancelled_while_waiting(peer):
    """A call that is cancelled while it waits never reaches the server."""
    async with proxied(peer, "--limit", "1 per 3s") as connection:
        first = asyncio.ensure_future(connection.echo("first"))
        waiting = asyncio.Event()

        async def told(*_):
            waiting.set()

        unwanted = asyncio.ensure_future(connection.echo("unwanted", progress_callback=told))
        await asyncio.wait_for(waiting.wait(), 15)
        unwanted.cancel()
        assert await first == "Echo: first"
        assert await connection.echo("third") == "Echo: third"
        assert connection.decisions() == ["allowed", "allowed", "cancelled"], connection.lines("log.jsonl")
        waits = [line["wait_ms"] for line in connection.lines("log.jsonl")]
        assert max(waits) <= 3000, f"the cancelled call took no token: {waits}"
        heard = connection.lines("heard.jsonl")
    messages = [line["params"]["arguments"]["message"] for line in heard if line["method"] == "tools/call"]
    assert messages == ["first", "third"], messages
    assert all(line["method"] != "notifications/cancelled" for line in heard), heard


async def progress_while_waiting(peer):
    """A call that waits is told so, and what the server tells afterwards is more."""
    told = []

    async def hear(progress, total, message):
        told.append((progress, total, message))

    async with proxied(peer, "--limit", "1 per 2s") as connection:
        _, result = await asyncio.gather(
            connection.echo("first"),
            connection.call(SLOW, {"duration": 0.2, "steps": 2}, progress_callback=hear),
        )
    assert "completed" in result.content[0].text, result
    assert told == [(0.001, None, "waiting for a rate limit, 1 s so far"), (1, 2, None), (2, 2, None)], told


async def refused(peer):
    """A refusal reaches the model with the seconds, and programs with _meta."""
    async with proxied(peer, "--limit", "1 per 1h") as connection:
        await connection.echo("first")
        answer = await connection.call("echo", {"message": "second"})
        assert answer.is_error and "Not executed. Retry after 3600 s" in answer.content[0].text, answer
        told = answer.meta["io.github.tidegate/rateLimit"]
        assert told["executed"] is False and told["retryAfterMs"] > 3_590_000, told
        assert (await connection.client.list_tools()).tools


async def too_dear(peer):
    """A call that costs more than the capacity is told that waiting cannot help."""
    async with proxied(peer, "--limit", "10/s", "--burst", "2", "--cost", "echo=3") as connection:
        answer = await connection.call("echo", {"message": "too dear"})
        assert answer.is_error and "Waiting cannot help" in answer.content[0].text, answer
        told = answer.meta["io.github.tidegate/rateLimit"]
        assert (told["capacity"], told["reason"], told["retryAfterMs"]) == (2, "never", None), told
        assert not (await connection.call("get-sum", {"a": 1, "b": 2})).is_error
        assert connection.decisions() == ["allowed", "never"]


async def server_dies(peer):
    """Calls that wait and run fail when the server dies, and the client can start anew."""
    async with proxied(peer, "--limit", "1 per 5s") as connection:
        calls = [connection.call(SLOW, {"duration": 60, "steps": 1})]
        waits = [asyncio.Event(), asyncio.Event()]

        def teller(event):
            async def told(*_):
                event.set()

            return told

        calls += [connection.echo("waits", progress_callback=teller(event)) for event in waits]
        ended = asyncio.ensure_future(asyncio.gather(*calls, return_exceptions=True))
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in waits)), 15)
        connection.kill()
        running, *waiting = await asyncio.wait_for(ended, 15)
        assert isinstance(running, MCPError), running
        for error in waiting:
            assert isinstance(error, MCPError) and error.data == {"executed": False}, error
            assert "the MCP server ended before the call of tool echo started" in error.message, error
    async with proxied(peer, "--limit", "1 per 5s") as connection:
        assert await connection.echo("anew") == "Echo: anew"


async def asked_back(peer):
    """What the server asks the client passes both ways, and costs nothing."""

    async def roots(_):
        return ListRootsResult(roots=[Root(uri="file:///harbour")])

    async def sampling(*_):
        content = TextContent(type="text", text="ebb and flow")
        return CreateMessageResult(role="assistant", model="none", content=content)

    async def elicitation(*_):
        # The client may call a tool to find its answer, while the other call goes on.
        found = await connection.call("get-sum", {"a": 40, "b": 2})
        return ElicitResult(action="accept", content={"name": found.content[0].text})

    answers = {"list_roots_callback": roots, "sampling_callback": sampling, "elicitation_callback": elicitation}
    async with proxied(peer, "--limit", "4 per 1h", "--max-in-flight", "2", **answers) as connection:
        for tool, arguments, expected in (
            ("get-roots-list", {}, "file:///harbour"),
            ("trigger-sampling-request", {"prompt": "tides?"}, "ebb and flow"),
            ("trigger-elicitation-request", {}, "The sum of 40 and 2 is 42"),
        ):
            result = await connection.call(tool, arguments)
            assert expected in "".join(part.text for part in result.content), result
        assert "Not executed" in await connection.echo("fifth"), "each call took one token"


ROWS = (
    as_without,
    time_as_without,
    twenty_at_once,
    cancelled_while_waiting,
    progress_while_waiting,
    refused,
    too_dear,
    server_dies,
    asked_back,
)


async def main():
    some_at_once = asyncio.Semaphore(3)

    async def run(row, peer):
        async with some_at_once:
            start = time.monotonic()
            await asyncio.wait_for(row(peer), 30)
            return time.monotonic() - start

    for version, peer in PEERS.items():
        tasks = [asyncio.create_task(run(row, peer)) for row in ROWS]
        for row, task in zip(ROWS, tasks):
            print(f"mcp {version}: {row.__doc__.splitlines()[0]} ({await task:.1f} s)", flush=True)


asyncio.run(main())
