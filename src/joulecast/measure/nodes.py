"""Records of the nodes of one job -> the record of the job: each node once, energies added."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joulecast.errors import UsageError
from joulecast.results import MeasuredQuantity, Measurement, RunStatus

#: Sums over nodes; the others are those of the slowest, or fullest, node.
_ADDED = ("gpu_energy_j", "cpu_energy_j", "dram_energy_j", "energy_per_step_j", "energy_per_sample_j")
_LARGEST = ("step_time_s", "allocated_bytes", "reserved_bytes", "process_bytes", "temperature_c")


def combine(records: Sequence[Measurement]) -> Measurement:
    """Return the record of a job from those of its nodes.

    Parameters
    ----------
    records : sequence of Measurement
        One or more of each node, of one job; a node that comes twice counts once.

    Raises
    ------
    UsageError
        There is none, or they are not of one job.
    """
    by_node: dict[tuple[str, ...], Measurement] = {}
    for found in records:
        by_node.setdefault(found.nodes, found)
    nodes = list(by_node.values())
    if not nodes:
        raise UsageError("there is no record to combine")
    jobs = {record.job_id for record in nodes}
    if len(nodes) > 1 and (len(jobs) > 1 or None in jobs):
        raise UsageError("records of different jobs cannot be combined: they need the same job_id")
    first = nodes[0]
    if len(nodes) == 1:
        return first
    n_gpus = [record.n_gpus for record in nodes]
    added: dict[str, Any] = {name: _added([getattr(r, name) for r in nodes]) for name in _ADDED}
    largest: dict[str, Any] = {name: _largest([getattr(r, name) for r in nodes]) for name in _LARGEST}
    return replace(
        first,
        **added,
        **largest,
        n_gpus=None if None in n_gpus else sum(n for n in n_gpus if n),
        mean_power_w=_mean_power(nodes),
        samples_per_j=added["energy_per_sample_j"].into(1.0),
        repeat_energy_per_step_j=_by_repeat(nodes),
        status=first.status if len({r.status for r in nodes}) == 1 else RunStatus.PARTIAL,
        nodes=tuple(dict.fromkeys(name for r in nodes for name in r.nodes)),
        flags=tuple(dict.fromkeys(flag for r in nodes for flag in r.flags)),
    )


def _by_repeat(nodes: Sequence[Measurement]) -> tuple[float, ...]:
    columns = [record.repeat_energy_per_step_j for record in nodes]
    return tuple(map(sum, zip(*columns, strict=False))) if all(columns) else ()


def _added(parts: Sequence[MeasuredQuantity]) -> MeasuredQuantity:
    """Return the sum, absent where a part is."""
    missing = [part for part in parts if part.value is None]
    if missing:
        return missing[0]
    return replace(
        parts[0],
        value=sum(part.value or 0.0 for part in parts),
        low=sum(part.low or 0.0 for part in parts),
        high=sum(part.high or 0.0 for part in parts),
    )


def _largest(parts: Sequence[MeasuredQuantity]) -> MeasuredQuantity:
    return max(parts, key=lambda part: -1.0 if part.value is None else part.value)


def _mean_power(nodes: Sequence[Measurement]) -> MeasuredQuantity:
    """Return the mean over GPUs of all nodes. [W]"""
    n_gpus = sum(record.n_gpus or 1 for record in nodes)
    return _added([record.mean_power_w.times((record.n_gpus or 1) / n_gpus) for record in nodes])
