"""`tidegate mcp` between the Python client of MCP and servers of others, in both eras of the protocol, over standard input
and output and over HTTP.

Run by ./test, which installs them all: mcp_client.py TIDEGATE. It prints a line for each row, and fails with a
traceback.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mcp import Client, MCPError, StdioServerParameters
from mcp.types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

TIDEGATE = sys.argv[1]
HERE = Path(__file__).resolve().parent
EVERYTHING = ["node", str(HERE / "node_modules/@modelcontextprotocol/server-everything/dist/index.js")]
MODERN = ["node", str(HERE / "modern_server.mjs")]
RELAY = str(HERE / "relay.mjs")
TIME = [str(Path(sys.executable).with_name("mcp-server-time")), "--local-timezone", "UTC"]
LIMIT = ("--limit", "100/s")
SLOW = "trigger-long-running-operation"

# Starts a server, and leaves in a folder which process it is, and each line that it hears.
WATCHED = 'echo $$ > "$0/pid"; exec "$@" < <(tee -a "$0/heard.jsonl")'


@dataclass
class Peer:
    """How a server is reached, and in which era: a command, or the URL of one that all rows share."""

    version: str
    server: list[str] | str

    @property
    def mode(self):
        return "legacy" if self.version == "2025-11-25" else "auto"

    @property
    def is_http(self):
        return isinstance(self.server, str)


class Connection:
    """A client that talks to a server through Tidegate."""

    def __init__(self, client, folder, relay=None):
        self.client = client
        self.folder = folder
        self.relay = relay

    async def call(self, tool, arguments, **options):
        return await self.client.call_tool(tool, arguments, **options)

    async def echo(self, message, **options):
        return (await self.call("echo", {"message": message}, **options)).content[0].text

    def lines(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def heard(self):
        """The messages that came to the server, and over HTTP each with `at`, in seconds since 1970."""
        if not self.relay:
            return [{"message": line} for line in self.lines("heard.jsonl")]
        return [{**line, "at": line["at"] / 1000} for line in self.lines("heard.jsonl") if "message" in line]

    def calls(self):
        return [line for line in self.heard() if line["message"].get("method") == "tools/call"]

    def decisions(self):
        return sorted(line["decision"] for line in self.lines("log.jsonl"))

    def kill(self):
        if self.relay:
            self.relay.kill()
        else:
            os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)


@asynccontextmanager
async def running(command, says, stream, **env):
    """A program that has said where it listens, and what it said."""
    pipes = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
    pipes[stream] = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, **pipes, env={**os.environ, **env})

    async def drain():
        while await getattr(process, stream).readline():
            pass

    try:
        while says not in (line := (await getattr(process, stream).readline()).decode()):
            assert line, f"{command} ended"
        draining = asyncio.create_task(drain())
        yield process, line.split(says, 1)[1].split()[0]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        draining.cancel()


@asynccontextmanager
async def serving(*command):
    """A server over HTTP, which takes its port from the environment as server-everything does not say which it found."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    async with running(command, "listening on port ", "stderr", PORT=port):
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def proxied(peer, *flags, **answers):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        args = ["mcp", *flags, "--log", str(folder / "log.jsonl")]
        if not peer.is_http:
            args += ["--", "bash", "-c", WATCHED, name, *peer.server]
            command = StdioServerParameters(command=TIDEGATE, args=args)
            async with Client(command, mode=peer.mode, **answers) as client:
                yield Connection(client, folder)
            return
        relay = running(["node", RELAY, peer.server, str(folder / "heard.jsonl")], "http://", "stdout")
        async with relay as (process, address):
            args += ["--listen", "127.0.0.1:0", "--upstream", f"http://{address}"]
            async with running([TIDEGATE, *args], "listening on ", "stderr") as (_, url):
                async with Client(f"{url}/mcp", mode=peer.mode, **answers) as client:
                    yield Connection(client, folder, process)


async def seen_as_without(peer, calls, *limits):
    seen = []

    async def look(client):
        results = [(await client.call_tool(*call)).model_dump() for call in calls]
        tools = (await client.list_tools()).model_dump()
        seen.append((client.protocol_version, client.server_info, client.instructions, tools, results))

    server = peer.server
    if not peer.is_http:
        server = StdioServerParameters(command=server[0], args=server[1:])
    async with Client(server, mode=peer.mode) as client:
        await look(client)
    for flags in limits:
        async with proxied(peer, *flags) as connection:
            await look(connection.client)
    assert all(other == seen[0] for other in seen[1:]), seen
    assert seen[0][0] == peer.version, seen[0][0]


async def time_as_without(peer):
    """So it does of mcp-server-time, which speaks both eras."""
    await seen_as_without(Peer(peer.version, TIME), [("get_current_time", {"timezone": "nowhere"})], LIMIT)


async def as_without(peer):
    """A client sees what it sees without Tidegate."""
    calls = [("echo", {"message": "höchste Zeit\n\u2028"}), ("get-sum", {"a": 1, "b": 2.5}), ("echo", {"wrong": 1})]
    await seen_as_without(peer, calls, (), LIMIT)


def seconds(moment):
    """Seconds since 1970, with all digits of `moment`."""
    return datetime.fromisoformat(moment[:19] + "+00:00").timestamp() + float("0" + moment[19:-1])


def keep_to(starts, inexact):
    """Within a span there are no more starts than the burst and what the rate gives for it: 20/s, 3 at once."""
    for i, first in enumerate(starts):
        for j, last in enumerate(starts[i:]):
            assert j + 1 <= 3 + 20 * (last - first + inexact), (j + 1, last - first)


async def twenty_at_once(peer):
    """Twenty calls at once are all answered, each with its own answer, and start as the limits say."""
    async with proxied(peer, "--limit", "20/s", "--burst", "3", "--max-in-flight", "4") as connection:
        await connection.client.list_tools()
        calls = [connection.echo(f"call {i}") for i in range(10)]
        calls += [connection.call(SLOW, {"duration": 0.4 + i / 1000, "steps": 1}) for i in range(10)]
        results = await asyncio.gather(*calls)
        lines = connection.lines("log.jsonl")
        came = connection.calls()
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
    keep_to([start for start, _ in runs], 1e-5)
    together = [sum(start <= now and now + 5e-6 < end for start, end in runs) for now, _ in runs]
    assert max(together) == 4, together
    # The server agrees, as exactly as a machine that has other work shows.
    assert len(came) == 20, came
    if peer.is_http:
        keep_to([line["at"] for line in came], 0.1)


async def cancelled_while_waiting(peer):
    """A call that is cancelled while it waits never reaches the server."""
    async with proxied(peer, "--limit", "1 per 3s") as connection:
        # Over HTTP either may come first. The one that is told of its wait waits.
        tasks = {}

        def cancels(message):
            async def told(*_):
                tasks[message].cancel()

            return told

        for message in ("one", "two"):
            tasks[message] = asyncio.ensure_future(connection.echo(message, progress_callback=cancels(message)))
        await asyncio.wait(tasks.values(), timeout=15)
        wanted = [message for message, task in tasks.items() if not task.cancelled()]
        assert [tasks[message].result() for message in wanted] == [f"Echo: {message}" for message in wanted]
        assert len(wanted) == 1, wanted
        assert await connection.echo("third") == "Echo: third"
        assert connection.decisions() == ["allowed", "allowed", "cancelled"], connection.lines("log.jsonl")
        waits = [line["wait_ms"] for line in connection.lines("log.jsonl")]
        assert max(waits) <= 3000, f"the cancelled call took no token: {waits}"
        messages = [line["message"]["params"]["arguments"]["message"] for line in connection.calls()]
        heard = connection.heard()
    assert messages == [*wanted, "third"], messages
    assert all(line["message"].get("method") != "notifications/cancelled" for line in heard), heard


async def cancelled_while_running(peer):
    """A call that is cancelled while it runs is cancelled at the server, and its place comes free."""
    async with proxied(peer, "--max-in-flight", "1") as connection:
        runs = asyncio.Event()

        async def told(*_):
            runs.set()

        arguments = {"duration": 8, "steps": 80}
        running = asyncio.ensure_future(connection.call(SLOW, arguments, progress_callback=told))
        await asyncio.wait_for(runs.wait(), 15)
        running.cancel()
        assert await connection.echo("next") == "Echo: next"
        assert connection.decisions() == ["allowed", "allowed"]
        wait = connection.lines("log.jsonl")[1]["wait_ms"]
        assert wait < 6000, f"{wait} ms, and the grace is 5 s"
        if not (peer.is_http and peer.version == "2026-07-28"):
            cancelled = [line["message"] for line in connection.heard()]
            cancelled = [line["params"]["requestId"] for line in cancelled if line.get("method") == "notifications/cancelled"]
            assert cancelled == [connection.calls()[0]["message"]["id"]], cancelled


async def progress_while_waiting(peer):
    """A call that waits is told so, and what the server tells afterwards is more."""
    told = [[], []]

    def hears(told):
        async def hear(progress, total, message):
            told.append((progress, total, message))

        return hear

    async with proxied(peer, "--limit", "1 per 2s") as connection:
        arguments = {"duration": 0.2, "steps": 2}
        calls = [connection.call(SLOW, arguments, progress_callback=hears(told)) for told in told]
        for result in await asyncio.gather(*calls):
            assert "completed" in result.content[0].text, result
    ran = [(1, 2, None), (2, 2, None)]
    assert sorted(told, key=len) == [ran, [(0.001, None, "waiting for a rate limit, 1 s so far"), *ran]], told


async def refused(peer):
    """A refusal reaches the model with the seconds, and programs with _meta."""
    async with proxied(peer, "--limit", "1 per 1h") as connection:
        await connection.echo("first")
        answer = await connection.call("echo", {"message": "second"})
        assert answer.is_error and "Not executed. Retry after 3" in answer.content[0].text, answer
        told = answer.meta["io.github.tidegate/rateLimit"]
        assert told["executed"] is False and told["retryAfterMs"] > 3_500_000, told
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


async def server_goes(peer):
    """Calls that wait while the server goes are told so."""
    async with proxied(peer, "--limit", "1 per 3s") as connection:
        waits = [asyncio.Event(), asyncio.Event()]

        async def told(*_):
            next(event for event in waits if not event.is_set()).set()

        calls = [asyncio.ensure_future(connection.echo(message, progress_callback=told)) for message in "abc"]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in waits)), 15)
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        connection.kill()
        ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 15)
        errors = [error for error in ended if isinstance(error, Exception)]
        assert len(errors) == 2, ended
        for error in errors:
            assert isinstance(error, MCPError) and error.data == {"httpStatus": 502}, error
        assert connection.decisions() == ["allowed"] * 3, connection.lines("log.jsonl")


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
    # Over HTTP a call that goes on is charged again, as a stranger could say so.
    tokens = 7 if peer.is_http and peer.version == "2026-07-28" else 4
    async with proxied(peer, "--limit", f"{tokens} per 1h", "--max-in-flight", "2", **answers) as connection:
        for tool, arguments, expected in (
            ("get-roots-list", {}, "file:///harbour"),
            ("trigger-sampling-request", {"prompt": "tides?"}, "ebb and flow"),
            ("trigger-elicitation-request", {}, "The sum of 40 and 2 is 42"),
        ):
            result = await connection.call(tool, arguments)
            assert expected in "".join(part.text for part in result.content), result
        assert "Not executed" in await connection.echo("one more"), "each call took one token"


ROWS = (
    as_without,
    twenty_at_once,
    cancelled_while_waiting,
    cancelled_while_running,
    progress_while_waiting,
    refused,
    too_dear,
    asked_back,
)
OF_PIPES = (time_as_without, server_dies)
OF_HTTP = (server_goes,)


async def main():
    some_at_once = asyncio.Semaphore(5)

    async def run(row, peer):
        async with some_at_once:
            start = time.monotonic()
            await asyncio.wait_for(row(peer), 60)
            return time.monotonic() - start

    async with serving(*EVERYTHING, "streamableHttp") as everything, serving(*MODERN, "http") as modern:
        peers = [
            Peer("2025-11-25", [*EVERYTHING, "stdio"]),
            Peer("2026-07-28", [*MODERN, "stdio"]),
            Peer("2025-11-25", everything),
            Peer("2026-07-28", modern),
        ]
        rows = [(peer, row) for peer in peers for row in (*ROWS, *(OF_HTTP if peer.is_http else OF_PIPES))]
        tasks = [asyncio.create_task(run(row, peer)) for peer, row in rows]
        for (peer, row), task in zip(rows, tasks):
            over = "HTTP" if peer.is_http else "stdio"
            sentence = row.__doc__.splitlines()[0]
            print(f"mcp {peer.version} over {over}: {sentence} ({await task:.1f} s)", flush=True)


asyncio.run(main())
