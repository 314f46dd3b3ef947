"""`tidegate mcp` between the Python client of MCP and the server `mcp-server-time`, in both eras of the protocol.

Run by ./test, which installs both: mcp_client.py TIDEGATE. It fails with a traceback.
"""

import asyncio
import json
import os
import sys
import tempfile
import time

from mcp import Client, StdioServerParameters

TIDEGATE = sys.argv[1]
SERVER = [os.path.join(os.path.dirname(sys.executable), "mcp-server-time"), "--local-timezone", "UTC"]
NOW = ("get_current_time", {"timezone": "UTC"})


def proxied(*flags):
    return StdioServerParameters(command=TIDEGATE, args=["mcp", *flags, "--", *SERVER])


async def same_as_direct(mode):
    direct = StdioServerParameters(command=SERVER[0], args=SERVER[1:])
    seen = []
    for server in (direct, proxied(), proxied("--limit", "10/s")):
        async with Client(server, mode=mode) as client:
            tools = (await client.list_tools()).model_dump()
            wrong = (await client.call_tool(NOW[0], {"timezone": "nowhere"})).model_dump()
            seen.append((client.protocol_version, client.server_info, tools, wrong))
    assert seen[0] == seen[1] == seen[2], seen
    return seen[0][0]


async def twenty_at_once(mode):
    async with Client(proxied("--limit", "20/s", "--burst", "3", "--max-in-flight", "4"), mode=mode) as client:
        start = time.monotonic()
        results = await asyncio.gather(*(client.call_tool(*NOW) for _ in range(20)))
        took = time.monotonic() - start
    assert len(results) == 20 and not any(result.is_error for result in results), results
    assert took >= 17 / 20, took


async def refused_and_usable_afterwards(mode):
    async with Client(proxied("--limit", "1 per 1h"), mode=mode) as client:
        assert not (await client.call_tool(*NOW)).is_error
        refused = await client.call_tool(*NOW)
        assert refused.is_error and "Not executed. Retry after 3600 s" in refused.content[0].text, refused
        told = refused.meta["io.github.tidegate/rateLimit"]
        assert told["executed"] is False and told["retryAfterMs"] > 3_000_000, told
        assert (await client.list_tools()).tools


async def progress_while_waiting(mode):
    told = []

    async def hear(progress, total, message):
        told.append((progress, message))

    async with Client(proxied("--limit", "1 per 2s"), mode=mode) as client:
        await client.call_tool(*NOW)
        assert not (await client.call_tool(*NOW, progress_callback=hear)).is_error
    assert told == [(0.001, "waiting for a rate limit, 1 s so far")], told


async def cancelled_while_waiting(mode):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        async with Client(proxied("--limit", "1 per 3s", "--log", log), mode=mode) as client:
            await client.call_tool(*NOW)
            try:
                await client.call_tool(*NOW, read_timeout_seconds=0.5)
                raise AssertionError("it did not wait")
            except Exception as error:
                assert not isinstance(error, AssertionError), error
            assert not (await client.call_tool(*NOW)).is_error
        with open(log) as lines:
            decisions = [json.loads(line)["decision"] for line in lines]
    assert decisions == ["allowed", "cancelled", "allowed"], decisions


async def main():
    for mode in ("auto", "legacy"):
        version = await same_as_direct(mode)
        for check in (
            twenty_at_once,
            refused_and_usable_afterwards,
            progress_while_waiting,
            cancelled_while_waiting,
        ):
            await check(mode)
        print(f"mcp {version}: as without the proxy, paced, refused, told of progress, cancelled")


asyncio.run(main())
