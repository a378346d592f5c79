"""What a store keeps of a run: a row under the columns of a file of runs, and the record if there is one.

Enters: measurements, and rows of files of runs. It must not know databases, nor files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from joulecast.errors import RunsError
from joulecast.results import Measurement, RunStatus

RunValue = str | float | int | bool | None

#: Columns of a file of runs, in its order, and what a cell of each holds; SI units.
RUN_COLUMNS: Final[Mapping[str, type]] = {
    "run_id": str,
    "source": str,
    "licence": str,
    "source_ref": str,
    "model": str,
    "mode": str,
    "gpu": str,
    "n_gpus": int,
    "parallel": str,
    "precision": str,
    "batch_per_gpu": float,
    "global_batch": float,
    "seq_len": int,
    "image_size": int,
    "optimizer": str,
    "memory_format": str,
    "attention": str,
    "compile": bool,
    "power_limit_w": float,
    "sm_clock_hz": float,
    "n_sms": int,
    "step_time_s": float,
    "samples_per_s": float,
    "mean_power_w": float,
    "energy_per_step_j": float,
    "peak_memory_bytes": float,
    "memory_meter": str,
    "generation": str,
    "torch_version": str,
    "suspect": str,
    "note": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run of a store.

    Attributes
    ----------
    row : mapping of str to str, float, int, bool or None
        A value, or None, under every one of `RUN_COLUMNS`.
    measurement : Measurement or None
        The whole record; None for a row that came from a file of runs.
    """

    SCHEMA: ClassVar[str] = "joulecast/run/1"

    row: Mapping[str, RunValue]
    measurement: Measurement | None = None

    def __post_init__(self) -> None:
        if tuple(self.row) != tuple(RUN_COLUMNS):
            raise ValueError(f"a row has the columns {', '.join(RUN_COLUMNS)}")
        if not self.run_id:
            raise ValueError("a run has a run_id")

    @classmethod
    def of(cls, measurement: Measurement, source: str | None = None) -> "StoredRun":
        """Return what is kept of a measurement; `source` names another meter than joulecast."""
        row = measurement.to_row()
        return cls(row=row | {"source": source} if source else row, measurement=measurement)

    @property
    def run_id(self) -> str:
        """Its key."""
        return str(self.row["run_id"] or "")

    @property
    def started_at(self) -> str | None:
        """ISO 8601, UTC; None where the file did not say."""
        return self.measurement.started_at if self.measurement else None

    @property
    def status(self) -> RunStatus | None:
        """How it ended; None where the file did not say."""
        return self.measurement.status if self.measurement else None

    def replaces(self, other: "StoredRun") -> bool:
        """Return whether it says more than what is kept under its id: the end of a run that was not over."""
        return self.status is RunStatus.COMPLETE and other.status in {RunStatus.PARTIAL, RunStatus.FAILED}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the row, and the record where there is one."""
        record = self.measurement and self.measurement.to_dict()
        return {"schema": self.SCHEMA, "row": dict(self.row), "measurement": record}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "StoredRun":
        """Return the run of a JSON form, or of a measurement's.

        Raises
        ------
        RunsError
            It is of no known schema, or a value cannot be.
        """
        if plain.get("schema") != cls.SCHEMA:
            return cls.of(Measurement.from_dict(plain))
        given, record = plain.get("row"), plain.get("measurement")
        if not isinstance(given, dict) or not given.get("run_id"):
            raise RunsError("a run without a row that has a run_id")
        row = {name: given.get(name) for name in RUN_COLUMNS}
        for name, value in row.items():
            if value is not None and not isinstance(value, _JSON_TYPES[RUN_COLUMNS[name]]):
                raise RunsError(f"{name} is {value!r}, not {RUN_COLUMNS[name].__name__}")
        return cls(row=row, measurement=Measurement.from_dict(record) if record else None)


#: What JSON may hold for a cell of each type: a whole number may stand where a float is meant.
_JSON_TYPES: Final[Mapping[type, tuple[type, ...]]] = {
    str: (str,),
    int: (int,),
    float: (int, float),
    bool: (bool,),
}
