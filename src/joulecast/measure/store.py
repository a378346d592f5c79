"""The store of runs: one SQLite file, or any database that SQLAlchemy reaches.

A table ``runs`` has the columns of a file of runs, when it started and how it ended, and the whole record as
JSON: it reads without joulecast. Enters: `StoredRun` and `Measurement`. Leaves: the same. It must not know
files of runs, nor how anything was measured.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from joulecast.errors import MissingExtraError, RunsError, StoreError, UnknownRunError, UsageError
from joulecast.measure.stored import RUN_COLUMNS, RunValue, StoredRun
from joulecast.results import Measurement

try:
    import sqlalchemy as sa
    from sqlalchemy import event
    from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
except ImportError as error:
    raise MissingExtraError("a store of runs needs SQLAlchemy: pip install 'joulecast[measure]'") from error

#: Version of the tables that this module reads and writes.
STORE_VERSION: Final = 1

#: How long a writer waits for others. [s]
BUSY_TIMEOUT_S: Final = 60.0

_FILE_NAME: Final = "runs.db"
_N_IDS_SHOWN: Final = 5
_COLUMN_TYPES: Final[Mapping[type, Any]] = {
    str: sa.Text,
    int: sa.BigInteger,
    float: sa.Double,
    bool: sa.Boolean,
}

_TABLES: Final = sa.MetaData()
_VERSION: Final = sa.Table(
    "joulecast_store", _TABLES, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False)
)
_RUNS: Final = sa.Table(
    "runs",
    _TABLES,
    # the order in which runs were recorded; SQLite numbers rows by itself in this type alone
    sa.Column("i_run", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("run_id", sa.String(255), nullable=False, unique=True),
    *(sa.Column(name, _COLUMN_TYPES[kind]) for name, kind in RUN_COLUMNS.items() if name != "run_id"),
    sa.Column("started_at", sa.String(64)),
    sa.Column("status", sa.String(16)),
    sa.Column("document", sa.Text),
)

#: Columns that `Store.list` compares; by what they contain, without regard to case.
FILTERS: Final = ("source", "model", "mode", "gpu", "precision", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What became of runs that came from elsewhere.

    Attributes
    ----------
    n_added, n_replaced, n_known : int
        New ones; those whose end was not known before; those that were there already, and are counted once.
    differing : tuple of str
        Ids of the known ones that say something else than the store, which keeps its own.
    """

    n_added: int = 0
    n_replaced: int = 0
    n_known: int = 0
    differing: tuple[str, ...] = ()


def default_store() -> str:
    """Return where runs are kept if nobody says: ``JOULECAST_STORE``, else a file of the user's data."""
    chosen = os.environ.get("JOULECAST_STORE")
    if chosen:
        return chosen
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return str(Path(base) / "joulecast" / _FILE_NAME)


class Store:
    """Runs in a database; `Store.open` makes one, ``with`` closes it, iterating gives rows of a file of runs.

    Every write is one transaction: it is in the database when the call returns, or not at all.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.name = _name(engine.url)

    @classmethod
    def open(
        cls, url: str | Path | None = None, *, create: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> "Store":
        """Open a store, and make its tables where there are none.

        Parameters
        ----------
        url : str or Path, optional
            A database URL, or the path of an SQLite file. By default `default_store`.
        create : bool
            False opens only a store that is there.
        busy_timeout_s : float
            How long to wait for other writers. [s]

        Raises
        ------
        UsageError
            The URL is none, or there is no such store and `create` is false.
        StoreError
            It cannot be opened, or a newer joulecast wrote it.
        MissingExtraError
            The database's driver is not installed.
        """
        chosen = _url(default_store() if url is None else str(url))
        if chosen.get_backend_name() == "sqlite" and chosen.database:
            _make_folder(Path(chosen.database), create)
        store = cls(_engine(chosen, busy_timeout_s))
        try:
            store._check_version(create)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Give back the connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, measurement: Measurement) -> None:
        """Record a run.

        Raises
        ------
        RunsError
            There is a run of its id.
        StoreError
            The database does not take it.
        """
        try:
            with self._writing() as connection:
                connection.execute(_RUNS.insert().values(_values(StoredRun.of(measurement))))
        except IntegrityError:
            raise RunsError(f"run {measurement.run_id} is in {self.name} already") from None

    def update(self, measurement: Measurement) -> None:
        """Record a run anew: in place of what was kept under its id, if anything was."""
        values = _values(StoredRun.of(measurement))
        with self._writing() as connection:
            replaced = connection.execute(
                _RUNS.update().where(_RUNS.c.run_id == measurement.run_id).values(values)
            )
            if replaced.rowcount == 0:
                connection.execute(_RUNS.insert().values(values))

    def add_all(self, runs: Iterable[StoredRun]) -> Added:
        """Record runs from elsewhere, all or none; a run that is there already is not counted twice."""
        counts = {"added": 0, "replaced": 0, "known": 0}
        differing = []
        with self._writing() as connection:
            for run in runs:
                outcome = _put(connection, run)
                counts["known" if outcome == "differs" else outcome] += 1
                if outcome == "differs":
                    differing.append(run.run_id)
        return Added(
            n_added=counts["added"],
            n_replaced=counts["replaced"],
            n_known=counts["known"],
            differing=tuple(differing),
        )

    def get(self, run_id: str) -> StoredRun:
        """Return the run of an id, or of the start of one.

        Raises
        ------
        UsageError
            Several ids start so.
        UnknownRunError
            None does.
        """
        starts = _RUNS.c.run_id.startswith(run_id, autoescape=True)
        query = sa.select(_RUNS).where(starts).order_by(_RUNS.c.run_id).limit(_N_IDS_SHOWN + 1)
        found = self._read(query) if run_id else ()
        exact = [run for run in found if run.run_id == run_id]
        if exact or len(found) == 1:
            return (exact or found)[0]
        if found:
            ids = ", ".join(run.run_id for run in found[:_N_IDS_SHOWN])
            more = ", ..." if len(found) > _N_IDS_SHOWN else ""
            raise UsageError(f"several runs start with {run_id!r}: {ids}{more}; give more of the id")
        known = [run.run_id for run in self.list(limit=_N_IDS_COMPARED)]
        raise UnknownRunError("run", run_id, known, remedy="`joulecast runs list` shows them")

    def job(self, run: StoredRun) -> tuple[Measurement, ...]:
        """Return the records of all nodes of a run's job; its own alone where it belongs to none.

        Raises
        ------
        UsageError
            The run is a row of a file.
        """
        m = run.measurement
        if m is None:
            raise UsageError(f"run {run.run_id} came from a file of runs, which names no jobs")
        if m.job_id is None:
            return (m,)
        records = (other.measurement for other in self.list())
        return tuple(r for r in records if r is not None and r.job_id == m.job_id)

    def list(
        self, *, since: str = "", limit: int | None = None, **contains: str | None
    ) -> tuple[StoredRun, ...]:
        """Return runs in the order they were recorded.

        Parameters
        ----------
        since : str
            Only those that started then or later; ISO 8601.
        limit : int, optional
            Only the last so many.
        **contains
            Texts that the `FILTERS` contain, without regard to case.
        """
        unknown = sorted(set(contains) - set(FILTERS))
        if unknown:
            raise UsageError(f"cannot list runs by {', '.join(unknown)}: by {', '.join(FILTERS)}")
        query = sa.select(_RUNS).order_by(_RUNS.c.i_run.desc()).limit(limit)
        for name, text in contains.items():
            if text:
                query = query.where(_RUNS.c[name].icontains(text, autoescape=True))
        if since:
            query = query.where(_RUNS.c.started_at >= since)
        return self._read(query)[::-1]

    def __iter__(self) -> Iterator[dict[str, RunValue]]:
        for run in self.list():
            yield dict(run.row)

    def __len__(self) -> int:
        with self._reading() as connection:
            return int(connection.scalar(sa.select(sa.func.count()).select_from(_RUNS)) or 0)

    def _read(self, query: sa.Select[Any]) -> tuple[StoredRun, ...]:
        with self._reading() as connection:
            return tuple(_run(record, self.name) for record in connection.execute(query).mappings())

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with _as_store_error(self.name), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with _as_store_error(self.name), self._engine.connect() as connection:
            writer = connection.execution_options(**{_WRITES: True})
            with writer.begin():
                yield writer

    def _check_version(self, create: bool) -> None:
        version = self._version()
        if version is None and create:
            self._make_tables()
            version = self._version()
        if version is None:
            raise UsageError(f"{self.name} holds no runs: `joulecast measure` or `runs import` makes a store")
        if version > STORE_VERSION:
            raise StoreError(
                f"{self.name} is a store of version {version}, this joulecast reads {STORE_VERSION}: "
                "update joulecast; nothing was changed"
            )

    def _version(self) -> int | None:
        with self._reading() as connection:
            if not sa.inspect(connection).has_table(_VERSION.name):
                return None
            version: int | None = connection.scalar(sa.select(sa.func.max(_VERSION.c.version)))
            return version

    def _make_tables(self) -> None:
        """Make the tables in one transaction; several processes may try at once, and one does."""
        try:
            with self._writing() as connection:
                if connection.dialect.name == "postgresql":
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
                _TABLES.create_all(connection)
                if connection.scalar(sa.select(sa.func.count()).select_from(_VERSION)) == 0:
                    connection.execute(_VERSION.insert().values(version=STORE_VERSION))
        except (StoreError, IntegrityError):
            if self._version() is None:  # nobody else made them either
                raise


#: Option of a connection whose transactions write.
_WRITES: Final = "joulecast_writes"
#: Any number of our own: PostgreSQL's creation of a table is not safe against another's.
_LOCK_KEY: Final = 0x6A6F756C
#: Ids that an unknown one is compared with, for near misses.
_N_IDS_COMPARED: Final = 1000


def _put(connection: sa.Connection, run: StoredRun) -> str:
    """Record a run unless it is known; return ``added``, ``replaced``, ``known`` or ``differs``."""
    same_id = _RUNS.c.run_id == run.run_id
    try:
        with connection.begin_nested():
            connection.execute(_RUNS.insert().values(_values(run)))
            return "added"
    except IntegrityError:
        record = connection.execute(sa.select(_RUNS).where(same_id)).mappings().one()
    stored = _run(record, "the store")
    if run.replaces(stored):
        connection.execute(_RUNS.update().where(same_id).values(_values(run)))
        return "replaced"
    return "known" if _values(run) == _values(stored) or stored.replaces(run) else "differs"


def _values(run: StoredRun) -> dict[str, Any]:
    document = json.dumps(run.measurement.to_dict(), allow_nan=False) if run.measurement else None
    return {
        **run.row,
        "started_at": run.started_at,
        "status": run.status and str(run.status),
        "document": document,
    }


def _run(record: sa.RowMapping, store: str) -> StoredRun:
    row = {name: record[name] for name in RUN_COLUMNS}
    if record["document"] is None:
        return StoredRun(row=row)
    try:
        return StoredRun(row=row, measurement=Measurement.from_dict(json.loads(record["document"])))
    except (RunsError, json.JSONDecodeError) as error:
        raise RunsError(f"run {record['run_id']} of {store}: {error}") from error


# --- databases ------------------------------------------------------------------------------------


def _url(text: str) -> sa.URL:
    """Return the URL of a database, or of an SQLite file by its path."""
    if "://" not in text:
        return sa.URL.create("sqlite", database=str(Path(text).expanduser()))
    try:
        url = sa.make_url(text)
    except SQLAlchemyError:
        raise UsageError(f"{text!r} is no URL of a database: as postgresql://USER@HOST/NAME") from None
    # SQLAlchemy's default is psycopg2; the extra installs its successor
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _name(url: sa.URL) -> str:
    """Return how messages call a store: a file by its path, without any password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "the store in memory"
    return url.render_as_string(hide_password=True)


def _make_folder(path: Path, create: bool) -> None:
    if not create:
        if not path.exists():
            raise UsageError(f"there is no store {path}: `joulecast measure` or `runs import` makes one")
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make a store in {path.parent}: {error.strerror or error}") from error


def _engine(url: sa.URL, busy_timeout_s: float) -> sa.Engine:
    backend = url.get_backend_name()
    options: dict[str, Any] = {}
    if backend == "sqlite":
        options = {"timeout": busy_timeout_s}
    elif backend == "postgresql":
        options = {"options": f"-c lock_timeout={busy_timeout_s:.0f}s"}
    try:
        engine = sa.create_engine(url, connect_args=options)
    except ModuleNotFoundError as error:
        extra = "joulecast[postgresql]" if backend == "postgresql" else error.name
        raise MissingExtraError(
            f"a store at {backend}:// needs {error.name}: pip install '{extra}'"
        ) from error
    except SQLAlchemyError as error:
        raise UsageError(f"no store at {_name(url)}: {error}") from error
    if backend == "sqlite":
        _make_crash_safe(engine)
    return engine


def _make_crash_safe(engine: sa.Engine) -> None:
    """Let SQLite log ahead, flush at every commit, and take the write lock when a write begins.

    Notes
    -----
    A transaction that reads before it writes could not wait for another writer: SQLite refuses at once, for
    its snapshot is old [1]_. So writers begin with the lock, and wait for it up to the busy timeout.

    References
    ----------
    .. [1] SQLite, "Write-Ahead Logging" and "Transaction", https://www.sqlite.org/lang_transaction.html, 2.2
    """

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


#: What databases say, in lower case, and what that means for whoever recorded a run.
_MEANINGS: Final = (
    (
        ("database is locked", "lock timeout"),
        "is locked: another process has been writing; nothing was changed, try again",
    ),
    (
        ("disk is full", "no space left", "disk full"),
        "has no room: the disk is full; what was recorded before is there, free some space and try again",
    ),
    (("readonly database", "read-only"), "cannot be written: it is read-only"),
    (("not a database", "malformed"), "is not a store of runs, or is damaged: give another with --store"),
    (
        ("unable to open",),
        "cannot be opened: see that the file is one, and that you may write it and its folder",
    ),
)


@contextmanager
def _as_store_error(store: str) -> Iterator[None]:
    """Turn a database's error into one line; a broken constraint is the caller's to judge."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        said = str(error.orig).strip()
        for signs, meaning in _MEANINGS:
            if any(sign in said.lower() for sign in signs):
                raise StoreError(f"{store} {meaning}") from error
        raise StoreError(f"{store}: {said.splitlines()[0] if said else error}") from error
