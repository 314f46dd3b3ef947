"""`tidegate serve --resp` and the Python client of Redis, in both versions of the protocol.

Run by ./test, which installs it: resp_client.py TIDEGATE. It prints a line for each row, and fails with a traceback.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import redis
import redis.asyncio

TIDEGATE = sys.argv[1]
CALL = ("CL.THROTTLE", "user123", 15, 30, 60)


@contextmanager
def serving(*flags):
    """A server, and the port at which it speaks RESP."""
    command = [TIDEGATE, "serve", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            said = [server.stdout.readline() for _ in range(4)]
            [line] = [line for line in said if line.startswith("resp on ")]
            yield int(line.rsplit(":", 1)[1])
        finally:
            server.terminate()


def decides(client):
    """a call is decided: five integers"""
    assert client.execute_command(*CALL) == [0, 16, 15, -1, 2]
    rejected, capacity, remaining, retry_after, reset_after = client.execute_command(*CALL, 16)
    assert (rejected, capacity, remaining, retry_after) == (1, 16, 15, 2), retry_after
    assert reset_after in (1, 2)


def keeps_order(client):
    """calls in a pipeline are decided in order"""
    with client.pipeline(transaction=False) as pipeline:
        for quantity in (1, 2, 3, 0):
            pipeline.execute_command("CL.THROTTLE", b"bytes\r\n\x00\xff", 99, 1, 3600, quantity)
        pipeline.ping()
        answers = pipeline.execute()
    assert [answer[2] for answer in answers[:4]] == [99, 97, 94, 94], answers
    assert answers[4] is True


def tells_errors(client):
    """what is wrong comes as an error, and the connection goes on"""
    for args, words in [(("k", 1, 0, 1), "count per period"), (("k", "x", 1, 1), "max_burst"), (("k",), "arguments")]:
        try:
            answer = client.execute_command("CL.THROTTLE", *args)
        except redis.ResponseError as error:
            assert words in str(error), error
        else:
            raise AssertionError(answer)
    assert client.ping()


def knows_the_rest(client):
    """what a client may ask besides is answered"""
    assert client.echo("hi") in ("hi", b"hi")
    assert client.client_id() > 0
    assert client.client_setname("harbour")
    assert client.client_getname() in ("harbour", b"harbour")
    assert client.info()["server_name"] == "tidegate"
    assert client.select(0)


def waits_as_told(client):
    """who comes back after retry_after seconds is allowed"""
    call = ("CL.THROTTLE", "alone", 0, 1, 1)
    assert client.execute_command(*call)[0] == 0
    rejected, _, _, retry_after, _ = client.execute_command(*call)
    assert (rejected, retry_after) == (1, 1)
    time.sleep(retry_after)
    assert client.execute_command(*call)[0] == 0


async def shares(port, protocol):
    """a hundred callers at once on ten connections are allowed the burst and no more"""
    pool = redis.asyncio.BlockingConnectionPool(host="127.0.0.1", port=port, protocol=protocol, max_connections=10)
    async with redis.asyncio.Redis(connection_pool=pool) as client:
        calls = (client.execute_command("CL.THROTTLE", "together", 39, 1, 3600) for _ in range(100))
        answers = await asyncio.gather(*calls)
    assert sum(answer[0] == 0 for answer in answers) == 40
    await pool.disconnect()


def password():
    """the password is asked for, and given in either version"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "password"
        file.write_text("high water\n")
        with serving("--resp-password-file", str(file)) as port:
            for protocol in (2, 3):
                with redis.Redis(port=port, protocol=protocol, password="high water") as client:
                    assert client.execute_command(*CALL)[0] == 0
                for wrong in (None, "low water"):
                    try:
                        with redis.Redis(port=port, protocol=protocol, password=wrong) as client:
                            client.execute_command(*CALL)
                    except redis.AuthenticationError:
                        continue
                    raise AssertionError(f"let in with {wrong}")


ROWS = (decides, keeps_order, tells_errors, knows_the_rest, waits_as_told)

for protocol in (2, 3):
    with serving() as port:
        with redis.Redis(port=port, protocol=protocol) as client:
            for row in ROWS:
                row(client)
                print(f"redis-py {redis.__version__}, RESP{protocol}: {row.__doc__}", flush=True)
        asyncio.run(shares(port, protocol))
        print(f"redis-py {redis.__version__}, RESP{protocol}: {shares.__doc__}", flush=True)
password()
print(f"redis-py {redis.__version__}: {password.__doc__}", flush=True)
