"""What lies between a worker and its server, and may swallow everything: nothing arrives, and nobody is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from tests.postgres import PostgresServer


class BlackHole:
    """A proxy on a port of this machine."""

    def __init__(self, server: PostgresServer) -> None:
        self.port = 0
        self._target = server.folder / ".s.PGSQL.5432"
        self._ways: list[asyncio.Event] = []
        self._open = True
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def url(self, *, schema: str, answer_s: float, user: str = "perdure") -> str:
        """A store behind it, whose connections are given up after a silence of so long."""
        return (
            f"postgresql://{user}@127.0.0.1:{self.port}/postgres?schema={schema}"
            f"&answer_timeout={answer_s:g}&connect_timeout=2"
        )

    def swallow(self) -> None:
        """From now on nothing gets through in either direction, on any connection, also on new ones."""
        self._open = False
        for way in self._ways:
            way.clear()

    def heal(self) -> None:
        """All that was held back gets through, late, and all that comes from now on."""
        self._open = True
        for way in self._ways:
            way.set()

    def forget(self) -> None:
        """Connections that were there stay swallowed for ever, as where a router has lost its table; new ones work."""
        self._open = True
        for way in self._ways:
            way.clear()
        self._ways = []

    def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._tasks.add(asyncio.create_task(self._carry(reader, writer)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = asyncio.Event()
        if self._open:
            way.set()
        self._ways.append(way)
        self._ends.add(writer)
        with suppress(OSError):
            await way.wait()
            server_reader, server_writer = await asyncio.open_unix_connection(self._target)
            self._ends.add(server_writer)
            await asyncio.gather(_carry(reader, server_writer, way), _carry(server_reader, writer, way))

    async def close(self) -> None:
        """Cut everything."""
        for end in self._ends:
            end.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            await way.wait()
            writer.write(data)
    await way.wait()
    writer.transport.abort()


@asynccontextmanager
async def black_hole(server: PostgresServer) -> AsyncGenerator[BlackHole]:
    """A proxy before a server, which lets everything through at first."""
    hole = BlackHole(server)
    listening = await asyncio.start_server(hole.carry, "127.0.0.1", 0)
    hole.port = listening.sockets[0].getsockname()[1]
    try:
        yield hole
    finally:
        listening.close()
        await hole.close()
