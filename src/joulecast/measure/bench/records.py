"""The file of a benchmark: an operator file that grows, and is whole at every moment. Needs pyarrow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from joulecast.errors import MissingExtraError, RunsError, UsageError
from joulecast.whole_file import whole_file
from joulecast.workload.operator_table import DIMENSIONS

_TEXTS: Final = ("op", "phase", "gpu", "dtype", "source", "kernel_name")
_MEASURED: Final = ("latency_s", "mean_power_w", "power_limit_w")
#: Columns in the order in which they are written.
COLUMNS: Final = ("op", "phase", "gpu", "dtype", *DIMENSIONS, *_MEASURED, "kernel_name", "source")


class OperatorFile:
    """Rows of an operator file, old and new.

    Parameters
    ----------
    path : Path
        Read if it is there; written by `save`.

    Raises
    ------
    RunsError
        The file is there and no operator file.
    UsageError
        The folder is not there.
    MissingExtraError
        pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise MissingExtraError(
                "writing parquet needs the data extra: pip install 'joulecast[data]'"
            ) from error
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if not path.parent.is_dir():
            raise UsageError(f"no folder {str(path.parent)!r} to write {path.name} into")
        if path.exists():
            try:
                document = parquet.read_table(path)
            except (OSError, ValueError) as error:
                raise RunsError(
                    f"{path} is there and is no operator file ({error}): name another with --out"
                ) from error
            missing = sorted({"op", "phase", "gpu", "dtype", "latency_s"} - set(document.column_names))
            if missing:
                raise RunsError(f"{path} lacks the columns {', '.join(missing)}: name another with --out")
            strange = sorted(set(document.column_names) - set(COLUMNS))
            if strange:
                raise RunsError(
                    f"{path} has columns that would be lost ({', '.join(strange)}): name another with --out"
                )
            self.rows = document.to_pylist()

    def save(self) -> None:
        """Write all rows: beside the file first, then in its place."""
        import pyarrow as pa
        from pyarrow import parquet

        try:
            with whole_file(self.path) as partial:
                parquet.write_table(pa.table(_arrays(self.rows)), partial)
        except OSError as error:
            raise RunsError(f"cannot write {self.path}: {error.strerror or error}") from error


def _arrays(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows as columns of their types."""
    import pyarrow as pa

    def type_of(name: str) -> Any:
        if name in _TEXTS:
            return pa.large_string()
        return pa.float64() if name in _MEASURED else pa.int64()

    return {name: pa.array([row.get(name) for row in rows], type=type_of(name)) for name in COLUMNS}
