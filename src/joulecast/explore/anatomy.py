"""One step taken apart: every operator with its unit, time and energy; every part of the memory.

In: a `Scenario`. Out: `Anatomy`. What tables of whole steps cannot say, and rooflines and reasons need.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from joulecast.hardware.spec import Gpu
from joulecast.model.parameters import ParameterSet
from joulecast.model.paths import row_paths, unit_flop_per_clock
from joulecast.model.step import predict_step
from joulecast.scenario import Scenario, runs_flash, settle_gpu, settle_step, workload_of
from joulecast.workload.table import Floats, OpKind, ParameterCount, Strings

#: Parts of a process's memory, from what the model needs to what the machine adds.
MEMORY_PARTS: Final = (
    "parameters",
    "optimizer state and buffers",
    "activations, gradients, temporaries",
    "workspaces and gradient buckets",
    "allocator's reserve",
    "context and libraries",
)

#: Kinds whose unit the precision decides; what else computes does so on the vector units.
_PRODUCTS: Final = (OpKind.GEMM, OpKind.BATCHED_GEMM, OpKind.CONVOLUTION, OpKind.ATTENTION)

#: The path of operators that are no products.
VECTOR: Final = "vector"

#: What can bound time, besides the arithmetic units.
OTHER_BOUNDS: Final = ("memory", "launch", "host", "communication")


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The operators and the memory of one step of one GPU.

    Attributes
    ----------
    scenario : Scenario
    gpu : Gpu
    kind, phase, operator, path, bound : ndarray of str [op]
        Class, phase and ATen overload; the arithmetic unit of a product, else `VECTOR`; what bounds it.
    flop, bytes_moved, time_s, energy_j : ndarray [op]
        All calls of a row. [FLOP], [bytes], [s], [J]
    step_time_s : float
        [s]
    sm_clock_hz : float
        [Hz]
    parameters : ParameterCount
    activation_bytes : float
        Alive at the peak beyond parameters, buffers and optimizer state. [bytes]
    memory_bytes : mapping of str to float
        `MEMORY_PARTS`; they add up to the process. [bytes]
    time_share : mapping of str to float
        Share of the step by what bounds it: an arithmetic unit, or one of `OTHER_BOUNDS`; sums to 1.
    """

    scenario: Scenario
    gpu: Gpu
    kind: Strings
    phase: Strings
    operator: Strings
    path: Strings
    bound: Strings
    flop: Floats
    bytes_moved: Floats
    time_s: Floats
    energy_j: Floats
    step_time_s: float
    sm_clock_hz: float
    parameters: ParameterCount
    activation_bytes: float
    memory_bytes: Mapping[str, float]
    time_share: Mapping[str, float]

    def peak_flop_per_s(self, path: str) -> float:
        """Return the dense peak of a unit at the clock the step settles at. [FLOP/s]."""
        return unit_flop_per_clock(path, self.gpu) * self.sm_clock_hz


def anatomy(scenario: Scenario, parameters: ParameterSet) -> Anatomy:
    """Return the operators and the memory of a step."""
    cards, step = settle_gpu(scenario), settle_step(scenario)
    load = workload_of(step, flash=runs_flash(cards.gpu))
    predicted = predict_step(
        load,
        cards.gpu,
        parameters,
        n_gpus=cards.n_gpus,
        power_limit_w=cards.power_limit_w,
        sm_clock_hz=cards.locked_sm_clock_hz,
        data_parallel=cards.parallel == "ddp",
    )
    table = load.table
    is_product = np.isin(table.kind, [str(kind) for kind in _PRODUCTS])
    path = np.where(is_product, row_paths(table, load.precision, cards.gpu), VECTOR)
    bound = np.asarray(predicted.op_bound)
    held_bytes = load.persistent_bytes + load.peak_live_bytes
    parts = (
        float(load.parameters.parameter_bytes),
        load.persistent_bytes - load.parameters.parameter_bytes,
        load.peak_live_bytes,
        predicted.allocated_bytes - held_bytes,
        predicted.reserved_bytes - predicted.allocated_bytes,
        predicted.process_bytes - predicted.reserved_bytes,
    )
    return Anatomy(
        scenario=scenario,
        gpu=cards.gpu,
        kind=table.kind,
        phase=table.phase,
        operator=table.operator,
        path=path,
        bound=bound,
        flop=table.flop * table.n_calls,
        bytes_moved=table.bytes_moved * table.n_calls,
        time_s=predicted.op_time_s,
        energy_j=predicted.op_energy_j,
        step_time_s=predicted.step_time_s,
        sm_clock_hz=predicted.sm_clock_hz,
        parameters=load.parameters,
        activation_bytes=load.peak_live_bytes,
        memory_bytes=dict(zip(MEMORY_PARTS, parts, strict=True)),
        time_share=_time_share(predicted.time_share_by_bound, bound, path, predicted.op_time_s),
    )


def _time_share(
    by_bound: Mapping[str, float], bound: Strings, path: Strings, time_s: Floats
) -> dict[str, float]:
    """Return the share of the step by bound, with ``compute`` split by the unit that computes."""
    computing = bound == "compute"
    total_s = float(time_s[computing].sum()) or 1.0
    units = sorted(set(path[computing].tolist()))
    shares = {
        unit: by_bound["compute"] * float(time_s[computing & (path == unit)].sum()) / total_s
        for unit in units
    }
    return {**shares, **{name: by_bound[name] for name in OTHER_BOUNDS}}
