"""Step traces <-> files: one compressed numpy archive holds several traces, by key.

The archive holds plain arrays and one JSON header with the format's version: nothing in it is executed when
it is read. Labels are codes into a pool of strings; the polynomials' zeros compress away. A file is written
beside its place and moved there, so that none is ever half written.
"""

import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import numpy as np

from joulecast.errors import TableError
from joulecast.workload.table import (
    FIXED_COLUMNS,
    LABEL_COLUMNS,
    SCALING_COLUMNS,
    OpTable,
    OptimizerTrace,
    ParameterCount,
    StepTrace,
)

#: 1: first format.
FORMAT: Final = 1

_HEADER: Final = "header"


def save_traces(path: Path, traces: Mapping[str, StepTrace]) -> None:
    """Write traces to one file, atomically; optimizer steps that traces share are written once.

    Parameters
    ----------
    path : Path
        Its folder is made if it is not there.
    traces : mapping of str to StepTrace
    """
    pool: dict[str, int] = {}
    arrays: dict[str, Any] = {}
    header: dict[str, Any] = {"format": FORMAT, "traces": {}, "optimizers": {}}
    for key, trace in traces.items():
        arrays[f"{key}.labels"] = _codes((trace.labels[name] for name in LABEL_COLUMNS), pool)
        arrays[f"{key}.fixed"] = np.stack([trace.fixed[name] for name in FIXED_COLUMNS])
        arrays[f"{key}.polynomials"] = trace.polynomials
        arrays[f"{key}.live_bytes"] = trace.live_bytes
        header["traces"][key] = _description(trace)
        for name, step in trace.optimizers.items():
            step_key = f"{name}@{trace.parameters.parameter_bytes}"
            header["traces"][key]["optimizers"][name] = step_key
            if step_key not in header["optimizers"]:
                header["optimizers"][step_key] = [step.state_bytes, step.temporary_bytes]
                columns = (getattr(step.table, c) for c in LABEL_COLUMNS)
                arrays[f"{step_key}.labels"] = _codes(columns, pool)
                numbers = [getattr(step.table, c) for c in (*SCALING_COLUMNS, *FIXED_COLUMNS)]
                arrays[f"{step_key}.numbers"] = np.stack(numbers)
    header["strings"] = list(pool)
    arrays[_HEADER] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            np.savez_compressed(file, **arrays)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    temporary.chmod(0o644)
    os.replace(temporary, path)


def _codes(columns: Iterable[Any], pool: dict[str, int]) -> np.ndarray[Any, Any]:
    """Return label columns as codes [column, op], adding what is new to the pool."""
    return np.array(
        [[pool.setdefault(str(s), len(pool)) for s in column] for column in columns], dtype=np.uint16
    )


def _description(trace: StepTrace) -> dict[str, Any]:
    shortest, longest = trace.seq_len_range
    return {
        "parameters": asdict(trace.parameters),
        "optimizers": {},
        "tokens_per_sample_is_seq_len": trace.tokens_per_sample_is_seq_len,
        "seq_len_range": [shortest, longest if np.isfinite(longest) else None],
        "batch_exact": trace.batch_exact,
        "batch_traced": trace.batch_traced,
        "features": dict(trace.features),
        "notes": list(trace.notes),
    }


def load_trace_keys(path: Path) -> tuple[str, ...]:
    """Return the keys of the traces in a file.

    Raises
    ------
    TableError
        If the file is corrupt or of another version.
    """
    return tuple(_read(path, lambda archive, header: list(header["traces"])))


def load_trace_file(path: Path, key: str) -> StepTrace:
    """Return one trace of a file.

    Raises
    ------
    TableError
        If the file is corrupt, of another version, or holds no trace of that key.
    """
    trace = find_trace(path, key)
    if trace is None:
        raise TableError(f"{path} holds no trace {key!r}; it holds {', '.join(load_trace_keys(path))}")
    return trace


def find_trace(path: Path, key: str) -> StepTrace | None:
    """Return one trace of a file, or None if it holds no trace of that key.

    Raises
    ------
    TableError
        If the file is corrupt or of another version.
    """

    def build(archive: Any, header: dict[str, Any]) -> StepTrace | None:
        return _trace_from(archive, header, key) if key in header["traces"] else None

    trace: StepTrace | None = _read(path, build)
    return trace


def _read(path: Path, build: Any) -> Any:
    """Open an archive, check its version, and build from it; anything odd is a `TableError`."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file), np.load(file, allow_pickle=False) as archive:
            header = json.loads(archive[_HEADER].tobytes())
            if header["format"] != FORMAT:
                raise TableError(
                    f"{path} has format {header['format']}, this version reads {FORMAT}: trace it again"
                )
            return build(archive, header)
    except TableError:
        raise
    except FileNotFoundError as error:
        raise TableError(f"no op table at {path}") from error
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise TableError(f"{path} is not a readable op table ({error}): delete it, or trace again") from error


def _labels_from(codes: Any, strings: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {name: strings[codes[i]] for i, name in enumerate(LABEL_COLUMNS)}


def _trace_from(archive: Any, header: dict[str, Any], key: str) -> StepTrace:
    description = header["traces"][key]
    strings = np.array(header["strings"], dtype=np.str_)
    fixed = archive[f"{key}.fixed"]
    shortest, longest = description["seq_len_range"]
    return StepTrace(
        labels=_labels_from(archive[f"{key}.labels"], strings),
        fixed={name: fixed[i] for i, name in enumerate(FIXED_COLUMNS)},
        polynomials=archive[f"{key}.polynomials"],
        live_bytes=archive[f"{key}.live_bytes"],
        parameters=ParameterCount(**description["parameters"]),
        optimizers={
            name: _optimizer_from(archive, header, step_key, strings)
            for name, step_key in description["optimizers"].items()
        },
        tokens_per_sample_is_seq_len=description["tokens_per_sample_is_seq_len"],
        seq_len_range=(shortest, float("inf") if longest is None else longest),
        batch_exact=description["batch_exact"],
        batch_traced=description["batch_traced"],
        features=description["features"],
        notes=tuple(description["notes"]),
    )


def _optimizer_from(
    archive: Any, header: dict[str, Any], step_key: str, strings: np.ndarray[Any, Any]
) -> OptimizerTrace:
    numbers = archive[f"{step_key}.numbers"]
    state_bytes, temporary_bytes = header["optimizers"][step_key]
    columns = {name: numbers[i] for i, name in enumerate((*SCALING_COLUMNS, *FIXED_COLUMNS))}
    table = OpTable(**_labels_from(archive[f"{step_key}.labels"], strings), **columns)
    return OptimizerTrace(table=table, state_bytes=state_bytes, temporary_bytes=temporary_bytes)
