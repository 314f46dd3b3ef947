"""Decisions of `tidegate serve` over HTTP: what the page of the guide about them shows, run as it is written there.

nginx and Caddy stand in front of a small service, and ask about each request; the snippets for Python and Node ask themselves.
Run by ./test: decisions.py TIDEGATE. It prints a line for each row, and fails with a traceback.
"""

import http.client
import http.server
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

TIDEGATE = sys.argv[1]
PAGE = (Path(__file__).parents[2] / "docs/guide/src/decisions-over-http.md").read_text()
PATIENCE = 20

LIMITS = """
[[limit]]
name  = "per-client"
key   = "client-ip"
quota = "1/h burst 3"

[[limit]]
name  = "posts"
key   = ["client-ip", "method", "path"]
quota = "1/h burst 2"
override = [{ key = ["203.0.113.9", "GET", "/"], quota = "1/h burst 100" }]
"""

SHADOW = """
[[limit]]
name  = "tighter"
key   = "client-ip"
quota = "1/h"
mode  = "shadow"
"""

CALLS = """
[[limit]]
name  = "calls"
key   = "header:x-account"
quota = "{}"
"""


def snippet(language, *holds):
    """The code of the page in this language that holds these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if all(words in block for words in holds)]
    return block


def put(text, old, new):
    """What the page writes for an example, as it is here."""
    assert old in text, f"{old} is not in the page any more"
    return text.replace(old, new)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def serving(limits):
    """A Tidegate that trusts this machine, and its port."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(limits)
        file.flush()
        command = [TIDEGATE, "serve", "--listen", "127.0.0.1:0", "--limits", file.name, "--trusted-proxies", "127.0.0.1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                server.port = int(server.stdout.readline().rsplit(":", 1)[1])
                yield server
            finally:
                server.terminate()


class Service(http.server.BaseHTTPRequestHandler):
    """What is protected: it says what it is asked for, and refuses /forbidden itself."""

    def do_GET(self):
        body = f"service {self.command} {self.path}".encode()
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(403 if self.path == "/forbidden" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


@contextmanager
def service():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def running(command, port, log):
    """A proxy, once it answers at its port."""
    with open(log, "w") as output, subprocess.Popen(command, stdout=output, stderr=output) as proxy:
        try:
            end = time.monotonic() + PATIENCE
            while True:
                assert proxy.poll() is None and time.monotonic() < end, Path(log).read_text()
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.01)
            yield port
        finally:
            proxy.terminate()


@contextmanager
def nginx(limits, behind, lets_through=False):
    """nginx with the configuration of the page, with or without what lets all through when nobody answers."""
    port = free_port()
    conf = snippet("nginx", "auth_request /_limit;")
    conf = put(put(conf, "127.0.0.1:8080", f"127.0.0.1:{limits}"), "127.0.0.1:3000", f"127.0.0.1:{behind}")
    conf = put(conf, "listen 80;", f"listen 127.0.0.1:{port};")
    if lets_through:
        conf = put(conf, "proxy_read_timeout 5s;\n", "proxy_read_timeout 5s;\n" + snippet("nginx", "error_page 502"))
        conf = put(conf, "    location @limited {", snippet("nginx", "location @unlimited") + "    location @limited {")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        file = Path(folder) / "nginx.conf"
        file.write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{conf}}}\n"
        )
        command = ["/usr/sbin/nginx" if os.path.exists("/usr/sbin/nginx") else "nginx", "-p", folder, "-c", file]
        with running(command, port, f"{folder}/log") as port:
            yield port


@contextmanager
def caddy(limits, behind):
    """Caddy with the configuration of the page."""
    port = free_port()
    conf = snippet("caddy", "forward_auth")
    conf = put(put(conf, "127.0.0.1:8080", f"127.0.0.1:{limits}"), "127.0.0.1:3000", f"127.0.0.1:{behind}")
    conf = put(conf, "example.com", f"http://127.0.0.1:{port}")
    # Caddy itself believes nobody; here the test is the load balancer in front of it.
    conf = put(conf, "uri /v1/auth?\n", "uri /v1/auth?\n\t\ttrusted_proxies 127.0.0.1/32\n")
    options = "{\n\tadmin off\n\tauto_https off\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Caddyfile"
        file.write_text(options + conf)
        command = ["env", f"HOME={folder}", "caddy", "run", "--adapter", "caddyfile", "--config", file]
        with running(command, port, f"{folder}/log") as port:
            yield port


def ask(port, client, path="/", method="GET"):
    """The status, the fields and the body that a client gets."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, "x" if method == "POST" else None, {"X-Forwarded-For": client})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def limits_each_client(proxy):
    """each client has its limit, and is told the wait"""
    with service() as behind, serving(LIMITS) as server, proxy(server.port, behind) as port:
        for _ in range(3):
            status, _, body = ask(port, "203.0.113.9")
            assert (status, body) == (200, "service GET /"), (status, body)
        status, fields, body = ask(port, "203.0.113.9")
        assert status == 429 and 3590 <= int(fields["retry-after"]) <= 3600, (status, fields.items(), body)
        assert "application/problem+json" in fields["content-type"]
        assert '"per-client";r=0;t=' in fields["ratelimit"], fields.items()
        # What a client writes before its address makes no other one of it.
        assert ask(port, "198.51.100.1, 203.0.113.9")[0] == 429
        assert ask(port, "203.0.113.10")[0] == 200


def knows_method_and_path(proxy):
    """method and path are those of the client's request, and its body reaches the service"""
    with service() as behind, serving(LIMITS) as server, proxy(server.port, behind) as port:
        posts = [ask(port, "203.0.113.9", "/a?b=c", "POST") for _ in range(3)]
        assert [status for status, _, _ in posts] == [200, 200, 429], posts
        assert posts[0][2] == "service POST /a?b=c"
        assert ask(port, "203.0.113.9", "/b", "POST")[0] == 200
        # The service's own 403 is no refusal of the limits.
        assert ask(port, "203.0.113.10", "/forbidden")[0] == 403


def refuses_nobody_in_the_shadow(proxy):
    """a limit in shadow mode refuses nobody"""
    with service() as behind, serving(SHADOW) as server, proxy(server.port, behind) as port:
        assert [ask(port, "203.0.113.9")[0] for _ in range(10)] == [200] * 10


def without_tidegate(proxy, status):
    with service() as behind, serving(LIMITS) as server, proxy(server.port, behind) as port:
        assert ask(port, "203.0.113.9")[0] == 200
        server.kill()
        server.wait(PATIENCE)
        assert ask(port, "203.0.113.9")[0] == status


def asks_from_python():
    """the snippet for Python waits for its turn"""
    with serving(CALLS.format("1 per 500ms")) as server:
        code = put(snippet("python", "urllib"), "127.0.0.1:8080", f"127.0.0.1:{server.port}")
        start = time.monotonic()
        for _ in range(2):
            exec(compile(code, "snippet", "exec"), {})
        assert time.monotonic() - start >= 0.5


def asks_from_node():
    """the snippet for Node is told whether and when"""
    with serving(CALLS.format("1/h")) as server:
        code = put(snippet("js", "fetch"), "127.0.0.1:8080", f"127.0.0.1:{server.port}")
        code += "console.log(allowed, retry_after_ms > 3500000);\n"
        command = ["node", "--input-type=module", "--eval", code]
        said = [subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout for _ in "12"]
    assert said == ["true false\n", "false true\n"], said


for name, proxy, down in [("nginx", nginx, 500), ("caddy", caddy, 502)]:
    for row in (limits_each_client, knows_method_and_path, refuses_nobody_in_the_shadow):
        row(proxy)
        print(f"{name}: {row.__doc__}", flush=True)
    without_tidegate(proxy, down)
    print(f"{name}: without Tidegate it answers {down}", flush=True)
without_tidegate(lambda *ports: nginx(*ports, lets_through=True), 200)
print("nginx: without Tidegate it lets through if it is told to", flush=True)
for row in (asks_from_python, asks_from_node):
    row()
    print(row.__doc__, flush=True)
