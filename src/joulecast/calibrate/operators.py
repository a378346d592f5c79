"""Fit the parameters that single operators determine.

In: `OperatorRecords`. Out: `StageResult` by group of kinds. Clocks are solved inside: small cards lower
theirs under an FP32 product.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from joulecast.calibrate.evolution import Search, evolve, robust_loss
from joulecast.calibrate.ops import OperatorRecords
from joulecast.calibrate.stages import Stage, StageResult, Values, fit_stage
from joulecast.hardware.spec import Gpu
from joulecast.model import clock, power
from joulecast.model.parameters import definition
from joulecast.model.rows import KIND_NUMBER, Booleans, Integers, Rows, concatenate_rows, rows_of
from joulecast.model.time import Parts, kernel_time_s, product_parts, row_costs, smooth_maximum
from joulecast.workload.table import Floats, OpKind, Strings

#: Exponent of the smooth maximum of dispatch and kernel when operators are timed one by one: `ops.parquet`
#: shows a sharp corner. [1]
_BENCH_SHARPNESS: Final = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProblem:
    """Single operators, each alone on its GPU; arrays [op].

    Attributes
    ----------
    rows : Rows
    parts : mapping
        `product_parts` of the rows.
    latency_s : ndarray
        Measured. [s]
    eager : ndarray of bool
        Whether dispatch is a floor of the latency.
    floor_s : ndarray or None
        The dispatch time of each record's own host, where it is known; None to take the parameters'. [s]
    limit_w : ndarray
        [W]
    mean_power_w : ndarray
        Measured; NaN where not. [W]
    labels : ndarray of str
        ``GPU#`` of each operator: what is left out together.
    """

    rows: Rows
    parts: Parts
    latency_s: Floats
    eager: Booleans
    floor_s: Floats | None
    limit_w: Floats
    mean_power_w: Floats
    labels: Strings

    def operating_point(self, values: Values) -> clock.OperatingPoint:
        """Return clock, time and energy of each operator, alone and repeated. [op]."""
        each = np.arange(len(self.rows))
        top_hz = power.free_clock_hz(self.rows.device, values)
        conditions = clock.Conditions(
            top_clock_hz=top_hz,
            limit_w=self.limit_w,
            other_time_s=np.zeros(len(self.rows)),
            waiting_power_w=power.waiting_power_w(top_hz, self.rows.device, values),
            limit_ratio=values["power.limit_ratio"],
        )
        costs = row_costs(self.rows, values, self.parts)
        return clock.operating_point(
            power.kernels_of(self.rows, costs, values), np.zeros_like(each), each, conditions
        )

    def latency_and_power(self, values: Values) -> tuple[Floats, Floats]:
        """Return the latency and the power predicted. [s], [W] [op]."""
        point = self.operating_point(values)
        return self.latency_of(point.time_s / self.rows.n_calls, values), point.energy_j / point.time_s

    def latency_of(self, kernel_s: Floats, values: Values) -> Floats:
        """Return what a clock on the host shows of kernels launched one by one. [s] [op]."""
        floor_s = bench_floor_s(self.rows, values) if self.floor_s is None else self.floor_s
        eager_s = smooth_maximum(
            kernel_s + values["bench.visible_share"] * floor_s, floor_s, _BENCH_SHARPNESS
        )
        return np.where(self.eager, eager_s, kernel_s)

    def residuals(self, values: Values) -> Floats:
        """Return log(measured / predicted) of latency, and of power where measured. [row]."""
        latency_s, mean_power_w = self.latency_and_power(values)
        by_power = np.log(self.mean_power_w / mean_power_w)
        return np.concatenate([np.log(self.latency_s / latency_s), by_power[np.isfinite(by_power)]])

    def groups(self) -> Strings:
        """Return the label of each residual; see `Problem`. [row]."""
        return np.concatenate([self.labels, self.labels[np.isfinite(self.mean_power_w)]])


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPopulation:
    """Single operators at clocks already solved: what a population of parameter sets is judged by.

    Attributes
    ----------
    problem : OperatorProblem
    clock_hz : ndarray [op]
        SM clock of each operator. [Hz]
    """

    problem: OperatorProblem
    clock_hz: Floats

    def losses(self, values: Mapping[str, Any]) -> Floats:
        """Return the mean robust loss of each set; see `PopulationProblem`. [population]."""
        problem = self.problem
        costs = row_costs(problem.rows, values, problem.parts)
        latency_s = problem.latency_of(kernel_time_s(costs, self.clock_hz), values)
        return robust_loss(np.log(problem.latency_s / latency_s))


def population_of(problem: OperatorProblem, values: Values) -> OperatorPopulation:
    """Return a problem with its clocks held where some parameters solve them."""
    return OperatorPopulation(problem=problem, clock_hz=problem.operating_point(values).clock_hz)


_BENCH_NAMES: Final = {
    OpKind.GEMM: "gemm",
    OpKind.BATCHED_GEMM: "batched_gemm",
    OpKind.CONVOLUTION: "convolution",
    OpKind.ATTENTION: "attention",
    OpKind.SOFTMAX: "softmax",
    OpKind.LAYER_NORM: "layer_norm",
}


def bench_floor_s(rows: Rows, values: Values) -> Floats:
    """Return the dispatch time of operators launched one by one, by the parameters. [s] [op]."""
    by_kind = np.full(len(KIND_NUMBER), values["bench.elementwise_s"])
    for kind, name in _BENCH_NAMES.items():
        by_kind[KIND_NUMBER[kind]] = values[f"bench.{name}_s"]
    floor_s: Floats = by_kind[rows.kind]
    return floor_s


#: Quantile of a host's latencies of one operator that shows its dispatch time. [1]
_FLOOR_QUANTILE: Final = 0.03

#: Operators whose records are all long: none shows its dispatch time.
_WITHOUT_FLOOR: Final = ("conv",)


def observed_floors_s(records: OperatorRecords) -> Floats:
    """Return the dispatch time of each record's own host: a low quantile of its operator's latencies. [s]."""
    floors = np.zeros(len(records))
    groups = np.char.add(np.char.add(records.operator, "@"), records.gpu)
    for group in np.unique(groups):
        chosen = groups == group
        if records.operator[chosen][0] in _WITHOUT_FLOOR:
            floors[chosen] = definition("bench.convolution_s").value
        else:
            floors[chosen] = np.quantile(records.latency_s[chosen], _FLOOR_QUANTILE)
    return floors


#: Power of shorter operators is that of their launches. [s]
_LEAST_POWER_LATENCY_S: Final = 5e-5


def operator_problem(
    records: OperatorRecords, gpus: Mapping[str, Gpu], floor_s: Floats | None = None
) -> OperatorProblem:
    """Return the problem of some records, on the GPUs named in them."""
    order: list[Integers] = []
    rows: list[Rows] = []
    for slug in np.unique(records.gpu).tolist():
        for precision in np.unique(records.precision[records.gpu == slug]).tolist():
            chosen = np.flatnonzero((records.gpu == slug) & (records.precision == precision))
            order.append(chosen)
            rows.append(rows_of(records.table.rows(chosen), precision, gpus[slug]))
    joined = concatenate_rows(rows).take(np.argsort(np.concatenate(order)))
    return OperatorProblem(
        rows=joined,
        parts=product_parts(joined),
        latency_s=records.latency_s,
        eager=records.is_eager,
        floor_s=floor_s,
        limit_w=joined.device.board_power_w,
        mean_power_w=np.where(records.latency_s >= _LEAST_POWER_LATENCY_S, records.mean_power_w, np.nan),
        labels=np.char.add(records.gpu, "#"),
    )


#: Stages on operators: kinds, and the parameters that they determine.
OPERATOR_STAGES: Final[Mapping[str, tuple[tuple[OpKind, ...], tuple[str, ...]]]] = {
    "streams": (
        (OpKind.ELEMENTWISE, OpKind.SOFTMAX, OpKind.LAYER_NORM),
        (
            "bandwidth.elementwise",
            "bandwidth.ecc_ratio",
            "bandwidth.softmax_forward",
            "bandwidth.layer_norm_forward",
            "bandwidth.rows_in_flight",
            "bench.visible_share",
        ),
    ),
    "products": (
        (OpKind.GEMM, OpKind.BATCHED_GEMM),
        (
            "product.vector.efficiency",
            "product.vector.k_half",
            "product.vector.tile_half",
            "product.tensor16.efficiency",
            "product.tensor16.k_half",
            "product.tensor16.tile_half",
            "product.wave_share",
            "product.wave_tail",
            "product.split_half",
            "product.resident_outputs",
            "product.odd_cost",
            "product.batched_ratio",
            "bandwidth.product",
            "bandwidth.sharpness",
            "launch.kernel_s",
            "power.tsmc16_ratio",
            "power.tsmc12_ratio",
            "power.tsmc5_ratio",
        ),
    ),
    "convolutions": (
        (OpKind.CONVOLUTION,),
        (
            "convolution.vector.forward",
            "convolution.winograd_gain",
            "convolution.winograd_half",
            "convolution.winograd_traffic",
        ),
    ),
    "attention": (
        (OpKind.ATTENTION,),
        (
            "attention.forward",
            "attention.score_cycles",
            "attention.width_half",
            "attention.key_half",
            "attention.overhead_s",
            "bandwidth.attention",
            "power.attention_ratio",
        ),
    ),
}


def set_aside(records: OperatorRecords) -> Booleans:
    """Return which records no stage fits: FP32 products of a Pascal card with matrices of gigabytes. [op].

    On P4 and P100 they take 1.5 to 3 times as long as batched products of equal work, the more the wider the
    matrix: page-table misses, which the model does not have. Errors are reported with them.
    """
    pascal = np.isin(records.gpu, ["p4", "p100-pcie-16gb", "p100-sxm2-16gb", "gtx-1080-ti"])
    aside: Booleans = pascal & (records.operator == "linear")
    return aside


def i_sampled(records: OperatorRecords, n_per_group: int, seed: int) -> Integers:
    """Return which records are drawn: at most ``n_per_group`` of each operator on each GPU, with a seed."""
    random = np.random.default_rng(seed)
    groups = np.char.add(np.char.add(records.operator, "@"), records.gpu)
    drawn = [random.permutation(np.flatnonzero(groups == group))[:n_per_group] for group in np.unique(groups)]
    return np.sort(np.concatenate(drawn))


def sampled(records: OperatorRecords, n_per_group: int, seed: int) -> OperatorRecords:
    """Return the records that `i_sampled` draws."""
    return records.rows(i_sampled(records, n_per_group, seed))


def fit_operators(
    records: OperatorRecords,
    gpus: Mapping[str, Gpu],
    values: Values,
    *,
    left_out: Iterable[str] = (),
    search: Search | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[StageResult]:
    """Return the results of the stages on single operators.

    Parameters
    ----------
    records : OperatorRecords
    gpus : mapping of str to Gpu
        By slug.
    values : mapping
        All parameters, where to start.
    left_out : iterable of str
        Slugs of GPUs that the fit must not see.
    search : Search or None
        How differential evolution searches the range first; None to start where `values` are.
    progress : callable or None
        Told each stage's line.
    """
    seen = records.rows(~np.isin(records.gpu, sorted(left_out)) & ~set_aside(records))
    current = {**values, **fitted_floors(seen)}
    results = []
    for name, (kinds, parameters) in OPERATOR_STAGES.items():
        chosen = seen.rows(np.isin(seen.table.kind, [str(kind) for kind in kinds]))
        if not len(chosen):
            continue
        problem = operator_problem(chosen, gpus, observed_floors_s(chosen))
        if search is not None:
            current = better_of(problem, current, _searched(chosen, gpus, parameters, current, search))
        result = fit_stage(Stage(name=name, parameters=parameters, problem=problem), current)
        current.update(result.values)
        results.append(result)
        if progress is not None:
            progress(f"{name}: mean error {result.error_before:.1%} -> {result.error_after:.1%}")
    floors = StageResult(
        name="bench",
        values=fitted_floors(seen),
        error_before=float("nan"),
        error_after=float("nan"),
        at_bound=(),
    )
    return [floors, *results]


#: Operators of each kind and GPU that judge a population. [1]
_SEARCHED_PER_GROUP: Final = 50

#: Energies do not change a latency at a held clock: no evolution can find them.
_UNSEARCHED: Final = ("power.",)


def _searched(
    records: OperatorRecords,
    gpus: Mapping[str, Gpu],
    parameters: Sequence[str],
    values: Values,
    search: Search,
) -> dict[str, float]:
    """Return all parameters with those of a stage where differential evolution leaves them."""
    few = sampled(records, _SEARCHED_PER_GROUP, search.seed)
    population = population_of(operator_problem(few, gpus, observed_floors_s(few)), values)
    names = [name for name in parameters if not name.startswith(_UNSEARCHED)]
    return {**values, **evolve(population, names, values, search)}


def better_of(problem: OperatorProblem, first: Values, second: Values) -> dict[str, float]:
    """Return whichever parameters leave the smaller robust loss; clocks solved for each."""
    losses = [float(robust_loss(problem.residuals(values))) for values in (first, second)]
    return dict(first if losses[0] <= losses[1] else second)


def fitted_floors(records: OperatorRecords) -> dict[str, float]:
    """Return the ``bench`` parameters: the median over hosts of their dispatch times. [s]."""
    floors = observed_floors_s(records)
    found: dict[str, float] = {}
    for kind, name in {**_BENCH_NAMES, OpKind.ELEMENTWISE: "elementwise"}.items():
        chosen = records.is_eager & (records.table.kind == kind)
        by_host = [
            float(np.median(floors[chosen & (records.gpu == g)])) for g in np.unique(records.gpu[chosen])
        ]
        if by_host:
            found[f"bench.{name}_s"] = float(np.median(by_host))
    return found


def product_problem(
    records: OperatorRecords, gpus: Mapping[str, Gpu], left_out: Iterable[str] = ()
) -> OperatorProblem | None:
    """Return the products and convolutions, for a joint stage with steps; None without any."""
    kinds = (OpKind.GEMM, OpKind.BATCHED_GEMM, OpKind.CONVOLUTION)
    products = np.isin(records.table.kind, [str(kind) for kind in kinds])
    chosen = records.rows(products & ~np.isin(records.gpu, sorted(left_out)) & ~set_aside(records))
    return operator_problem(chosen, gpus, observed_floors_s(chosen)) if len(chosen) else None


#: Parameters of products that the joint stage fits again, because power limits couple them to energies.
PRODUCT_PARAMETERS: Final = (
    *("product.vector.efficiency", "product.tensor16.efficiency", "power.tsmc5_ratio"),
    *("convolution.winograd_gain", "convolution.winograd_half", "convolution.winograd_traffic"),
)
