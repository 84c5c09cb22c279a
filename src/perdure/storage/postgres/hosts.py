"""URLs of several hosts: one of them takes writes, and another one after a failover [R-8]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

Setting: TypeAlias = "str | int | None"

_LISTS = ("host", "hostaddr", "port")
TIMELINE = "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int"
"""How often the history of a server, with that of the servers before it, has forked; each promotion adds one."""


def hosts_of(conninfo: str) -> list[str]:
    """Where the servers are, for people: host and port; just the host where no port is given.

    What libpq cannot read, it refuses when it connects: none, then.
    """
    try:
        given = conninfo_to_dict(conninfo)
    except psycopg.Error:
        return []
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    ports = str(given.get("port") or "").split(",")
    if len(ports) != len(hosts):
        ports = ports * len(hosts) if len(ports) == 1 else [""] * len(hosts)
    return [f"{host or 'the local socket'}:{port}" if port else host for host, port in zip(hosts, ports, strict=True)]


class Hosts:
    """What a store knows of the hosts of its URL.

    Attributes:
        timeline: the newest that was met; a server of an older one has been left behind by a failover.
    """

    def __init__(self) -> None:
        self.timeline = 0
        self._last: tuple[str, str] | None = None

    def settings(self, given: Mapping[str, Setting]) -> dict[str, Setting]:
        """The settings of a connection that is to write: whoever took the last one is asked first.

        Otherwise each new connection would first wait for a host that is down, or meet one that came back.
        """
        found: dict[str, Setting] = {"target_session_attrs": "read-write", **given}
        lists = {name: str(given[name]).split(",") for name in _LISTS if given.get(name)}
        count = max(map(len, lists.values()))
        at = next((n for n in range(count) if self._last == _nth(lists, n)), 0)
        for name, values in lists.items():
            if len(values) == count:
                found[name] = ",".join([values[at], *values[:at], *values[at + 1 :]])
        return found

    def took(self, host: str, port: int, timeline: int) -> None:
        """A connection was made, and the server is as new as any that was met."""
        self.timeline = max(self.timeline, timeline)
        self._last = (host, str(port))


def _nth(lists: Mapping[str, list[str]], n: int) -> tuple[str, str]:
    hosts = lists.get("host") or lists["hostaddr"]
    ports = lists.get("port") or ["5432"]
    return hosts[n % len(hosts)], ports[n % len(ports)] or "5432"
