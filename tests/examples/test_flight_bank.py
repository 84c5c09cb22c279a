"""The bank of the main example and the auditor who reads its file, without perdure."""

from __future__ import annotations

import ast
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from examples.flight_refunds import audit as audit_module
from examples.flight_refunds import bank as bank_module
from examples.flight_refunds.audit import audit, keys_by_run, owed, paid_by_run
from examples.flight_refunds.bank import FROZEN, Bank, Books, Delays, Malformed, Mood, Request, mood, read_request
from examples.flight_refunds.bank_client import BankClient, BankRefused, BankUnreachable, Payment
from examples.flight_refunds.pricing import Refund

OWED = owed()
PAYABLE = sorted(OWED.keys() - set(FROZEN))


def run_in_mood(wanted: Mood, call: str = "pay") -> str:
    """A run whose first such call meets the bank in this mood, and whose second one does not."""
    return next(run for run in PAYABLE if mood(call, run, 1) is wanted and mood(call, run, 2) is Mood.FINE)


def refunds_of(run: str) -> list[Refund]:
    return [Refund(name, cents) for name, cents in OWED[run].items()]


def request(call: str, run: str, key: str = "k", hold: str = "", refunds: tuple[tuple[str, int], ...] = ()) -> Request:
    cents = sum(part for _, part in refunds) if refunds else sum(OWED[run].values())
    return Request(call, key, run, hold, cents, refunds)


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path / "bank.db")) as opened:
        yield opened


def reserve(books: Books, run: str) -> str:
    return str(books.carry_out(request("reserve", run, f"{run}/reserve")).body["hold"])


def pay(books: Books, run: str, hold: str, key: str | None = None) -> int:
    refunds = tuple(OWED[run].items())
    return books.carry_out(request("pay", run, key or f"{run}/pay", hold, refunds)).status


def insist(client: BankClient, run: str) -> str:
    """Reserves the run's money, asking until there is an answer: the bank may be in any mood for this call."""
    while True:
        try:
            return client.reserve(f"{run}/reserve", run, sum(OWED[run].values()))
        except BankUnreachable:
            continue


def transfers(folder: Path) -> int:
    return sum(count for count, _ in paid_by_run(folder / "bank.db").values())


def impatient(folder: Path) -> BankClient:
    """Who soon gives up waiting for that bank."""
    return BankClient(folder / "bank.address", timeout_s=0.2)


@contextmanager
def open_bank(folder: Path) -> Generator[BankClient]:
    """A bank on a real socket, in a thread, and who asks it and waits for the answer however long that takes.

    Its silence is ended by closing it, so no test waits for it but one that does so on purpose; see `impatient`.
    """
    with closing(Books(folder / "bank.db")) as books, Bank(books, Delays(0.0, 0.0, 60.0)) as bank:
        thread = threading.Thread(target=bank.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        (folder / "bank.address").write_text(f"127.0.0.1:{bank.server_address[1]}")
        try:
            yield BankClient(folder / "bank.address", timeout_s=50)
        finally:
            bank.closing.set()
            bank.shutdown()
            thread.join()


# --- books ------------------------------------------------------------------------------------------------------------


def test_a_key_moves_money_once(books: Books, tmp_path: Path) -> None:
    run = PAYABLE[0]
    hold = reserve(books, run)
    first = books.carry_out(request("pay", run, "pay", hold, tuple(OWED[run].items())))
    again = books.carry_out(request("pay", run, "pay", hold, tuple(OWED[run].items())))
    assert first.status == again.status == 200
    assert (first.body["replayed"], again.body["replayed"]) == (False, True)
    assert first.body["paid_cents"] == again.body["paid_cents"] == sum(OWED[run].values())
    assert transfers(tmp_path) == len(OWED[run])


@pytest.mark.parametrize(("settle_s", "settled"), [(0.0, True), (3600.0, False)])
def test_a_payment_takes_a_moment_to_settle(settle_s: float, settled: bool, tmp_path: Path) -> None:
    run = PAYABLE[0]
    paid = request("pay", run, "pay", refunds=tuple(OWED[run].items()))
    with closing(Books(tmp_path / "bank.db", settle_s)) as books:
        paid = replace(paid, hold=reserve(books, run))
        assert books.carry_out(paid).body["settled"] is settled
        assert books.carry_out(paid).body["settled"] is settled
    with closing(Books(tmp_path / "bank.db", settle_s)) as books:
        assert books.carry_out(paid).body["settled"] is True
    assert transfers(tmp_path) == len(OWED[run])


def test_a_key_used_for_something_else_is_refused(books: Books, tmp_path: Path) -> None:
    run = PAYABLE[0]
    hold = reserve(books, run)
    assert pay(books, run, hold, "k") == 200
    assert books.carry_out(request("pay", run, "k", hold, (("other", 1),))).status == 409
    assert transfers(tmp_path) == len(OWED[run])


def test_a_hold_is_for_one_sum_and_ends_when_it_is_spent_or_released(books: Books) -> None:
    spent, released = PAYABLE[:2]
    hold = reserve(books, spent)
    assert books.carry_out(request("pay", spent, "wrong sum", hold, (("one", 1),))).status == 409
    assert pay(books, spent, hold) == 200
    assert books.carry_out(request("release", spent, "release spent", hold)).status == 409
    hold = reserve(books, released)
    assert books.carry_out(request("release", released, "release", hold)).status == 200
    assert pay(books, released, hold) == 409


def test_the_bank_itself_does_not_keep_anybody_from_paying_twice(books: Books, tmp_path: Path) -> None:
    """Otherwise `doubled` would be 0 whatever the pipeline does."""
    run = PAYABLE[0]
    hold = reserve(books, run)
    assert pay(books, run, hold, "first key") == pay(books, run, hold, "second key") == 200
    assert transfers(tmp_path) == 2 * len(OWED[run])


def test_frozen_accounts_are_refused_and_their_budget_can_be_released(books: Books, tmp_path: Path) -> None:
    hold = reserve(books, FROZEN[0])
    assert pay(books, FROZEN[0], hold) == 402
    assert books.carry_out(request("release", FROZEN[0], "release", hold)).status == 200
    assert paid_by_run(tmp_path / "bank.db") == {}


def test_every_request_is_written_down(books: Books, tmp_path: Path) -> None:
    run = PAYABLE[0]
    books.turn_away(request("reserve", run, "first"))
    pay(books, run, reserve(books, run))
    with closing(sqlite3.connect(tmp_path / "bank.db")) as file:
        rows = file.execute("SELECT call, key, run, cents, status FROM request ORDER BY id").fetchall()
    cents = sum(OWED[run].values())
    assert rows == [
        ("reserve", "first", run, cents, 503),
        ("reserve", f"{run}/reserve", run, cents, 200),
        ("pay", f"{run}/pay", run, cents, 200),
    ]


@pytest.mark.parametrize(
    ("call", "raw"),
    [
        ("reserve", b"{"),
        ("reserve", b"[]"),
        ("reserve", b'{"key": "", "run": "r", "cents": 1}'),
        ("reserve", b'{"key": "k", "run": "r", "cents": -1}'),
        ("release", b'{"key": "k", "run": "r"}'),
        ("pay", b'{"key": "k", "run": "r", "hold": "h"}'),
        ("pay", b'{"key": "k", "run": "r", "hold": "h", "refunds": [{"id": "a", "cents": 0}]}'),
    ],
)
def test_what_the_bank_cannot_read(call: str, raw: bytes) -> None:
    with pytest.raises(Malformed):
        read_request(call, raw)


# --- moods ------------------------------------------------------------------------------------------------------------


def test_moods_are_the_same_every_time_and_all_of_them_happen() -> None:
    first = Counter(mood("pay", run, 1) for run in PAYABLE)
    assert first == Counter(mood("pay", run, 1) for run in PAYABLE)
    assert first.keys() == set(Mood)
    assert first[Mood.FINE] > len(PAYABLE) / 3


@pytest.mark.parametrize("bad", [Mood.BUSY, Mood.CUT, Mood.HANG])
def test_an_answer_that_did_not_come_is_asked_for_again_with_the_same_key(bad: Mood, tmp_path: Path) -> None:
    run = run_in_mood(bad)
    with open_bank(tmp_path) as client:
        hold = insist(impatient(tmp_path), run)
        with pytest.raises(BankUnreachable):
            (impatient(tmp_path) if bad is Mood.HANG else client).pay("pay", run, hold, refunds_of(run))
        while bad is Mood.HANG and not transfers(tmp_path):
            pass  # a slow bank has not paid yet when we give it up
        before = transfers(tmp_path)
        assert client.pay("pay", run, hold, refunds_of(run)) == Payment(sum(OWED[run].values()), settled=True)
    assert before == (0 if bad is Mood.BUSY else len(OWED[run]))
    assert transfers(tmp_path) == len(OWED[run])


@pytest.mark.parametrize("good", [Mood.SLOW, Mood.TWICE, Mood.FINE])
def test_slow_and_double_answers_are_answers(good: Mood, tmp_path: Path) -> None:
    run = run_in_mood(good)
    with open_bank(tmp_path) as client:
        hold = insist(impatient(tmp_path), run)
        assert client.pay("pay", run, hold, refunds_of(run)) == Payment(sum(OWED[run].values()), settled=True)
    assert transfers(tmp_path) == len(OWED[run])
    with closing(sqlite3.connect(tmp_path / "bank.db")) as file:
        (carried_out,) = file.execute("SELECT count(*) FROM request WHERE call = 'pay'").fetchone()
    assert carried_out == (2 if good is Mood.TWICE else 1)


def test_a_refusal_is_not_a_failure_to_answer(tmp_path: Path) -> None:
    run = next(run for run in FROZEN if mood("pay", run, 1) in (Mood.FINE, Mood.TWICE, Mood.SLOW))
    with open_bank(tmp_path) as client:
        hold = insist(impatient(tmp_path), run)
        with pytest.raises(BankRefused, match="frozen"):
            client.pay("pay", run, hold, refunds_of(run))


def test_no_bank_at_all(tmp_path: Path) -> None:
    with pytest.raises(BankUnreachable, match="FileNotFoundError"):
        BankClient(tmp_path / "bank.address", 0.1).reserve("k", PAYABLE[0], 1)


def test_the_bank_process_ends_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", bank_module.__name__, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        client = BankClient(tmp_path / "bank.address", timeout_s=50)
        run = run_in_mood(Mood.FINE, "reserve")
        assert client.reserve("k", run, 1).startswith("hold-")
        process.stdin.close()
        assert process.wait(50) == 0


# --- audit ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def perfect_month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a bank that paid everybody once."""
    path = tmp_path_factory.mktemp("bank") / "bank.db"
    with closing(Books(path)) as books:
        for run in OWED:
            hold = reserve(books, run)
            if pay(books, run, hold) != 200:
                books.carry_out(request("release", run, f"{run}/release", hold))
    return path


@pytest.fixture
def month(perfect_month: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copy(perfect_month, tmp_path / "bank.db"))


def test_audit_of_a_perfect_month(month: Path) -> None:
    found = audit(month)
    expected = sum(len(OWED[run]) for run in PAYABLE)
    assert (found.paid, found.doubled, found.lost, found.refused_runs) == (expected, 0, 0, 6)
    assert found.paid_cents == sum(sum(OWED[run].values()) for run in PAYABLE)


def test_audit_sees_a_refund_paid_under_a_second_key(month: Path) -> None:
    run = PAYABLE[0]
    with closing(Books(month)) as books:
        assert pay(books, run, reserve(books, run), "another key") == 200
    assert audit(month).doubled == len(OWED[run])
    assert audit(month).paid == sum(len(OWED[run]) for run in PAYABLE[1:])


def test_the_keys_of_each_run(month: Path) -> None:
    run = PAYABLE[0]
    assert keys_by_run(month) == {run: {f"{run}/pay"} for run in PAYABLE}
    with closing(Books(month)) as books:
        assert pay(books, run, reserve(books, run), "another key") == 200
    assert keys_by_run(month)[run] == {f"{run}/pay", "another key"}


def test_audit_sees_money_that_nobody_was_owed(month: Path) -> None:
    run = PAYABLE[0]
    with closing(Books(month)) as books:
        hold = str(books.carry_out(Request("reserve", "extra", run, "", 7, ())).body["hold"])
        assert books.carry_out(request("pay", run, "extra/pay", hold, (("nobody", 7),))).status == 200
    assert audit(month).doubled == 1


def test_audit_sees_what_was_not_paid_or_not_in_full(month: Path) -> None:
    unpaid, short = PAYABLE[:2]
    with closing(sqlite3.connect(month)) as file, file:
        file.execute("DELETE FROM transfer WHERE run = ?", (unpaid,))
        file.execute("UPDATE transfer SET cents = 1 WHERE run = ?", (short,))
    found = audit(month)
    assert (found.lost, found.doubled) == (len(OWED[unpaid]) + len(OWED[short]), 0)


def test_audit_sees_budget_that_was_never_freed(month: Path) -> None:
    with closing(Books(month)) as books:
        books.carry_out(request("reserve", FROZEN[0], "once more"))
    assert audit(month).lost == 1


@pytest.mark.parametrize("module", [bank_module, audit_module])
def test_bank_and_auditor_know_neither_perdure_nor_the_example(module: object) -> None:
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text(encoding="utf-8"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= set(sys.stdlib_module_names)


def test_audit_command_without_a_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", audit_module.__name__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("there is no ")
    assert os.listdir(tmp_path) == []
