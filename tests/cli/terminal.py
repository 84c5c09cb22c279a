"""A program in a pseudo-terminal of its own: what a person would see, and keys that a person would press."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("perdure"))
PATIENCE_S = 30.0
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*[0-9]m")

# The terminal becomes the controlling one, so that Ctrl-C is a signal: a session leader gets the first it opens.
_TAKE_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"


def environment(**extra: str) -> dict[str, str]:
    """The environment of a user: nothing configured, a terminal that can do colour."""
    dropped = ("PERDURE_", "PYTEST_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_", "CI", "GITHUB_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**env, "TERM": "xterm-256color", "LANG": "C.UTF-8", **extra}


class Terminal:
    """One program and its terminal, until `close`."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 100, **extra: str) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, PROGRAM, *arguments],
            cwd=folder,
            env=environment(**extra),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        self.seen = ""

    def press(self, keys: bytes) -> None:
        """Type something."""
        os.write(self._leader, keys)

    def read_until(self, text: str) -> str:
        """Wait until the program has printed `text`, colours aside; gives everything printed so far.

        Raises:
            AssertionError: it ended, or was silent for too long, without having printed it.
        """
        while text not in without_ansi(self.seen):
            if not self._read():
                raise AssertionError(f"no {text!r} in {self.seen!r}")
        return self.seen

    def read_to_end(self) -> str:
        """Wait until the program ends; gives everything it has printed."""
        while self._read():
            pass
        self.process.wait(PATIENCE_S)
        return self.seen

    def _read(self) -> bool:
        ready, _, _ = select.select([self._leader], [], [], PATIENCE_S)
        if not ready:
            return False
        try:
            data = os.read(self._leader, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.seen += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)

    def close(self) -> None:
        """End the program if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._leader)


class Piped(Terminal):
    """The same for a program that writes into a pipe and has nobody to ask."""

    def __init__(self, folder: Path, *arguments: str, **extra: str) -> None:
        self._leader, writer = os.pipe()
        self.process = subprocess.Popen(
            [PROGRAM, *arguments],
            cwd=folder,
            env=environment(**extra),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
        )
        os.close(writer)
        self.seen = ""


def without_ansi(text: str) -> str:
    """What is left when colours and cursor movements are taken away."""
    return ANSI.sub("", text)
