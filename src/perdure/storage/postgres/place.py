"""Which server, database and schema a URL names."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from perdure.errors import InvalidArgument
from perdure.storage.postgres.hosts import Hosts, hosts_of
from perdure.storage.postgres.spare import Spare

DEFAULT_SCHEMA = "perdure"
ANSWER_S = 30.0
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]+)?")
_MISREAD = re.compile(r"://[^@/?#]*:(?![0-9]*[,/?#])[^@/?#]*\?.*@")
"""What stands where a port does is none, and an @ comes later: a password went on there, for people but not in URLs."""


class Place(msgspec.Struct, frozen=True):
    """Where a store stands.

    Attributes:
        conninfo: what libpq understands.
        schema: the schema that holds the tables, ours alone.
        pooler: a pooler that gives a server connection for a transaction at a time stands between.
        shown: for messages; without the password.
        answer_s: how long a server may be silent on a connection that waits for its answer.
        hosts: what is known of them, where the URL names several.
        spare: where connections go that a store has no more use for, to be used by the next one; None: they are closed.
    """

    conninfo: str
    schema: str = DEFAULT_SCHEMA
    pooler: bool = False
    shown: str = ""
    answer_s: float = ANSWER_S
    hosts: Hosts | None = None
    spare: Spare | None = None

    @classmethod
    def of(cls, url: str) -> Place:
        """Read a URL: libpq's, with the parameters `schema`, `pooler=transaction` and `answer_timeout` (seconds) added.

        Raises:
            InvalidArgument: the schema is no plain name, the pooler of another kind, or the time-out no number above 0;
                or a password has characters that end it.
        """
        parts = urlsplit(url)
        if parts.netloc.count("@") > 1 or "@" in parts.path + parts.fragment or _MISREAD.search(url):
            raise InvalidArgument(
                "the URL has a character in the user, password or database that has to be written as a number there: "
                "%40 for @, %2F for /, %3F for ?, %23 for #"
            )
        options = parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True)  # to libpq a plus is a plus
        own = dict(pair for pair in options if pair[0] in ("schema", "pooler", "answer_timeout"))
        rest = urlencode([pair for pair in options if pair[0] not in own], quote_via=quote)
        schema, pooler = own.get("schema", DEFAULT_SCHEMA), own.get("pooler", "none")
        if not _NAME.fullmatch(schema) or schema.startswith("pg_") or schema in ("public", "information_schema"):
            raise InvalidArgument(
                "a store in PostgreSQL has a schema of its own, ?schema=NAME in small letters, digits and _, "
                f"and {schema!r} is none"
            )
        if pooler not in ("none", "transaction"):
            raise InvalidArgument(f"?pooler={pooler} is not known; only pooler=transaction is")
        answer = own.get("answer_timeout", str(ANSWER_S))
        if not _SECONDS.fullmatch(answer) or not float(answer):
            raise InvalidArgument(f"?answer_timeout={answer} is no number of seconds above 0")
        conninfo = f"postgresql://{parts.netloc}{parts.path or '/'}" + (f"?{rest}" if rest else "")
        hosts = hosts_of(conninfo)
        host = ", ".join(hosts) if len(hosts) > 1 else dict(options).get("host", parts.hostname or "the local socket")
        database = unquote(parts.path.lstrip("/")) or dict(options).get("dbname", "the default database")
        return cls(
            conninfo,
            schema,
            pooler == "transaction",
            f"{database} at {host} (schema {schema})",
            float(answer),
            Hosts() if len(hosts) > 1 else None,
        )

    @property
    def channel(self) -> str:
        """Name of the channel on which commits are told."""
        return f"perdure_{self.schema}"[:63]

    def key(self, purpose: str) -> int:
        """Number of an advisory lock of this store; such locks are the database's, whatever the schema."""
        digest = hashlib.sha256(f"perdure {purpose} {self.schema}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)
