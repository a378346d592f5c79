"""A `StepTrace` at one size, with optimizer, accumulation, clipping and scaling -> `Workload`."""

from collections.abc import Mapping
from math import isfinite

import numpy as np

from joulecast.errors import DoesNotFitError, UsageError
from joulecast.workload.calls import Work, table_of
from joulecast.workload.policies import MODES, PrecisionPolicy, checked_optimizer, precision_policy
from joulecast.workload.table import (
    Dtype,
    Floats,
    OpKind,
    OpTable,
    OptimizerTrace,
    ParameterCount,
    Phase,
    StepTrace,
    Workload,
    Workloads,
    alone,
    concatenate,
)
from joulecast.workload.traffic import multi_tensor_launches


def workload(
    trace: StepTrace,
    *,
    batch_size: float,
    seq_len: float = 0.0,
    precision: str = "fp32",
    mode: str = "train",
    optimizer: str = "adamw",
    accumulate: int = 1,
    clip: bool = False,
) -> Workload:
    """Return what one GPU does in one optimizer step.

    Parameters
    ----------
    trace : StepTrace
        Of the policy's variant and of the mode.
    batch_size : float
        Samples of one micro-batch.
    seq_len : float
        Tokens per sample; 0 where a sample is not a sequence.
    precision, mode, optimizer : str
        As in `policies`; the optimizer counts in mode ``train`` only.
    accumulate : int
        Micro-batches per optimizer step.
    clip : bool
        Whether gradients are clipped by their norm.

    Raises
    ------
    UsageError
        If an option is unknown, or a size not positive.
    DoesNotFitError
        If the trace is not exact at this size.
    """
    policy = precision_policy(precision)
    _check(trace, batch_size, seq_len, mode, accumulate)
    tables = [trace.table(batch_size, seq_len).repeated(accumulate)]
    parameters = trace.parameters
    if accumulate > 1 and mode != "forward":
        tables.append(_accumulation(parameters, accumulate - 1))
    persistent = float(parameters.parameter_bytes + parameters.buffer_bytes)
    step = _optimizer_of(trace, optimizer, policy) if mode == "train" else None
    if step is not None:
        tables.append(step.table)
        tables.extend(_gradient_passes(parameters, clip=clip, scaler=policy.scaler))
        persistent += step.state_bytes
    table = concatenate(*tables)
    live_bytes = trace.peak_live_bytes(np.array([batch_size]), seq_len)
    peak_live = float(_peak_live_bytes(live_bytes, parameters, mode, accumulate, step)[0])
    return Workload(
        table=table,
        batch_size=batch_size * accumulate,
        seq_len=seq_len,
        precision=precision,
        mode=mode,
        parameters=parameters,
        gradient_bytes=float(parameters.trainable_bytes) if mode != "forward" else 0.0,
        persistent_bytes=persistent,
        peak_live_bytes=peak_live,
        features={**trace.features, **structural_features(table, peak_live)},
        notes=trace.notes,
    )


def workloads(
    trace: StepTrace,
    *,
    batch_sizes: Floats,
    seq_len: float = 0.0,
    precision: str = "fp32",
    mode: str = "train",
    optimizer: str = "adamw",
    accumulate: int = 1,
    clip: bool = False,
) -> Workloads:
    """Return what `workload` returns at many batch sizes, evaluated at once.

    Parameters
    ----------
    trace : StepTrace
        Linear in the batch.
    batch_sizes : ndarray [size]
        Samples of one micro-batch.
    seq_len, precision, mode, optimizer, accumulate, clip
        As `workload` takes them.

    Raises
    ------
    UsageError, DoesNotFitError
        As `workload` does.
    """
    first = workload(
        trace,
        batch_size=float(batch_sizes.min()),
        seq_len=seq_len,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        accumulate=accumulate,
        clip=clip,
    )
    step = _optimizer_of(trace, optimizer, precision_policy(precision)) if mode == "train" else None
    scaling = np.repeat(alone(first).scaling, len(batch_sizes), axis=0)  # [size, op, column]
    scaling[:, : len(trace.polynomials)] = trace.scaling(batch_sizes, seq_len)
    live_bytes = trace.peak_live_bytes(batch_sizes, seq_len)
    return Workloads(
        first=first,
        batch_size=batch_sizes * accumulate,
        scaling=scaling,
        peak_live_bytes=_peak_live_bytes(live_bytes, trace.parameters, mode, accumulate, step),
    )


def _peak_live_bytes(
    live_bytes: Floats,
    parameters: ParameterCount,
    mode: str,
    accumulate: int,
    step: OptimizerTrace | None,
) -> Floats:
    """Return the most alive in a step, given that of one forward and backward pass. [bytes] [size]."""
    if accumulate > 1 and mode != "forward":
        live_bytes = live_bytes + parameters.trainable_bytes
    if step is None:
        return live_bytes
    return np.maximum(live_bytes, parameters.trainable_bytes + step.temporary_bytes)


def _check(trace: StepTrace, batch_size: float, seq_len: float, mode: str, accumulate: int) -> None:
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; one of {', '.join(MODES)}")
    if not isfinite(batch_size) or batch_size < 1:
        raise UsageError(f"batch size must be at least 1, not {batch_size}")
    if accumulate < 1:
        raise UsageError(f"accumulation must be at least 1 micro-batch, not {accumulate}")
    shortest, longest = trace.seq_len_range
    if not shortest <= seq_len <= longest and trace.tokens_per_sample_is_seq_len:
        raise DoesNotFitError(f"the trace holds for sequences of {shortest:.0f} tokens, not {seq_len:.0f}")
    if not trace.batch_exact and batch_size != trace.batch_traced:
        raise DoesNotFitError(
            "the model's work is not linear in the batch: the trace holds for batch "
            f"{trace.batch_traced:.0f} alone, not {batch_size:.0f}"
        )


def _optimizer_of(trace: StepTrace, optimizer: str, policy: PrecisionPolicy) -> OptimizerTrace:
    name = checked_optimizer(optimizer) + ("+master" if policy.masters else "")
    if name not in trace.optimizers:
        raise UsageError(f"the trace has no step of {name}; traced: {', '.join(trace.optimizers)}")
    return trace.optimizers[name]


def _row(
    operator: str, m: float, read_bytes: float, written_bytes: float, n_calls: float, n_kernels: float
) -> OpTable:
    """Return a table of one memory-bound optimizer kernel."""
    label = (OpKind.OPTIMIZER, Phase.OPTIMIZER, Dtype.FP32, operator, "")
    work = Work(
        kind=OpKind.OPTIMIZER,
        dtype=Dtype.FP32,
        m=m,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        n_kernels=n_kernels,
    )
    return table_of([label], [work]).repeated(n_calls)


def _accumulation(parameters: ParameterCount, n_times: int) -> OpTable:
    """Return the adding of a micro-batch's gradients to those there, one kernel for each tensor."""
    n_tensors = max(parameters.n_tensors, 1)
    mean_bytes = parameters.trainable_bytes / n_tensors
    mean_elements = parameters.n_trainable / n_tensors
    return _row("accumulate_grad", mean_elements, 2 * mean_bytes, mean_bytes, n_tensors * n_times, 1)


def _gradient_passes(parameters: ParameterCount, *, clip: bool, scaler: bool) -> list[OpTable]:
    """Return the passes over all gradients: unscaling with its overflow check; norm and clipping."""
    n_bytes, n_elements = float(parameters.trainable_bytes), float(parameters.n_trainable)
    mean = n_elements / max(parameters.n_tensors, 1)
    launches = multi_tensor_launches([mean] * parameters.n_tensors, 1)
    rows = []
    if scaler:
        rows.append(_row("unscale_grads", n_elements, n_bytes, n_bytes, 1, launches))
    if clip:
        rows.append(_row("grad_norm", n_elements, n_bytes, 0.0, 1, launches))
        rows.append(_row("clip_grads", n_elements, n_bytes, n_bytes, 1, launches))
    return rows


def structural_features(table: OpTable, peak_live_bytes: float) -> Mapping[str, float]:
    """Return what characterises a step's table, for the calibration and for `trace`.

    Shares are of the step's FLOPs; intensity is FLOPs per byte; saved bytes are the peak of what is alive.
    """
    total, n_bytes = table.total(table.flop), table.total(table.bytes_moved)
    n_kernels = table.total(table.n_kernels)
    per_flop = 1.0 / total if total > 0 else 0.0
    convolution = table.kind == OpKind.CONVOLUTION
    depthwise = convolution & (table.groups > 1) & (table.group_width == 1)
    grouped = convolution & (table.groups > 1) & (table.group_width > 1)
    attention = table.kind == OpKind.ATTENTION
    return {
        "flop": total,
        "bytes": n_bytes,
        "intensity_flop_per_byte": total / n_bytes if n_bytes else 0.0,
        "n_kernels": n_kernels,
        "kernels_per_flop": n_kernels * per_flop,
        "convolution_share": table.total(table.flop * convolution) * per_flop,
        "depthwise_share": table.total(table.flop * depthwise) * per_flop,
        "grouped_share": table.total(table.flop * grouped) * per_flop,
        "attention_share": table.total(table.flop * attention) * per_flop,
        "saved_bytes_per_flop": peak_live_bytes * per_flop,
        "coverage": table.coverage_frac,
    }
