"""What the commands about editing pipelines share: where the runs come from, and what is to be deployed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.connect import Place, locate, sqlite_path, with_client
from perdure.cli.problems import Problem, refuse
from perdure.cli.settings import setting
from perdure.errors import InvalidArgument

if TYPE_CHECKING:
    from perdure.core.check import CheckReport
    from perdure.core.future import Candidate
    from perdure.core.lock import Lock
    from perdure.ports.store import Deployment
    from perdure.runtime.census import Census
    from perdure.runtime.client import Client

LOCK_FILE = "perdure.lock"


@dataclass(frozen=True)
class Edit:
    """What is about to be deployed, and the runs that it meets.

    Attributes:
        place: application and store.
        ledgers: an export that stands for the store.
        lock: the lock that stands for the application where there is none.
        types: the lock that says what types states had; None: types are not compared.
    """

    place: Place
    ledgers: Path | None = None
    lock: Lock | None = None
    types: Lock | None = None

    def candidates(self) -> dict[str, Candidate]:
        """Topologies by pipeline id."""
        from perdure.define.locking import lock_of

        lock = self.lock
        if self.place.app is not None or lock is None:
            lock = lock_of(self.place.pipelines.values())
        return lock.candidates(self.types)

    def report(self) -> CheckReport:
        """Check it.

        Raises:
            Problem: the store or the export cannot be read.
        """
        from perdure.runtime.census import check

        return check(self.look()[0], self.candidates())

    def look(self) -> tuple[Census, Sequence[Deployment]]:
        """The runs that the edit meets, and the registry; an export has none to speak of.

        Raises:
            Problem: the store or the export cannot be read.
        """
        if self.ledgers is not None:
            return read_census(self.ledgers), ()
        found: list[tuple[Census, Sequence[Deployment]]] = []

        async def work(client: Client) -> int:
            found.append((await client.census(), await client.deployments()))
            return 0

        with_client(self.place, work)
        return found[0]


def outdated(worker: str, since_us: int, deployments: Iterable[Deployment]) -> bool:
    """Whether an engine that started then runs something else than what is current: others deployed after it [D-5].

    Its start is known to the second, so what was deployed within that second counts as what it started with.
    """
    return any(d.at_us >= since_us + 1_000_000 and d.actor != worker for d in deployments)


def outdated_engine(place: Place, deployments: Sequence[Deployment]) -> str:
    """The engine that still runs a superseded topology, and so may start what is retired by now; empty if none does."""
    from perdure.cli.times import parse_time_us
    from perdure.storage.sqlite.owner import holder_of

    path = sqlite_path(place.url)
    holder = None if path is None else holder_of(path)
    if holder is None or not outdated(holder.worker, parse_time_us(holder.since, "owner"), deployments):
        return ""
    return holder.text()


def edited(app_argument: str | None, app: str | None, store: str | None) -> Place:
    """The application of a command that takes it as its argument as well as with --app.

    Raises:
        Problem: two different ones are named, or none.
    """
    return locate(one_app(app_argument, app), store, needs_app=True)


def one_app(app_argument: str | None, app: str | None) -> str | None:
    """The one application that is named.

    Raises:
        Problem: there are two.
    """
    if app_argument is not None and app is not None and app_argument != app:
        refuse(f"two applications given: {app_argument!r} and --app {app!r}")
    return app_argument if app_argument is not None else app


def has_app(named: str | None) -> bool:
    """Whether an application is named anywhere."""
    return setting("app", named) is not None


def read_lock(path: Path, option: str = "--lock") -> Lock:
    """A lock file.

    Raises:
        Problem: it is not there, or is none.
    """
    from perdure.core.lock import decode_lock

    hint = f"`perdure check --write-lock` writes {LOCK_FILE}"
    try:
        lock = decode_lock(_read(path, option, hint))
        lock.candidates()
    except InvalidArgument as error:
        raise Problem(f"{option}: {path}: {error}", hint) from None
    return lock


def lock_beside() -> Lock | None:
    """The lock file in the current folder; None if there is none.

    Raises:
        Problem: it is there, and is none.
    """
    path = Path(LOCK_FILE)
    return read_lock(path, "types of states") if path.is_file() else None


def read_census(path: Path) -> Census:
    """An export of ledgers.

    Raises:
        Problem: it is not there, or is none.
    """
    from perdure.runtime.census import decode_census

    hint = "`perdure ledgers export` writes one"
    try:
        return decode_census(_read(path, "--ledgers", hint))
    except InvalidArgument as error:
        raise Problem(f"--ledgers: {path}: {error}", hint) from None


def _read(path: Path, option: str, hint: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Problem(f"{option}: {path} cannot be read: {error.strerror}", hint) from None


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        Problem: it cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_bytes(data)
        new.replace(path)
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error.strerror}") from None
