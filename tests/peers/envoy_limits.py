"""`tidegate serve --grpc` and Envoy, which asks it about each request with its rate limit filter.

Run by ./test, which installs Envoy: envoy_limits.py TIDEGATE. It prints a line for each row, and fails with a traceback.
"""

import http.client
import http.server
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

TIDEGATE = sys.argv[1]
ENVOY = Path(sys.executable).with_name("envoy")
PATIENCE = 60

LIMITS = """
[[limit]]
name = "login"
quota = "2/min burst 2"
descriptors = ["shop: path=/login, user=*"]

[[limit]]
name = "soon"
quota = "1 per 2s burst 1"
descriptors = ["shop: path=/soon, user=*"]
"""


def free_port():
    """A port that was just free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(*command, **rest):
    """A program, which is killed in the end."""
    with subprocess.Popen([str(part) for part in command], **rest) as program:
        try:
            yield program
        finally:
            program.kill()


@contextmanager
def upstream():
    """The service that is protected, and its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", "6")
            self.end_headers()
            self.wfile.write(b"served")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def cluster(name, port, **rest):
    endpoint = {"endpoint": {"address": address(port)}}
    endpoints = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": endpoints, **rest}


def listener(port, deny):
    """Where Envoy listens: it lets requests pass while there is no answer, or denies them."""
    kind = "type.googleapis.com/envoy.extensions.filters"
    service = {"grpc_service": {"envoy_grpc": {"cluster_name": "tidegate"}}, "transport_api_version": "V3"}
    limits = {
        "@type": f"{kind}.http.ratelimit.v3.RateLimit",
        "domain": "shop",
        # In the page it is 20 ms; here the machine may have more to do than that.
        "timeout": "20s",
        "failure_mode_deny": deny,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limit_service": service,
    }
    header = lambda name, key: {"request_headers": {"header_name": name, "descriptor_key": key}}
    route = {
        "match": {"prefix": "/"},
        "route": {"cluster": "upstream", "rate_limits": [{"actions": [header(":path", "path"), header("x-user", "user")]}]},
    }
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "shop",
        "route_config": {"virtual_hosts": [{"name": "shop", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "envoy.filters.http.ratelimit", "typed_config": limits},
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{kind}.http.router.v3.Router"}},
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {"address": address(port), "filter_chains": [{"filters": filters}]}


class Place:
    """Envoy between a client and the service, with tidegate behind it."""

    def __init__(self, stack, limits=LIMITS, *flags):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "limits.toml").write_text(limits)
        command = [TIDEGATE, "serve", "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        command += ["--limits", folder / "limits.toml", *flags]
        self.tidegate = stack.enter_context(running(*command, stdout=subprocess.PIPE, text=True))
        said = [self.tidegate.stdout.readline() for _ in range(4)]
        [line] = [line for line in said if line.startswith("grpc on ")]
        http2 = {"explicit_http_config": {"http2_protocol_options": {}}}
        options = {"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", **http2}
        options = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options}
        self.open, self.deny = free_port(), free_port()
        resources = {
            "listeners": [listener(self.open, False), listener(self.deny, True)],
            "clusters": [
                cluster("upstream", stack.enter_context(upstream())),
                cluster("tidegate", int(line.rsplit(":", 1)[1]), typed_extension_protocol_options=options),
            ],
        }
        (folder / "envoy.json").write_text(json.dumps({"static_resources": resources}))
        command = [ENVOY, "-c", folder / "envoy.json", "--disable-hot-restart", "--base-id", os.getpid()]
        command += ["--concurrency", 1, "--log-level", "error"]
        envoy = stack.enter_context(running(*command))
        until = time.monotonic() + PATIENCE
        for port in (self.open, self.deny):
            while True:
                try:
                    # Without the header nothing is asked.
                    assert self.get("/", None, port)[0] == 200
                    break
                except OSError:
                    assert envoy.poll() is None and time.monotonic() < until, "Envoy does not listen"
                    time.sleep(0.05)

    def get(self, path, user, port=None):
        """The status, the fields and the body."""
        client = http.client.HTTPConnection("127.0.0.1", port or self.open, timeout=PATIENCE)
        client.request("GET", path, headers={"x-user": user} if user else {})
        response = client.getresponse()
        body = response.read().decode()
        client.close()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, body


def numbers(fields):
    return {name[12:]: fields[name] for name in fields if name.startswith("x-ratelimit-")}


def between(text, seconds, began):
    """Whether it is what is left of so many seconds, which Envoy rounds down, now that some have passed."""
    passed = time.monotonic() - began
    return math.floor(seconds - passed) <= int(text) <= seconds


def tells_numbers(place):
    """two requests a minute pass, the third is rejected, with the numbers of the limit"""
    began = time.monotonic()
    for remaining, full in ((1, 30), (0, 60)):
        status, fields, body = place.get("/login", "ann")
        assert (status, body) == (200, "served"), (status, body)
        shown = numbers(fields)
        assert shown["limit"] == '2, 2;w=60;name="login"', shown
        assert shown["remaining"] == str(remaining), shown
        assert between(shown["reset"], full, began), shown
        assert fields["ratelimit-policy"] == '"login";q=2;w=60', fields
        assert "retry-after" not in fields
    status, fields, body = place.get("/login", "ann")
    assert status == 429, status
    shown = numbers(fields)
    assert shown["limit"] == '2, 2;w=60;name="login"' and shown["remaining"] == "0", shown
    assert between(shown["reset"], 30, began), shown
    wait = int(fields["retry-after"])
    # Envoy rounds down, and what clients wait for is rounded up.
    assert wait == int(shown["reset"]) + 1 and wait <= 30, (wait, shown)
    assert fields["ratelimit"] == f'"login";r=0;t={wait}', fields
    assert fields["x-envoy-ratelimited"] == "true", fields
    assert body == f"rate limit `login` is reached; retry after {wait} s", body


def tells_values_apart(place):
    """each value of a star has tokens of its own"""
    for user in ("bob", "cid"):
        assert [place.get("/login", user)[0] for _ in range(3)] == [200, 200, 429]


def leaves_others_alone(place):
    """requests that no limit is for pass without numbers"""
    for path, user in (("/buy", "ann"), ("/login", None), ("/login?x", "ann")):
        for _ in range(3):
            status, fields, _ = place.get(path, user)
            assert status == 200 and numbers(fields) == {}, (path, user, fields)


def lets_in_as_told(place):
    """who comes back after retry-after is let in"""
    assert place.get("/soon", "ann")[0] == 200
    status, fields, _ = place.get("/soon", "ann")
    assert (status, fields["retry-after"]) in ((429, "1"), (429, "2")), (status, fields)
    time.sleep(int(fields["retry-after"]))
    assert place.get("/soon", "ann")[0] == 200


def reads_the_guide():
    """the settings in the guide are valid"""
    text = (Path(__file__).parents[2] / "docs/guide/src/envoy.md").read_text()
    settings = text.split("```yaml\n")[1].split("```")[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "envoy.yaml"
        file.write_text(settings)
        command = [ENVOY, "--mode", "validate", "--disable-hot-restart", "--log-level", "error", "-c", file]
        subprocess.run(command, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)


def without_tidegate(place):
    """without tidegate requests pass, or are answered 500 with failure_mode_deny"""
    assert place.get("/login", "dan", place.deny)[0] == 200
    place.tidegate.kill()
    place.tidegate.wait()
    for _ in range(4):
        status, fields, _ = place.get("/login", "ann")
        assert status == 200 and numbers(fields) == {}, (status, fields)
        assert place.get("/login", "dan", place.deny)[0] == 500


def without_a_store(without, statuses):
    """The store of tidegate is killed."""
    with ExitStack() as stack:
        port = free_port()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        command = ["redis-server", "--port", port, "--save", "", "--dir", folder, "--loglevel", "warning"]
        redis = stack.enter_context(running(*command, stdout=subprocess.DEVNULL))
        until = time.monotonic() + PATIENCE
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < until, "redis-server does not listen"
            time.sleep(0.05)
        store = ["--store", f"redis://127.0.0.1:{port}#shop", "--without-store", without, "--store-deadline", "5s"]
        place = Place(stack, LIMITS, *store)
        assert [place.get("/login", "ann", place.deny)[0] for _ in range(3)] == [200, 200, 429]
        redis.kill()
        redis.wait()
        for _ in range(4):
            # Not the one of before: that he is rejected is remembered, and needs no store.
            answers = [place.get("/login", "bob", port)[0] for port in (place.open, place.deny)]
            assert answers == statuses, answers


version = subprocess.run([ENVOY, "--version"], capture_output=True, text=True, check=True).stdout.split("version: ")[1].split("/")[1]
reads_the_guide()
print(f"Envoy {version}: {reads_the_guide.__doc__}", flush=True)
with ExitStack() as stack:
    place = Place(stack)
    for row in (tells_numbers, tells_values_apart, leaves_others_alone, lets_in_as_told, without_tidegate):
        row(place)
        print(f"Envoy {version}: {row.__doc__}", flush=True)
without_a_store("closed", [200, 500])
print(f"Envoy {version}: without its store a closed tidegate has no answer: requests pass, or are answered 500", flush=True)
without_a_store("open", [200, 200])
print(f"Envoy {version}: without its store an open tidegate lets requests pass", flush=True)
