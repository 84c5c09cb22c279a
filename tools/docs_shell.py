"""The shell behind the console blocks of one page: variables, jobs and the folder stay from block to block."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 60.0  # for one command
OURS = ("PERDURE_", "PYTEST_", "PYTHON", "COVERAGE_")  # a reader's shell has none of these


class Shell:
    """One bash for a page, started with the first command; `perdure` and `python` are those of this environment."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: str) -> tuple[str, int]:
        """Run a command and wait for it (a job it leaves behind goes on); gives output, both streams, and exit code.

        A command that takes longer than a minute is answered with exit code 124, and the shell is at an end.
        """
        process = self._started()
        if process.stdin is None:
            raise RuntimeError("the shell has no input")
        end = f"--{secrets.token_hex(8)}--"
        # The command reads nothing: otherwise it would eat the lines that follow.
        script = f"{{ {command.rstrip()}\n}} </dev/null\nprintf '\\n{end} %d\\n' $?\n"
        process.stdin.write(script.encode())
        process.stdin.flush()
        return self._read_until(process, end)

    def _read_until(self, process: subprocess.Popen[bytes], end: str) -> tuple[str, int]:
        if process.stdout is None:
            raise RuntimeError("the shell has no output")
        deadline = time.monotonic() + SECONDS
        seen = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                text = seen.decode(errors="replace")
                before, found, after = text.partition(f"\n{end} ")
                if found and "\n" in after:
                    return before, int(after.split()[0])
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    return text + "\n(timed out)", 124
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    return text + "\n(the shell is gone)", process.wait()
                seen += chunk

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
            env |= {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
                "HOME": os.getcwd(),
                "NO_COLOR": "1",
                "TERM": "dumb",
                "COLUMNS": "120",
            }
            self._process = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        return self._process

    def close(self) -> None:
        """End the shell and every job it has left behind."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()
