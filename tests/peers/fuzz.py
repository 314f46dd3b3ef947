"""The description of `tidegate serve` at /v1/openapi.json, held against what it answers, by schemathesis.

Run by ./test, which installs it: fuzz.py TIDEGATE. Questions that fit the description and questions that do not are sent to all
paths, and reservations are settled and cancelled. Schemathesis reads this file too, for the names of the limits.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import schemathesis

LIMITS = """
[[limit]]
name  = "calls"
quota = "1000000/s"

[[limit]]
name  = "few"
quota = "1/h burst 3"

[[limit]]
name  = "accounts"
key   = "header:x-account"
quota = "1/s burst 300"

[[limit]]
name  = "pages"
key   = ["client-ip", "path"]
quota = "10/h burst 100"
mode  = "shadow"

[[limit]]
name  = "turns"
algorithm = "leaky-bucket"
quota = "100/s"
queue = { max = 5, max_wait = "50ms" }
"""


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Names the limits of this server, that questions get past them."""
    names = {"type": "string", "enum": ["calls", "few", "accounts", "pages", "turns"]}
    for schema in ("Check", "Question", "Estimate"):
        schema = raw_schema["components"]["schemas"][schema]
        for one in schema.get("oneOf", [schema]):
            if "limit" in one["properties"]:
                one["properties"]["limit"] = names


def main(tidegate):
    here = Path(__file__)
    # What schemathesis keeps from run to run goes with the folder.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "limits.toml"
        file.write_text(LIMITS)
        command = [tidegate, "serve", "--listen", "127.0.0.1:0", "--limits", file]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                url = server.stdout.readline().split()[-1]
                command = [Path(sys.executable).parent / "schemathesis", "--config-file", here.with_suffix(".toml")]
                command += ["run", f"{url}/v1/openapi.json", *sys.argv[2:]]
                env = os.environ | {"SCHEMATHESIS_HOOKS": here.stem, "PYTHONPATH": str(here.parent)}
                return subprocess.run(command, env=env, timeout=300, check=False, cwd=folder).returncode
            finally:
                server.terminate()


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
