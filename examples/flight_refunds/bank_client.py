"""How the pipeline talks to the bank: three blocking calls. Nothing here knows perdure."""

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from examples.flight_refunds.pricing import Refund


class BankUnreachable(Exception):
    """No answer, or none that can be believed. The money may have moved: ask again with the same key."""


class BankRefused(Exception):
    """The bank understood and said no. Asking again changes nothing."""


@dataclass(frozen=True)
class Payment:
    """The money has moved. Until the payment has settled, the bank wants to be asked again."""

    cents: int
    settled: bool


class BankClient:
    """Calls the bank whose address stands in the file `address`. Every call is safe to repeat with its key.

    Args:
        address: file with `host:port`; read for each call, since a bank that opens again has a new port.
        timeout_s: how long to wait for an answer.
    """

    def __init__(self, address: Path, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def reserve(self, key: str, run: str, cents: int) -> str:
        """Puts money aside for a run and returns the hold's id."""
        return str(self._call("reserve", {"key": key, "run": run, "cents": cents})["hold"])

    def pay(self, key: str, run: str, hold: str, refunds: Sequence[Refund]) -> Payment:
        """Pays all refunds out of the hold, or none. Asked again with the same key it moves nothing."""
        parts = [{"id": refund.id, "cents": refund.cents} for refund in refunds]
        answer = self._call("pay", {"key": key, "run": run, "hold": hold, "refunds": parts})
        return Payment(cast(int, answer["paid_cents"]), settled=answer["settled"] is True)

    def release(self, key: str, run: str, hold: str) -> None:
        """Gives the money of a hold back."""
        self._call("release", {"key": key, "run": run, "hold": hold})

    def _call(self, call: str, body: dict[str, object]) -> dict[str, object]:
        # One connection a call: a bank that answers twice must not have its second answer taken for another call's.
        try:
            host, port = self._address.read_text().split(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=self._timeout_s)
            try:
                connection.request("POST", f"/{call}", json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                status, answer = response.status, cast(dict[str, object], json.loads(response.read()))
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise BankUnreachable(f"{call}: {type(error).__name__}: {error}") from error
        if status >= 500:
            raise BankUnreachable(f"{call}: {answer['error']}")
        if status != 200:
            raise BankRefused(f"{call}: {answer['error']}")
        return answer
