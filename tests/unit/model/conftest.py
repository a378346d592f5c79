"""One-row op tables with every column given a default; an ideal GPU."""

from collections.abc import Callable

import pytest

from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.spec import Gpu
from joulecast.model.definitions import BANDWIDTH_CLASSES, PARAMETERS
from joulecast.workload.calls import Work, table_of
from joulecast.workload.table import DTYPE_BYTES, OpKind, OpTable, ParameterCount, Phase, Workload


def row(
    kind: str, dtype: str = "fp32", phase: str = Phase.FORWARD, n_calls: float = 1.0, **columns: float
) -> OpTable:
    """Return a table of one row."""
    work = Work(kind=kind, dtype=dtype, **{"m": 1.0, "model_flop": columns.get("flop", 0.0), **columns})
    return table_of([(kind, phase, dtype, "op", "*")], [work]).repeated(n_calls)


def gemm(
    m: int, n: int, k: int, dtype: str = "fp32", phase: str = Phase.FORWARD, **columns: float
) -> OpTable:
    """Return one product."""
    size = DTYPE_BYTES[dtype]
    work = {
        "m": m,
        "n": n,
        "k": k,
        "flop": 2.0 * m * n * k,
        "read_bytes": size * (m * k + k * n),
        "written_bytes": size * m * n,
    }
    return row(OpKind.GEMM, dtype, phase, **{**work, **columns})


def stream(
    n_elements: float, dtype: str = "fp32", kind: str = OpKind.ELEMENTWISE, **columns: float
) -> OpTable:
    """Return a kernel that reads and writes a tensor once."""
    moved = DTYPE_BYTES[dtype] * n_elements
    work = {"m": n_elements, "read_bytes": moved, "written_bytes": moved}
    return row(kind, dtype, **{**work, **columns})


def workload(table: OpTable, precision: str = "fp32", mode: str = "train", **changes: float) -> Workload:
    """Return one step of a table, with 10 million parameters in 100 tensors."""
    sizes = {"gradient_bytes": 4e7, "persistent_bytes": 1.2e8, "peak_live_bytes": 5e8, **changes}
    return Workload(
        table=table,
        batch_size=8.0,
        seq_len=0.0,
        precision=precision,
        mode=mode,
        parameters=ParameterCount(
            n_parameters=10**7,
            n_trainable=10**7,
            n_tensors=100,
            parameter_bytes=4 * 10**7,
            trainable_bytes=4 * 10**7,
            buffer_bytes=0,
        ),
        **sizes,
    )


@pytest.fixture(name="row")
def _row() -> Callable[..., OpTable]:
    return row


@pytest.fixture(name="gemm")
def _gemm() -> Callable[..., OpTable]:
    return gemm


@pytest.fixture(name="stream")
def _stream() -> Callable[..., OpTable]:
    return stream


@pytest.fixture(name="workload")
def _workload() -> Callable[..., Workload]:
    return workload


@pytest.fixture(name="plain")
def _plain() -> dict[str, float]:
    """Return parameters of an ideal GPU: full rates, no overheads, no L2, a sharp maximum."""
    values = {p.name: p.value for p in PARAMETERS}
    for name in values:
        if name.startswith("bandwidth.") and name.removeprefix("bandwidth.") in BANDWIDTH_CLASSES:
            values[name] = 1.0
        if name.endswith(("k_half", "tile_half")):
            values[name] = 0.0
    ideal = {
        "product.vector.efficiency": 1.0,
        "product.tensor16.efficiency": 1.0,
        "product.tf32.efficiency": 1.0,
        "product.wave_share": 0.0,
        "product.wave_tail": 0.0,
        "product.batched_ratio": 1.0,
        "product.dual_issue_ratio": 1.0,
        "product.wide_issue_ratio": 1.0,
        "product.resident_outputs": 1024.0,  # one tile at a time
        "bandwidth.l2_gain": 1.0,
        "bandwidth.ramp_s": 0.0,
        "bandwidth.ecc_ratio": 1.0,
        "bandwidth.sharpness": 1000.0,
        "launch.kernel_s": 0.0,
        "clock.memory_knee": 0.05,
    }
    return {**values, **ideal}


@pytest.fixture(name="a100")
def _a100() -> Gpu:
    return load_gpu("a100-sxm4-80gb")
