"""One of the processes of `perdure worker`: an engine in a fresh interpreter, told by its parent when to end [R-6].

A pair of sockets joins the two. The child says what it has loaded, and under which identity it works; the parent says
when to begin and when to end. Its end of the pair goes with it, however it ends, and then the child drains.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from perdure.cli.stopping import leave_ctrl_c_to_the_parent

if TYPE_CHECKING:
    import io

OPTIONS = ("-P",)
"""Of the interpreter: the working directory comes on the path later, as for every command."""

GO = b"g"
DRAIN = b"d"


class Order(msgspec.Struct, frozen=True):
    """What a child is to do.

    Attributes:
        app, store: as given to the command; the child reads environment and project anew.
        concurrency, drain_timeout_s, lease_s: None: as the application says.
        as_json: events as JSON.
        number: which of the processes it is, from 1 on.
        channel: descriptor of its socket.
    """

    app: str | None
    store: str | None
    concurrency: int | None
    drain_timeout_s: float | None
    lease_s: float | None
    as_json: bool
    number: int = 0
    channel: int = -1


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The application is there.

    Attributes:
        app: as it is named.
        store: the URL of its store.
        shared: whether many workers may work on that.
        drain_timeout_s: how long its attempts may end.
    """

    app: str
    store: str
    shared: bool
    drain_timeout_s: float


class Works(msgspec.Struct, frozen=True, tag="works"):
    """The engine works, as `worker`."""

    worker: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It ends with an error that was said, and this exit code."""

    code: int


Said: TypeAlias = Loaded | Works | Refused


def main(order: Order) -> int:
    """Be one of the processes; returns the exit code."""
    from perdure.cli.main import failed, open_streams

    os.set_inheritable(order.channel, False)
    open_streams()
    # What handlers print is seen at once, and line by line: others write here as well.
    cast("io.TextIOWrapper", sys.stdout).reconfigure(line_buffering=True, write_through=False)
    try:
        return _work(order)
    except Exception as error:
        code = failed(error, as_json=order.as_json)
        _tell(order.channel, Refused(code))
        return code


def _work(order: Order) -> int:
    from perdure.cli.connect import locate
    from perdure.cli.exits import Exit
    from perdure.cli.serve import Limits, Supervised, run_engine
    from perdure.storage import open_store

    place = locate(order.app, order.store, needs_app=True)
    if place.app is None:
        raise TypeError("an engine needs an application")
    drain_s = order.drain_timeout_s if order.drain_timeout_s is not None else place.app.app.drain_timeout_s
    _tell(order.channel, Loaded(place.app.target.text.strip(), place.url, open_store(place.url).shared, drain_s))
    if os.read(order.channel, 1) != GO:
        return Exit.OK
    limits = Limits(order.concurrency, order.drain_timeout_s, order.lease_s)
    supervised = Supervised(order.channel, order.number, lambda worker: _tell(order.channel, Works(worker)))
    return run_engine(place, limits, until_idle=False, as_json=order.as_json, supervised=supervised)


def _tell(channel: int, said: Said) -> None:
    try:
        os.write(channel, msgspec.json.encode(said) + b"\n")
    except OSError:
        return  # the parent is gone, which is noticed elsewhere


if __name__ == "__main__":
    leave_ctrl_c_to_the_parent()
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=Order)))
