"""The bank: another company's program, with its own process, its own file and its own moods.

It imports nothing of perdure and nothing of the example. It listens on 127.0.0.1 and answers three calls, each with
an idempotency key chosen by the caller:

    POST /reserve  {"key", "run", "cents"}               puts money aside        -> {"hold"}
    POST /pay      {"key", "run", "hold", "refunds"}     pays all of them or none -> {"paid_cents", "settled"}
    POST /release  {"key", "run", "hold"}                gives the money back    -> {"released"}

A key that was answered before gets the same answer again and moves no money. A payment takes a moment to settle: until
then the answer says so, and whoever wants to know asks again. But the bank does not know what a refund
*is*: asked to pay one twice under two keys, it pays twice. Whether that happened is for `audit.py` to find out, from
the file this process writes.

It misbehaves by design, the same way in every run: see `mood`.
"""

import argparse
import hashlib
import json
import os
import sqlite3
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

FROZEN = (
    "9E-2013-01-05",
    "AA-2013-01-15",
    "B6-2013-01-30",
    "EV-2013-01-20",
    "UA-2013-01-13",
    "WN-2013-01-31",
)
"""Accounts the bank refuses to pay from. It says so when it is asked to pay, not before."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS frozen   (run TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS request  (id INTEGER PRIMARY KEY, call TEXT NOT NULL, key TEXT NOT NULL, run TEXT NOT NULL,
                                     cents INTEGER NOT NULL, mood TEXT NOT NULL, status INTEGER NOT NULL,
                                     replayed INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS answer   (key TEXT PRIMARY KEY, digest TEXT NOT NULL, status INTEGER NOT NULL,
                                     body TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS hold     (id TEXT PRIMARY KEY, run TEXT NOT NULL, cents INTEGER NOT NULL,
                                     state TEXT NOT NULL CHECK (state IN ('open', 'consumed', 'released'))) STRICT;
CREATE TABLE IF NOT EXISTS transfer (id INTEGER PRIMARY KEY, key TEXT NOT NULL, run TEXT NOT NULL, refund TEXT NOT NULL,
                                     cents INTEGER NOT NULL) STRICT;
"""


class Mood(Enum):
    """How the bank treats one request."""

    FINE = "fine"
    SLOW = "slow"
    BUSY = "busy"
    """Turns the caller away before looking at the request."""
    TWICE = "twice"
    """Carries the request out twice, as a relay would that lost track, and sends both answers."""
    CUT = "cut"
    """Carries the request out and drops the connection instead of answering."""
    HANG = "hang"
    """Carries the request out and keeps silent until the caller has given up."""


MOODS = ((8, Mood.BUSY), (18, Mood.SLOW), (28, Mood.TWICE), (38, Mood.CUT), (43, Mood.HANG))


def mood(call: str, run: str, nth: int) -> Mood:
    """The mood for the nth time this call is made for this run: fixed for ever, and different for the next time."""
    roll = int.from_bytes(hashlib.sha256(f"{call} {run} {nth}".encode()).digest()[:4]) % 100
    return next((chosen for below, chosen in MOODS if roll < below), Mood.FINE)


@dataclass(frozen=True)
class Request:
    """One well-formed call."""

    call: str
    key: str
    run: str
    hold: str
    cents: int
    refunds: tuple[tuple[str, int], ...]

    @property
    def digest(self) -> str:
        """Equal for equal requests."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True)
class Answer:
    """What the caller is told."""

    status: int
    body: dict[str, object]


class Malformed(Exception):
    """The caller sent something the bank cannot read."""


def read_request(call: str, raw: bytes) -> Request:
    """Decodes a call. Raises `Malformed` if a field is missing or of the wrong type."""
    try:
        body = cast(object, json.loads(raw))
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Malformed("not an object")
    fields = cast(dict[str, object], body)
    refunds = _refunds(fields.get("refunds")) if call == "pay" else ()
    cents = sum(part for _, part in refunds) if call == "pay" else fields.get("cents", 0)
    if not isinstance(cents, int) or cents < 0:
        raise Malformed("cents must be a natural number")
    hold = "" if call == "reserve" else _text(fields, "hold")
    return Request(call, _text(fields, "key"), _text(fields, "run"), hold, cents, refunds)


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise Malformed(f"{name} must be a non-empty text")
    return value


def _refunds(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list):
        raise Malformed("refunds must be a list")
    found: list[tuple[str, int]] = []
    for part in cast(list[object], value):
        match part:
            case {"id": str(name), "cents": int(cents)} if cents > 0:
                found.append((name, cents))
            case _:
                raise Malformed("a refund needs an id and positive cents")
    return tuple(found)


class Books:
    """The bank's file. Every request is answered and written down in one transaction.

    `settle_s` is how long a payment takes to settle; those made before the file was opened have settled.
    """

    def __init__(self, path: Path, settle_s: float = 0.0) -> None:
        self._settle_s = settle_s
        self._paid_at_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(SCHEMA)
        self._db.executemany("INSERT OR IGNORE INTO frozen VALUES (?)", [(run,) for run in FROZEN])

    def close(self) -> None:
        """Closes the file; whoever is in the middle of a request is let finish."""
        with self._lock:
            self._db.close()

    def mood(self, request: Request) -> Mood:
        """The bank's mood for this request, judged by how often it saw this call for this run."""
        with self._lock:
            query = "SELECT count(*) FROM request WHERE call = ? AND run = ?"
            (before,) = self._db.execute(query, (request.call, request.run)).fetchone()
        return mood(request.call, request.run, int(before) + 1)

    def turn_away(self, request: Request) -> Answer:
        """Writes the request down and does nothing else."""
        with self._lock:
            return self._noted(request, Mood.BUSY, Answer(503, {"error": "the bank is busy"}), replayed=False)

    def carry_out(self, request: Request, in_mood: Mood = Mood.FINE) -> Answer:
        """Answers a request, moving money the first time its key is seen and never again. Atomic."""
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            query = "SELECT digest, status, body FROM answer WHERE key = ?"
            known = cast(tuple[str, int, str] | None, self._db.execute(query, (request.key,)).fetchone())
            if known is None:
                answer = self._decide(request)
                row = (request.key, request.digest, answer.status, json.dumps(answer.body))
                self._db.execute("INSERT INTO answer VALUES (?, ?, ?, ?)", row)
            elif known[0] != request.digest:
                answer = Answer(409, {"error": "this key was used for another request"})
            else:
                answer = Answer(known[1], cast(dict[str, object], json.loads(known[2])))
            return self._noted(request, in_mood, answer, replayed=known is not None)

    def _noted(self, request: Request, in_mood: Mood, answer: Answer, *, replayed: bool) -> Answer:
        row = (request.call, request.key, request.run, request.cents, in_mood.value, answer.status, replayed)
        columns = "call, key, run, cents, mood, status, replayed"
        self._db.execute(f"INSERT INTO request ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        body = {**answer.body, "key": request.key, "replayed": replayed}
        if "paid_cents" in body:
            paid_at_s = self._paid_at_s.get(request.hold, -self._settle_s)
            body["settled"] = time.monotonic() >= paid_at_s + self._settle_s
        return Answer(answer.status, body)

    def _decide(self, request: Request) -> Answer:
        match request.call:
            case "reserve":
                return self._reserve(request)
            case "pay":
                return self._pay(request)
            case _:
                return self._release(request)

    def _reserve(self, request: Request) -> Answer:
        hold = "hold-" + hashlib.sha256(request.key.encode()).hexdigest()[:12]
        self._db.execute("INSERT INTO hold VALUES (?, ?, ?, 'open')", (hold, request.run, request.cents))
        return Answer(200, {"hold": hold})

    def _pay(self, request: Request) -> Answer:
        if self._db.execute("SELECT 1 FROM frozen WHERE run = ?", (request.run,)).fetchone():
            return Answer(402, {"error": f"the account of {request.run} is frozen"})
        query = "UPDATE hold SET state = 'consumed' WHERE id = ? AND run = ? AND cents = ? AND state <> 'released'"
        if self._db.execute(query, (request.hold, request.run, request.cents)).rowcount != 1:
            return Answer(409, {"error": "no hold of exactly this sum"})
        rows = [(request.key, request.run, refund, cents) for refund, cents in request.refunds]
        self._db.executemany("INSERT INTO transfer (key, run, refund, cents) VALUES (?, ?, ?, ?)", rows)
        self._paid_at_s.setdefault(request.hold, time.monotonic())
        return Answer(200, {"paid_cents": request.cents})

    def _release(self, request: Request) -> Answer:
        query = "UPDATE hold SET state = 'released' WHERE id = ? AND run = ? AND state = 'open'"
        if self._db.execute(query, (request.hold, request.run)).rowcount != 1:
            return Answer(409, {"error": "no such open hold"})
        return Answer(200, {"released": request.hold})


@dataclass(frozen=True)
class Delays:
    """Seconds the bank takes: for anything, when it is slow, and before it drops a caller it keeps waiting."""

    usual_s: float = 0.0
    slow_s: float = 0.1
    hang_s: float = 0.3


class Bank(ThreadingHTTPServer):
    """The counter: one thread per caller, on a free port of 127.0.0.1."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, books: Books, delays: Delays) -> None:
        super().__init__(("127.0.0.1", 0), Teller)
        self.books = books
        self.delays = delays
        self.closing = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of callers that hung up, since some are killed on purpose."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type] # the base is typed narrower than it is called

    def wait(self, seconds: float) -> None:
        """Makes a caller wait, but not a bank that wants to close."""
        self.closing.wait(seconds)


class Teller(BaseHTTPRequestHandler):
    """Serves one connection, in whatever mood the bank is."""

    def do_POST(self) -> None:
        """Reads one call, carries it out, and answers once, twice or not at all."""
        bank = cast(Bank, self.server)
        call = self.path.strip("/")
        if call not in ("reserve", "pay", "release"):
            return self._send(Answer(404, {"error": "no such call"}))
        try:
            request = read_request(call, self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        except Malformed as error:
            return self._send(Answer(400, {"error": str(error)}))
        in_mood = bank.books.mood(request)
        bank.wait(bank.delays.slow_s if in_mood is Mood.SLOW else bank.delays.usual_s)
        if in_mood is Mood.BUSY:
            return self._send(bank.books.turn_away(request))
        answer = bank.books.carry_out(request, in_mood)
        if in_mood is Mood.CUT:
            return None
        if in_mood is Mood.HANG:
            return bank.wait(bank.delays.hang_s)
        self._send(answer)
        if in_mood is Mood.TWICE:
            self._send(bank.books.carry_out(request, in_mood))

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the books have every request."""


def serve(directory: Path, delays: Delays, settle_s: float) -> None:
    """Opens the bank until standard input closes, that is, until the process that started it is gone.

    The books are `bank.db`; the address is in `bank.address` once the bank has said `ready`.
    """
    with closing(Books(directory / "bank.db", settle_s)) as books, Bank(books, delays) as bank:
        threading.Thread(target=_close_with_parent, args=(bank,), daemon=True).start()
        draft = directory / "bank.address.new"
        draft.write_text(f"127.0.0.1:{bank.server_address[1]}")
        os.replace(draft, directory / "bank.address")
        print("ready", flush=True)
        bank.serve_forever(poll_interval=0.05)


def _close_with_parent(bank: Bank) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    bank.closing.set()
    bank.shutdown()


def main() -> None:
    """The command line: `python -m examples.flight_refunds.bank DIRECTORY`."""
    parser = argparse.ArgumentParser(description="A small bank with moods. Closes when its standard input does.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--usual-s", type=float, default=Delays.usual_s)
    parser.add_argument("--slow-s", type=float, default=Delays.slow_s)
    parser.add_argument("--hang-s", type=float, default=Delays.hang_s)
    parser.add_argument("--settle-s", type=float, default=0.0)
    options = parser.parse_args()
    serve(options.directory, Delays(options.usual_s, options.slow_s, options.hang_s), options.settle_s)


if __name__ == "__main__":
    main()
