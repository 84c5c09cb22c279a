"""Every command has a table of wrong uses: one or two lines, the right exit code, never a traceback [I-2]."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perdure.cli import main as entry
from perdure.cli.exits import Exit
from tests.cli.harness import Cli
from tests.cli.test_looking import run_id

U, N, C, S = Exit.USAGE, Exit.NOT_FOUND, Exit.CONFLICT, Exit.STORE
STORE = ("--store", "sqlite:///shop.db")
NO_STORE = ("--store", "sqlite:///missing.db")
Use = tuple[str, Exit, str]

# GOOD, BAD, STUCK, ODD, LATER stand for ids of runs; what is said is in the message or the hint.
WRONG: dict[str, list[Use]] = {
    "run": [
        ("run nowhere:app", U, "there is no module 'nowhere' here"),
        ("run shop:app --app other:app", U, "two applications given"),
        ("run shop:app extra", U, "unexpected extra argument"),
        ("run --concurrency 0", U, "'--concurrency'"),
        ("run --concurrency few", U, "'--concurrency'"),
        ("run --drain-timeout never", U, "--drain-timeout: 'never' is not a duration"),
        ("run --lease 0", U, "--lease: '0' is too short for a lease"),
        ("run --store shop.db", U, "a SQLite file is sqlite:///shop.db"),
        ("run --store mysql://x", U, "no store is called 'mysql://x'"),
        ("run --store sqlite:///no/folder/x.db", S, "does not exist"),
        ("run --store sqlite:///text.db --until-idle", S, "is not a SQLite database"),
        ("run --store sqlite:///foreign.db --until-idle", S, "is a database of another program"),
    ],
    "worker": [
        ("worker shop:app --app other:app", U, "two applications given"),
        ("worker shop:app extra", U, "unexpected extra argument"),
        ("worker --processes 0", U, "'--processes'"),
        ("worker --processes many", U, "'--processes'"),
        ("worker --concurrency 0", U, "'--concurrency'"),
        ("worker --lease soon", U, "--lease: 'soon' is not a duration"),
        ("worker --lease 100ms", U, "--lease: '100ms' is too short for a lease"),
        ("worker --drain-timeout never", U, "--drain-timeout: 'never' is not a duration"),
    ],
    "workers": [
        ("workers extra", U, "unexpected extra argument"),
        ("workers --store shop.db", U, "a SQLite file is sqlite:///shop.db"),
        ("workers --store memory://", U, "lives inside of one process"),
    ],
    "dev": [
        ("dev nowhere:app", U, "there is no module 'nowhere' here"),
        ("dev nowhere.py:app", U, "there is no file nowhere.py"),
        ("dev shop:job", U, "is of type Pipeline, not an App"),
        ("dev shop:nothing", U, "has no attribute 'nothing'"),
        ("dev shop", U, "is not of the form module:attribute"),
        ("dev shop:app --app other:app", U, "two applications given"),
        ("dev --concurrency 0", U, "'--concurrency'"),
        ("dev --drain-timeout never", U, "--drain-timeout: 'never' is not a duration"),
        ("dev --poll often", U, "--poll: 'often' is not a duration"),
        ("dev --poll 0", U, "--poll: '0' is too often"),
        ("dev --watch missing", U, "--watch: there is no missing"),
        ("dev --ignore=", U, "--ignore is empty"),
        ("dev --store shop.db", U, "a SQLite file is sqlite:///shop.db"),
        ("dev --store sqlite:///text.db", S, "is not a SQLite database"),
        ("dev --store sqlite:///foreign.db", S, "is a database of another program"),
    ],
    "submit": [
        ("submit", U, "missing argument 'pipeline'"),
        ("submit jbo {}", N, "did you mean 'job'?"),
        ("submit job", U, "$: "),
        ("submit job {}", U, "name"),
        ('submit job {"name":7}', U, "$.name"),
        ('submit job {"name":"x","trouble":"big"}', U, "$.trouble"),
        ("submit job {name:x}", U, "single quotes"),
        ("submit job @missing", U, "'missing' cannot be read"),
        ("submit job -", U, "not JSON"),
        ('submit job {"name":"x"} --delay soon', U, "--delay: 'soon' is not a duration"),
        ('submit job {"name":"x"} --delay=-1s', U, "--delay: '-1s' is not a duration"),
        ('submit job {"name":"x"} --start-at soon', U, "--start-at: 'soon' is not a time"),
        ('submit job {"name":"x"} --delay 1s --start-at 2100-01-01', U, "exclude each other"),
        ('submit job {"name":"x"} --deadline soon', U, "--deadline: 'soon' is not a duration"),
        ('submit job {"name":"x"} --timeout 1s', U, "--timeout needs --wait"),
        ('submit job {"name":"x"} -a novalue', U, "'novalue' is not of the form KEY=VALUE"),
        ('submit job {"name":"x"} -a a=1 -a a=2', U, "'a' is given twice"),
        ('submit job {"name":"x"} --resource=', U, "resource"),
        ('submit job {"name":"x"} --tenant=', U, "tenant"),
        ('submit job {"name":"stuck"}', C, "with other input"),
        ('submit job {"name":"x"} --on-busy shout', U, "'--on-busy'"),
        ('submit job {"name":"stuck"} --on-busy reject', C, "has run"),
        ('submit job {"name":"x"} --key=', U, "idempotency_key"),
        ('submit job {"name":"x"} --key k --key-window 0s', U, "longer than nothing"),
        ('submit job {"name":"x"} --key k --key-window soon', U, "--key-window: 'soon' is not a duration"),
        ('submit job {"name":"x"} --key-window 1h', U, "--key-window needs --key"),
        ("submit job --many missing", U, "'missing' cannot be read"),
        ("submit job --many shop.db", U, "--many: not UTF-8"),
        ("submit job --many shop.py", U, "--many: line 2: not JSON"),
        ("submit jbo --many shop.py", N, "did you mean 'job'?"),
        ("submit job {} --many shop.py", U, "--many and INPUT exclude each other"),
        ("submit job --many shop.py --key k", U, "--many and --key exclude each other"),
        ("submit job --many shop.py --wait", U, "--many and --wait exclude each other"),
        ("submit job --many shop.py --resource r", U, "--many and --resource exclude each other"),
        ("submit job --many shop.py --on-busy queue", U, "--many and --on-busy queue exclude each other"),
        ("submit job {} --app shop:job", U, "is of type Pipeline, not an App"),
        ('submit job {"name":"x"} --store memory://', U, "lives inside of one process"),
    ],
    "list": [
        ("list extra", U, "unexpected extra argument"),
        ("list --pipeline \udc80", U, "--pipeline must not hold a lone surrogate"),
        ("list --resource \udc80", U, "--resource must not hold a lone surrogate"),
        ("list --status heldd", U, "did you mean 'held'?"),
        ("list --limit 0", U, "'--limit'"),
        ("list --limit 1000", U, "'--limit'"),
        ("list --since yesterday", U, "--since: 'yesterday' is not a duration"),
        ("list --before 2100-13-01", U, "--before: '2100-13-01' is not a time"),
        ("list --after nothing", U, "after='nothing' is no place in a list"),
        ("list --after aeaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", U, "is no place in a list"),
        ("list --waiting for", U, "--waiting: no run waits for 'for'"),
        ("list --waiting masage", U, "did you mean 'message'?"),
        ("list --annotation team", U, "--annotation: 'team' is not KEY=VALUE"),
        ("list --annotation =a", U, "--annotation: '=a' is not KEY=VALUE"),
        ("list --annotation a=b --annotation a=c", U, "'a' is given twice, with two values"),
        ("list --ended-since soon", U, "--ended-since: 'soon' is not a duration"),
        ("list --ended-before 2100-13-01", U, "--ended-before: '2100-13-01' is not a time"),
        ("list --step \udc80", U, "--step must not hold a lone surrogate"),
        ("list --count --watch", U, "--count and --watch are given"),
        ("list --store memory://", U, "lives inside of one process"),
        ("list --app nowhere:app", U, "there is no module 'nowhere' here"),
    ],
    "show": [
        ("show", U, "missing argument 'run'"),
        ("show abc", U, "give at least its first 6 characters"),
        ("show nothing-here", N, "the newest run is LATER"),
        ("show GOODx", N, "did you mean GOOD?"),
    ],
    "watch": [
        ("watch", U, "missing argument 'run'"),
        ("watch nothing", N, "there is no run"),
        ("watch LATER --timeout long", U, "'long' is not a duration"),
    ],
    "explain": [("explain", U, "missing argument 'run'"), ("explain nothing", N, "there is no run 'nothing'")],
    "journal": [
        ("journal", U, "missing argument 'run'"),
        ("journal nothing", N, "there is no run"),
        ("journal GOOD --after x", U, "'--after'"),
        ("journal GOOD --limit 0", U, "'--limit'"),
    ],
    "verify": [("verify nothing", N, "there is no run 'nothing'"), ("verify GOOD BAD", U, "unexpected extra argument")],
    "check": [
        ("check nowhere:app", U, "there is no module 'nowhere' here"),
        ("check shop:job", U, "is of type Pipeline, not an App"),
        ("check shop:app --app other:app", U, "two applications given"),
        ("check --store memory://", U, "lives inside of one process"),
        ("check --store sqlite:///missing.db", S, "there is no store"),
        ("check --store sqlite:///foreign.db", S, "is a database of another program"),
        ("check --store sqlite:///shop.db --ledgers x", U, "exclude each other"),
        ("check --ledgers missing", U, "--ledgers: missing cannot be read"),
        ("check --ledgers shop.py", U, "this is no export of ledgers"),
        ("check --ledgers .", U, "cannot be read"),
        ("check --lock missing", U, "--lock: missing cannot be read"),
        ("check --lock shop.py", U, "this is no lock file"),
        ("check --lock twice.lock", U, "stands in the pipeline twice"),
        ("check --lock empty.lock", U, "it has no steps"),
        ("check --write-lock --lock no/folder/x.lock", U, "cannot be written"),
        ("check extra:app more", U, "unexpected extra argument"),
    ],
    "deploy": [
        ("deploy nowhere:app", U, "there is no module 'nowhere' here"),
        ("deploy shop:app --app other:app", U, "two applications given"),
        ("deploy shop:nothing", U, "has no attribute 'nothing'"),
        ("deploy --pipeline jbo", N, "did you mean 'job'?"),
        ("deploy --rollback 1", U, "--rollback needs --pipeline"),
        ("deploy --rollback 0 --pipeline job", U, "'--rollback'"),
        ("deploy --rollback 9 --pipeline job", N, "has no generation 9; it has 1"),
        ("deploy --rollback 1 --pipeline jbo", N, "no topology of pipeline 'jbo'"),
        ("deploy --rollback 1 --pipeline job --store sqlite:///missing.db", S, "there is no store"),
        ("deploy --store sqlite:///no/folder/x.db", S, "does not exist"),
        ("deploy --store sqlite:///foreign.db", S, "is a database of another program"),
        ("deploy --store memory://", U, "lives inside of one process"),
        ("deploy none.py:app", U, "there is nothing to deploy"),
        ("deploy hollow.py:app", U, "has no steps"),
        ("deploy double.py:app", U, "stands in it twice"),
    ],
    "deployments": [
        ("deployments nothing", N, "the store knows no pipeline 'nothing'"),
        ("deployments job extra", U, "unexpected extra argument"),
        ("deployments --store memory://", U, "lives inside of one process"),
    ],
    "drain": [
        ("drain nowhere:app", U, "there is no module 'nowhere' here"),
        ("drain --store sqlite:///shop.db --ledgers x", U, "exclude each other"),
        ("drain --ledgers missing", U, "--ledgers: missing cannot be read"),
        ("drain --store sqlite:///missing.db", S, "there is no store"),
    ],
    "limits": [
        ("limits extra", U, "unexpected extra argument"),
        ("limits --store sqlite:///missing.db", S, "there is no store"),
        ("limits --store memory://", U, "lives inside of one process"),
    ],
    "ledgers": [
        ("ledgers explain", U, "there is nothing to 'explain' about ledgers"),
        ("ledgers list --output x", U, "--output needs export"),
        ("ledgers export --output no/folder/x", U, "cannot be written"),
        ("ledgers --store memory://", U, "lives inside of one process"),
    ],
    "cancel": [
        ("cancel", U, "missing argument 'run'"),
        ("cancel nothing", N, "there is no run"),
        ("cancel GOOD", C, "has ended"),
        ("cancel LATER --reason=", U, "reason"),
    ],
    "hold": [
        ("hold", U, "missing argument 'run'"),
        ("hold GOOD", C, "has ended"),
        ("hold LATER --reason=", U, "reason"),
        ("hold LATER --pipeline job", U, "give the one or the others"),
        ("hold --pipeline job", U, "give --yes"),
        ("hold --status hold --yes", U, "did you mean 'held'?"),
        ("hold --older-than soon --yes", U, "--older-than: 'soon' is not a duration"),
        ("hold --pipeline= --yes", U, "pipeline"),
    ],
    "abandon": [
        ("abandon", U, "missing argument 'run'"),
        ("abandon STUCK", U, "give --yes"),
        ("abandon STUCK --yes", C, "not invalid"),
        ("abandon GOOD --yes", C, "has ended"),
        ("abandon nothing --yes", N, "no run"),
    ],
    "hold-pipeline": [
        ("hold-pipeline", U, "missing argument 'pipeline'"),
        ("hold-pipeline jbo", N, "was ever deployed"),
        ("hold-pipeline job --store sqlite:///missing.db", S, "there is no store"),
    ],
    "release-pipeline": [
        ("release-pipeline", U, "missing argument 'pipeline'"),
        ("release-pipeline job", C, "not held"),
    ],
    "release": [
        ("release", U, "missing argument 'run'"),
        ("release LATER", C, "not held"),
        ("release GOOD", C, "has ended"),
    ],
    "retry": [("retry", U, "missing argument 'run'"), ("retry nothing", N, "no run"), ("retry GOOD", C, "has ended")],
    "resolve": [
        ("resolve", U, "missing argument 'run'"),
        ("resolve STUCK", U, "it is not said how to resolve the step"),
        ("resolve STUCK --skip --fail no", U, "--skip and --fail exclude each other"),
        ("resolve STUCK --value {", U, "--value: not JSON"),
        ('resolve STUCK --value "x"', U, "$: "),
        ("resolve STUCK take/v1 --skip", C, "'work/v1', not 'take/v1'"),
        ("resolve STUCK take/v1 --step work/v1 --skip", U, "two steps given"),
        ("resolve --step work/v1 --skip", U, "give --yes"),
        ("resolve GOOD --skip", C, "has ended"),
    ],
    "prioritize": [
        ("prioritize LATER", U, "missing option '--priority'"),
        ("prioritize LATER --priority 10", U, "'--priority'"),
        ("prioritize LATER --priority high", U, "'--priority'"),
        ("prioritize --priority 1", U, "missing argument 'run'"),
        ("prioritize --pipeline job --priority 1", U, "give --yes"),
        ("prioritize GOOD --priority 1", C, "has ended"),
        ("prioritize nothing --priority 1", N, "no run"),
    ],
    "send": [
        ("send", U, "missing argument 'run'"),
        ("send LATER", U, "missing argument 'name'"),
        ("send LATER go {", U, "not JSON"),
        ("send LATER go @missing", U, "'missing' cannot be read"),
        ("send LATER go -", U, "not JSON"),
        ("send LATER go --name stop", U, "two names given"),
        ("send LATER go 1 --value 2", U, "the value is given twice"),
        ("send LATER go", U, "awaits no message 'go'"),
        ("send LATER go/ --store sqlite:///shop.db --key=\udc80", U, "surrogate"),
        ("send GOOD go", C, "has ended"),
        ("send nothing go", N, "no run"),
        ("send LATER go --pipeline job", U, "give the one or the others"),
        ("send --pipeline job", U, "missing argument 'name'"),
        ("send --pipeline job --name go", U, "give --yes"),
        ("send LATER go --store sqlite:///missing.db", S, "there is no store"),
    ],
    "schedules": [
        ("schedules extra", U, "not of the form module:attribute"),
        ("schedules --ticks=-1", U, "'--ticks'"),
        ("schedules --store sqlite:///missing.db", S, "there is no store"),
        ("schedules --store memory://", U, "lives inside of one process"),
    ],
    "pause-schedule": [
        ("pause-schedule", U, "missing argument 'schedule'"),
        ("pause-schedule daily", N, "the store knows no schedule 'daily'"),
        ("pause-schedule daily --store sqlite:///missing.db", S, "there is no store"),
    ],
    "resume-schedule": [
        ("resume-schedule", U, "missing argument 'schedule'"),
        ("resume-schedule daily", N, "the store knows no schedule 'daily'"),
    ],
    "archive": [
        ("archive", U, "missing option '--older-than'"),
        ("archive --older-than 30d", U, "missing option '--to'"),
        ("archive --list a --to b", U, "--list shows an archive"),
        ("archive --older-than long --to a", U, "'long' is not a duration"),
    ],
    "restore": [
        ("restore", U, "missing argument 'dest'"),
        ("restore a", U, "which runs is not said, or said twice"),
        ("restore a --all --run abcdef", U, "which runs is not said, or said twice"),
        ("restore a --since soon", U, "--since: 'soon'"),
    ],
    "gc": [
        ("gc", U, "missing option '--older-than'"),
        ("gc --older-than yesterday", U, "--older-than: 'yesterday' is not a duration"),
        ("gc --older-than 30d --limit 0", U, "'--limit'"),
    ],
    "scenario": [("scenario", U, "missing argument"), ("scenario nowhere.scenario", U, "cannot be read")],
    "doctor": [("doctor extra", U, "unexpected extra argument"), ("doctor --store shop.db", U, "sqlite:///shop.db")],
    "init": [("init", C, "nothing was written"), ("init shop.py", U, "shop.py is not a folder")],
    "version": [("version extra", U, "unexpected extra argument")],
}
READS = ("list", "show last", "watch last", "explain last", "journal last", "verify", "cancel last", "hold last",
         "release last", "retry last", "resolve last --skip", "gc --older-than 1d", "check", "drain", "deployments",
         "ledgers", "workers")  # fmt: skip


@pytest.fixture
def ids(shop: Path, names: dict[str, str]) -> dict[str, str]:
    """Give the ids behind the names in the table, and some files that are not stores."""
    (shop / "text.db").write_text("this is not a database, however long one looks at it\n" * 30)
    con = sqlite3.connect(shop / "foreign.db")
    con.execute("CREATE TABLE t (x)")
    con.close()
    (shop / "orders.py").write_text("")
    _write_odd_edits(shop)
    return {name.upper(): names[name] for name in ("good", "bad", "stuck", "odd", "later")}


def _write_odd_edits(shop: Path) -> None:
    """Applications and lock files that nobody can deploy."""
    text = (shop / "shop.py").read_text(encoding="utf-8")
    steps = "steps=(take, more, work)"
    (shop / "none.py").write_text("from perdure import App\n\napp = App(store='sqlite:///shop.db')\n")
    (shop / "hollow.py").write_text(text.replace(steps, "steps=()"))
    (shop / "double.py").write_text(text.replace(steps, "steps=(take, more, take)"))
    step = '{"id":"a/v1","state":{"type":"int","shape":""}}'
    for name, content in (("twice", f"{step},{step}"), ("empty", "")):
        pipeline = f'{{"input":{{"type":"int","shape":""}},"steps":[{content}]}}'
        (shop / f"{name}.lock").write_text(f'{{"pipelines":{{"job":{pipeline}}}}}')


def uses() -> list[Use]:
    return [use for table in WRONG.values() for use in table]


@pytest.mark.parametrize(("use", "code", "said"), uses(), ids=[use[0] for use in uses()])
def test_a_wrong_use(ids: dict[str, str], cli: Cli, use: str, code: Exit, said: str) -> None:
    command, *words = use.split(" ")
    for name, run in ids.items():
        words = [word.replace(name, run) for word in words]
        said = said.replace(name, run)
    answer = cli(command, *words)
    assert answer.code == code, answer.err
    assert "Traceback" not in answer.err
    assert said.lower() in answer.err.lower()
    assert 1 <= len(answer.err.splitlines()) <= 2
    assert answer.err.startswith("error: ")


def test_an_engine_that_cannot_start_sums_up_nothing(ids: dict[str, str], cli: Cli) -> None:
    answer = cli("run", "--store", "sqlite:///foreign.db")
    assert (answer.code, answer.out) == (S, "")
    assert "another program" in answer.err


def test_every_command_has_a_table() -> None:
    assert set(WRONG) == {name for commands in entry.COMMANDS.values() for name in commands}


@pytest.mark.parametrize("use", READS)
def test_a_store_that_is_not_there_is_not_made_by_looking(shop: Path, cli: Cli, use: str) -> None:
    answer = cli(*use.split(), *NO_STORE)
    assert answer.code == S
    assert answer.err.startswith("error: there is no store missing.db\nhint: ")
    assert not (shop / "missing.db").exists()


def test_an_application_that_breaks_is_not_needed_for_looking(shop: Path, cli: Cli) -> None:
    (shop / "shop.py").write_text("def f(:\n")
    answer = cli("list")
    assert answer.code == U
    assert "--store URL does without the application" in answer.err
    assert cli("list", *STORE).code == Exit.OK


def test_more_than_one_run_begins_like_this(shop: Path, cli: Cli) -> None:
    common = run_id(cli, "good")[:6]
    if not run_id(cli, "bad").startswith(common):  # submitted in different half minutes
        common = ""
    answer = cli("show", common or "last")
    assert answer.code == (U if common else Exit.OK)
    assert not common or "more than one run begins with" in answer.err


def test_a_second_engine_names_the_first(shop: Path, cli: Cli) -> None:
    from perdure.storage.sqlite.owner import Ownership

    ownership = Ownership.take(shop / "shop.db", "w-first")
    try:
        answer = cli("run", "--until-idle")
    finally:
        ownership.release()
    assert answer.code == S
    assert "w-first" in answer.err
    assert "stop that engine first" in answer.err
