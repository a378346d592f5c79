"""What a step computes, before any GPU: FLOPs, bytes, intensity and kernels, by kind, phase and module.

Enters: a model's name or a module, and sizes. Leaves: a `Characterisation`. It knows no card.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from joulecast.results import data_frame
from joulecast.scenario import ECHOED, Scenario, SettledStep, own_module, settle_step, workload_of
from joulecast.workload.table import OpTable, Strings, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSummary:
    """The operators of a step that share a label.

    Attributes
    ----------
    label : str
        A kind, a phase, a module path or an operator.
    flop, bytes_moved : float
        Work and traffic of one step. [FLOP], [bytes]
    intensity_flop_per_byte : float
    n_calls, n_kernels : float
        Operator calls and kernels of one step.
    """

    label: str
    flop: float
    bytes_moved: float
    intensity_flop_per_byte: float
    n_calls: float
    n_kernels: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterisation:
    """One step of one GPU, counted.

    Attributes
    ----------
    configuration : mapping of str to object
        The step: model, precision, mode, sizes and options.
    n_parameters, n_trainable : int
        Tied ones once.
    flop, model_flop : float
        Work of the kernels, and by MFU's convention. [FLOP]
    bytes_moved, intensity_flop_per_byte, n_kernels : float
    persistent_bytes, peak_live_bytes, gradient_bytes : float
        Parameters, buffers and optimizer state; the most alive beyond; what data parallelism reduces.
    coverage_frac : float
        Share of the traffic in operators that have a formula. [1]
    uncounted : tuple of str
        Operators without one.
    by_kind, by_phase, by_module : tuple of OpSummary
        Largest traffic first.
    features : mapping of str to float
        Structure of the model.
    notes : tuple of str
    table : OpTable
    """

    configuration: Mapping[str, Any]
    n_parameters: int
    n_trainable: int
    flop: float
    model_flop: float
    bytes_moved: float
    intensity_flop_per_byte: float
    n_kernels: float
    persistent_bytes: float
    peak_live_bytes: float
    gradient_bytes: float
    coverage_frac: float
    uncounted: tuple[str, ...]
    by_kind: tuple[OpSummary, ...]
    by_phase: tuple[OpSummary, ...]
    by_module: tuple[OpSummary, ...]
    features: Mapping[str, float]
    notes: tuple[str, ...]
    table: OpTable

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast trace --format json``."""
        plain = {name: getattr(self, name) for name in _TOTALS}
        groups = {
            name: [asdict(summary) for summary in getattr(self, name)]
            for name in ("by_kind", "by_phase", "by_module")
        }
        return {
            "schema": TRACE_SCHEMA,
            **self.configuration,
            **plain,
            "uncounted": list(self.uncounted),
            **groups,
            "features": dict(self.features),
            "notes": list(self.notes),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one flat row per operator of the table, as in the CSV output."""
        columns = {name: values.tolist() for name, values in self.table.columns().items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_frame(self) -> Any:
        """Return the operators as a `pandas.DataFrame`."""
        return data_frame(self.to_rows())


TRACE_SCHEMA: Final = "joulecast/trace/1"
_TOTALS: Final = (
    "n_parameters",
    "n_trainable",
    "flop",
    "model_flop",
    "bytes_moved",
    "intensity_flop_per_byte",
    "n_kernels",
    "persistent_bytes",
    "peak_live_bytes",
    "gradient_bytes",
    "coverage_frac",
)


def trace(
    model: Any,
    inputs: Any = None,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    **options: Any,
) -> Characterisation:
    """Characterise one training step of a named model or of a module.

    Parameters
    ----------
    model : str or nn.Module
        A name as in `Scenario`, or a module (which needs the ``torch`` extra and `inputs`).
    inputs : optional
        Of a module: example tensors (a tensor, a tuple or a dict) whose first axis is the batch, or
        ``make_inputs(batch_size, seq_len)`` -> keyword arguments (dict) or positional ones (tuple). With a
        loss function, the first goes to the module and the rest to the loss.
    loss : callable, optional
        ``loss(output, inputs)`` -> scalar, where the output has no ``.loss``.
    **options
        Fields of `Scenario` that do not concern the GPU: ``batch_size``, ``seq_len``, ``image_size``,
        ``precision``, ``mode``, ``optimizer``, ``attention``, ``memory_format``, ``checkpointing``,
        ``accumulate``, ``clip``.

    Returns
    -------
    Characterisation
    """
    if isinstance(model, str):
        step = settle_step(Scenario(model=model, gpu="", **options))
        return characterise(workload_of(step), _echo(step))
    own, batch_size = own_module(model, inputs, loss)
    options.setdefault("batch_size", batch_size)
    step = settle_step(Scenario(model=own.name, gpu="", **options), own)
    return characterise(workload_of(step, own=own), _echo(step))


def _echo(step: SettledStep) -> dict[str, Any]:
    return {
        "batch_per_gpu": step.batch_size * step.accumulate,
        **{name: getattr(step, name) for name in ECHOED},
    }


def characterise(load: Workload, configuration: Mapping[str, Any]) -> Characterisation:
    """Return the counts of a workload."""
    table = load.table
    flop, bytes_moved = table.total(table.flop), table.total(table.bytes_moved)
    return Characterisation(
        configuration=configuration,
        n_parameters=load.parameters.n_parameters,
        n_trainable=load.parameters.n_trainable,
        flop=flop,
        model_flop=table.total(table.model_flop),
        bytes_moved=bytes_moved,
        intensity_flop_per_byte=flop / bytes_moved if bytes_moved else 0.0,
        n_kernels=table.total(table.n_kernels),
        persistent_bytes=load.persistent_bytes,
        peak_live_bytes=load.peak_live_bytes,
        gradient_bytes=load.gradient_bytes,
        coverage_frac=table.coverage_frac,
        uncounted=uncounted(table),
        by_kind=summaries(table, table.kind),
        by_phase=summaries(table, table.phase),
        by_module=summaries(table, table.module),
        features=load.features,
        notes=load.notes,
        table=table,
    )


def summaries(table: OpTable, labels: Strings) -> tuple[OpSummary, ...]:
    """Return the totals of the rows that share a label, largest traffic first."""
    found = []
    for label in sorted(set(labels.tolist())):
        rows = table.rows(labels == label)
        flop, bytes_moved = rows.total(rows.flop), rows.total(rows.bytes_moved)
        found.append(
            OpSummary(
                label=label,
                flop=flop,
                bytes_moved=bytes_moved,
                intensity_flop_per_byte=flop / bytes_moved if bytes_moved else 0.0,
                n_calls=float(rows.n_calls.sum()),
                n_kernels=rows.total(rows.n_kernels),
            )
        )
    return tuple(sorted(found, key=lambda summary: -summary.bytes_moved))


def uncounted(table: OpTable) -> tuple[str, ...]:
    """Return the operators that have no formula, each once."""
    return tuple(sorted(set(table.operator[table.counted == 0].tolist())))
