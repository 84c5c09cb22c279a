"""An S3 server of our own for tests: Python from a wheel, on a free port of this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

_SERVE = """
import asyncio, os, sys
os.environ["SERVICES"] = "s3"
from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack.app import app
config = Config()
config.bind = ["fd://" + sys.argv[1]]
asyncio.run(serve(app, config, mode="asgi"))
"""


class ObjectServer:
    """A server that keeps objects in memory; gone with `stop`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-s3-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = ""

    def start(self) -> None:
        """Start it. It inherits a socket that listens already: whoever connects waits, and nobody takes the port."""
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(64)
            self.endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with open(self._folder / "log", "wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _SERVE, str(listening.fileno())],
                    cwd=self._folder,
                    pass_fds=[listening.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def stop(self) -> None:
        """Stop it, and remove all it had."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder)

    def bucket(self, name: str) -> str:
        """Make a bucket; the URL of an archive in it."""
        self._ask("PUT", name)
        return f"s3://{name}/some/prefix"

    def put(self, path: str, data: bytes) -> None:
        """Write an object, over whatever is there."""
        self._ask("PUT", path, data)

    def get(self, path: str) -> bytes:
        """Read an object."""
        return self._ask("GET", path)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a client finds it."""
        return {
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
        }

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.endpoint}/{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
        return content
