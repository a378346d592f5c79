"""One suite for every database: SQLite's file, and a PostgreSQL server of the test's own."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from glob import glob
from pathlib import Path
from tempfile import mkdtemp

import pytest

from joulecast.errors import RunsError, StoreError, UnknownRunError, UsageError
from joulecast.measure.store import STORE_VERSION, Store, default_store
from joulecast.measure.stored import RUN_COLUMNS, StoredRun
from joulecast.results import Measurement, RunStatus

MakeRun = Callable[..., Measurement]

#: A writer of many runs, as another process.
WRITER = """
import sys
from joulecast.measure.store import Store
from joulecast.results import MEASURED_QUANTITIES, MeasuredQuantity, Measurement, RunStatus

url, name, n_runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
absent = {name: MeasuredQuantity.absent("no sensor") for name in MEASURED_QUANTITIES}
with Store.open(url) as store:
    for i in range(n_runs):
        store.add(
            Measurement(
                run_id=f"{name}-{i}",
                started_at="2026-01-31T12:00:00+00:00",
                duration_s=1.0,
                status=RunStatus.COMPLETE,
                **absent,
            )
        )
        print(i, flush=True)
"""


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Start Debian's server on a folder and a socket of its own; return its URL."""
    found = sorted(glob("/usr/lib/postgresql/*/bin/initdb"))
    if not found:
        if os.environ.get("CI"):
            pytest.fail("PostgreSQL is not installed: .ci/run installs Debian's postgresql")
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    pytest.importorskip("psycopg")
    programs = Path(found[-1]).parent
    folder = Path(mkdtemp(prefix="joulecast-pg-", dir="/tmp"))  # a socket's path must be short
    as_user: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*as_user, str(programs / program), *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    data = str(folder / "data")
    run("initdb", "-D", data, "-U", "runner", "--auth=trust", "--no-sync", "-E", "UTF8")
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c max_connections=40"
    run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql://runner@/postgres?host={folder}"
    finally:
        run("pg_ctl", "-D", data, "-w", "-m", "fast", "stop")
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    import sqlalchemy as sa

    server: str = request.getfixturevalue("postgresql")
    engine = sa.create_engine(server.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS runs, joulecast_store")
    engine.dispose()
    return server


class TestEveryDatabase:
    def test_a_run_comes_back_as_it_was(self, url: str, make_run: MakeRun) -> None:
        run = make_run(flags=("a flag",), versions={"torch": "2.14.1"}, repeat_step_time_s=(0.2, 0.3))
        with Store.open(url) as store:
            store.add(run)
        with Store.open(url, create=False) as store:
            assert store.get("r1").measurement == run
            assert store.get("r1").row == run.to_row()
            assert list(store) == [run.to_row()]
            assert tuple(next(iter(store))) == tuple(RUN_COLUMNS)
            assert len(store) == 1

    def test_the_start_of_an_id_is_enough_where_one_run_starts_so(self, url: str, make_run: MakeRun) -> None:
        with Store.open(url) as store:
            for run_id in ("abc-1", "abc-2", "abc", "x_z", "xyz"):
                store.add(make_run(run_id))
            assert store.get("abc-1").run_id == "abc-1"
            assert store.get("abc").run_id == "abc"  # all of an id beats the start of others
            assert store.get("x_").run_id == "x_z"  # not a wildcard
            with pytest.raises(UsageError, match="several runs start with 'ab': abc, abc-1, abc-2"):
                store.get("ab")
            with pytest.raises(UnknownRunError, match="unknown run 'abd'; did you mean"):
                store.get("abd")
            with pytest.raises(UnknownRunError):
                store.get("")

    def test_filters(self, url: str, make_run: MakeRun) -> None:
        with Store.open(url) as store:
            store.add(make_run("a"))
            store.add(make_run("b", model="hf/bert-base-uncased", started_at="2026-02-01T00:00:00+00:00"))
            store.add(make_run("c", status=RunStatus.FAILED, error="it fell"))
            assert [r.run_id for r in store.list()] == ["a", "b", "c"]
            assert [r.run_id for r in store.list(model="BERT")] == ["b"]
            assert [r.run_id for r in store.list(model="%")] == []
            assert [r.run_id for r in store.list(status="failed")] == ["c"]
            assert [r.run_id for r in store.list(since="2026-02")] == ["b"]
            assert [r.run_id for r in store.list(limit=2)] == ["b", "c"]
            with pytest.raises(UsageError, match="cannot list runs by colour"):
                store.list(colour="red")

    def test_a_run_is_added_once_and_updated_any_time(self, url: str, make_run: MakeRun) -> None:
        with Store.open(url) as store:
            store.update(make_run(status=RunStatus.PARTIAL))  # not there yet: added
            with pytest.raises(RunsError, match=r"run r1 is in .* already"):
                store.add(make_run())
            store.update(make_run(precision="fp32"))
            assert store.get("r1").status is RunStatus.COMPLETE
            assert store.get("r1").row["precision"] == "fp32"
            assert len(store) == 1

    def test_what_comes_twice_counts_once_and_an_end_replaces_a_beginning(
        self, url: str, make_run: MakeRun
    ) -> None:
        partial = StoredRun.of(make_run("a", status=RunStatus.PARTIAL))
        ended, other = StoredRun.of(make_run("a")), StoredRun.of(make_run("b"))
        changed = StoredRun.of(make_run("b", precision="fp32"))
        with Store.open(url) as store:
            assert store.add_all([partial, other, other]).n_known == 1
            added = store.add_all([ended, changed])
            assert (added.n_added, added.n_replaced, added.n_known) == (0, 1, 1)
            assert added.differing == ("b",)
            assert store.add_all([partial]).differing == ()  # an earlier state of it is no other run
            assert [r.status for r in store.list()] == [RunStatus.COMPLETE, RunStatus.COMPLETE]
            assert store.get("b").row["precision"] == "bf16"

    def test_runs_come_in_together_or_not_at_all(self, url: str, make_run: MakeRun) -> None:
        def broken() -> Iterator[StoredRun]:
            yield StoredRun.of(make_run("a"))
            raise RunsError("a corrupt line")

        with Store.open(url) as store:
            with pytest.raises(RunsError, match="a corrupt line"):
                store.add_all(broken())
            assert len(store) == 0

    def test_a_store_of_a_newer_version_is_left_alone(self, url: str, make_run: MakeRun) -> None:
        with Store.open(url) as store:
            store.add(make_run())
            with store._engine.begin() as connection:
                connection.exec_driver_sql(f"UPDATE joulecast_store SET version = {STORE_VERSION + 1}")
        with pytest.raises(StoreError, match=f"version {STORE_VERSION + 1}, this joulecast reads .*update"):
            Store.open(url)

    @pytest.mark.slow
    def test_eight_processes_write_a_thousand_runs_each(self, url: str) -> None:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, url, f"p{i}", "1000"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(8)
        ]
        assert [writer.communicate()[1] for writer in writers] == [""] * 8
        with Store.open(url, create=False) as store:
            assert len(store) == 8000
            assert len({row["run_id"] for row in store}) == 8000


def test_killed_writers_lose_nothing_that_was_recorded(url: str) -> None:
    for attempt in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, url, f"k{attempt}", "100000"], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "0\n"
            time.sleep(0.05 * (attempt + 1))
            writer.send_signal(signal.SIGKILL)
            said = writer.stdout.read().split("\n")
        n_recorded = int(said[-2]) + 1 if len(said) > 1 else 1  # the last whole line
        with Store.open(url, create=False) as store:
            found = {row["run_id"] for row in store}
        assert {f"k{attempt}-{i}" for i in range(n_recorded)} <= found


# --- SQLite ---------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_a_file_reads_without_joulecast(path: Path, make_run: MakeRun) -> None:
    with Store.open(path) as store:
        store.add(make_run())
        store.add_all([StoredRun(row=make_run("foreign").to_row() | {"source": "a paper"})])
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT run_id, source, step_time_s, document FROM runs").fetchall()
    connection.close()
    assert rows[0][:3] == ("r1", "joulecast", 0.25)
    assert json.loads(rows[0][3])["step_time_s"]["method"] == "clock"
    assert rows[1] == ("foreign", "a paper", 0.25, None)


def test_columns_may_be_corrected_by_hand(path: Path, make_run: MakeRun) -> None:
    with Store.open(path) as store:
        store.add(make_run())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET suspect = 'the fan was off'")
    connection.close()
    with Store.open(path) as store:
        assert store.get("r1").row["suspect"] == "the fan was off"


def test_a_locked_file_is_waited_for_and_then_named(path: Path, make_run: MakeRun) -> None:
    with Store.open(path, busy_timeout_s=0.05) as store:
        store.add(make_run("before"))
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"runs\.db is locked: another process .* try again"):
            store.add(make_run("during"))
        assert len(store) == 1  # readers go on
        holder.execute("COMMIT")
        holder.close()
        store.add(make_run("after"))
        assert [r.run_id for r in store.list()] == ["before", "after"]


def test_a_full_disk_loses_nothing(path: Path, make_run: MakeRun) -> None:
    with Store.open(path) as store:
        store.add(make_run("before"))
        with store._engine.connect() as connection:  # SQLite's own bound gives the error of a full disk
            n_pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        _bound_pages(store, int(n_pages or 0))
        with pytest.raises(StoreError, match="has no room: the disk is full"):
            store.add(make_run("after", notes=("x" * 100_000,)))
        assert [r.run_id for r in store.list()] == ["before"]


def _bound_pages(store: Store, n_pages: int) -> None:
    from sqlalchemy import event

    store._engine.dispose()

    @event.listens_for(store._engine, "connect")
    def bound(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count={n_pages}")


def _text(path: Path) -> None:
    path.write_text("not a database, but long enough to look like a file with a header " * 20)


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "message"), [(_text, "is not a store of runs, or is damaged"), (_folder, "cannot be opened")]
)
def test_what_is_no_store(path: Path, make: Callable[[Path], None], message: str) -> None:
    make(path)
    with pytest.raises(StoreError, match=message):
        Store.open(path)


def test_reading_makes_no_store(path: Path) -> None:
    with pytest.raises(UsageError, match="there is no store"):
        Store.open(path, create=False)
    assert not path.exists()
    sqlite3.connect(path).close()
    path.touch()
    with pytest.raises(UsageError, match="holds no runs"):
        Store.open(path, create=False)


@pytest.mark.parametrize("url", ["://", "nosuchdatabase://host/name"])
def test_a_wrong_address_is_the_users(url: str) -> None:
    with pytest.raises(UsageError):
        Store.open(url)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError) as caught:
        Store.open("postgresql://someone:secret@127.0.0.1:1/runs?connect_timeout=2")
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_corrupt_record_is_named(path: Path, make_run: MakeRun) -> None:
    with Store.open(path) as store:
        store.add(make_run())
        with store._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE runs SET document = '{'")
        with pytest.raises(RunsError, match=r"run r1 of .*runs\.db"):
            store.get("r1")


def test_where_runs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_run: MakeRun) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("JOULECAST_STORE", raising=False)
    assert default_store() == str(tmp_path / "joulecast" / "runs.db")
    with Store.open() as store:  # its folder is made
        store.add(replace(make_run(), run_id="r2"))
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "other.db"))
    with Store.open() as store:
        assert len(store) == 0
