"""Figures of single steps: rooflines, operators, memory, sharing.

In: `Anatomy` records. Out: `Figure` records, with captions that say in words what they show.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from joulecast.explore.anatomy import MEMORY_PARTS, Anatomy
from joulecast.explore.study import Sharing
from joulecast.report.charts import Figure, Panel, bars, roofline, stack
from joulecast.report.figures import digits, gibibytes, percent, with_prefix
from joulecast.results import Prediction
from joulecast.units import GIB, TERA
from joulecast.workload.table import OpKind

#: What people call the arithmetic units.
UNIT_NAMES: Final[Mapping[str, str]] = {
    "vector": "vector units without products",
    "fp32_vector": "FP32 vector units",
    "fp32_matrix": "FP32 matrix units",
    "fp64_vector": "FP64 vector units",
    "tf32_tensor": "TF32 tensor cores",
    "tf32x3": "TF32 tensor cores (3 products for 1)",
    "bf16_tensor": "BF16 tensor cores",
    "fp16_tensor": "FP16 tensor cores",
    "fp8_tensor": "FP8 tensor cores",
}

#: Group of operators -> its kinds, in the order of the stack.
_GROUPS: Final[Mapping[str, tuple[OpKind, ...]]] = {
    "matrix products": (OpKind.GEMM, OpKind.BATCHED_GEMM),
    "convolutions": (OpKind.CONVOLUTION,),
    "fused attention": (OpKind.ATTENTION,),
    "elementwise, copies": (OpKind.ELEMENTWISE, OpKind.COPY),
    "norms, softmax, reductions": (
        OpKind.LAYER_NORM,
        OpKind.BATCH_NORM,
        OpKind.GROUP_NORM,
        OpKind.SOFTMAX,
        OpKind.REDUCTION,
    ),
    "optimizer": (OpKind.OPTIMIZER,),
    "other operators": (OpKind.POOL, OpKind.EMBEDDING, OpKind.INDEX, OpKind.OTHER),
}
_WAITING: Final = "waiting: host, communication"
_GROUP_OF: Final = {kind: name for name, kinds in _GROUPS.items() for kind in kinds}
_PRODUCTS: Final = ("matrix products", "convolutions", "fused attention")


#: Operators that take less of the step are not drawn on a roofline.
_LEAST_SHARE: Final = 1e-3


def unit_name(path: str) -> str:
    """Return what people call an arithmetic unit, or a bound."""
    return UNIT_NAMES.get(path, path)


# --- roofline -------------------------------------------------------------------------------------


def roofline_figure(steps: Mapping[str, Anatomy]) -> Figure | None:
    """Return the operators of steps under the roofs of their card.

    Parameters
    ----------
    steps : mapping of str to Anatomy
        By label.
    """
    marks = {label: _roofline_records(parts) for label, parts in steps.items()}
    marks = {label: records for label, records in marks.items() if records}
    roofs = {label: _roofs(steps[label], records) for label, records in marks.items()}
    if not marks:
        return None
    bandwidths = {label: steps[label].gpu.bandwidth_bytes_per_s for label in marks}
    domains = _roofline_domains(marks, roofs, bandwidths)
    panels = [
        Panel(
            title=label,
            chart=roofline(
                records,
                roofs[label],
                bandwidth_bytes_per_s=bandwidths[label],
                domains=domains,
                series=_PRODUCTS,
            ),
        )
        for label, records in marks.items()
    ]
    shares = [_product_share(parts) for parts in steps.values()]
    return Figure(
        name="roofline",
        title="Operators on the roofline",
        caption=(
            "Each mark is one operator of the step, all its calls together; the larger, the longer it takes. "
            "The sloped line is the card's memory bandwidth, each level line the dense peak of an arithmetic "
            "unit at the clock the step settles at. A mark under the slope is held back by memory, one under "
            "a level by its unit. Operators without products (elementwise, norms, optimizer) do no work that "
            f"counts here, and those under {percent(_LEAST_SHARE)} of the step are left out: products take "
            f"{percent(min(shares))} to {percent(max(shares))} of the step."
        ),
        panels=tuple(panels),
        series=_PRODUCTS,
        mark="point",
    )


def _roofs(parts: Anatomy, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    paths = sorted({record["path"] for record in records}, key=lambda path: -parts.peak_flop_per_s(path))
    return [{"y": parts.peak_flop_per_s(path) / TERA, "name": unit_name(path)} for path in paths]


def _roofline_domains(
    marks: Mapping[str, Sequence[Mapping[str, Any]]],
    roofs: Mapping[str, Sequence[Mapping[str, Any]]],
    bandwidths: Mapping[str, float],
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of both axes that hold every mark and every ridge."""
    ridges = [roof["y"] / (bandwidths[label] / TERA) for label in roofs for roof in roofs[label]]
    x = [record["x"] for records in marks.values() for record in records]
    y = [record["y"] for records in marks.values() for record in records]
    tops = [roof["y"] for several in roofs.values() for roof in several]
    return (min([*x, *ridges]) / 2, max([*x, *ridges]) * 2), (min([*y, *tops]) / 2, max([*y, *tops]) * 2)


def _product_share(parts: Anatomy) -> float:
    return float(parts.time_s[parts.flop > 0].sum()) / parts.step_time_s


def _roofline_records(parts: Anatomy) -> list[dict[str, Any]]:
    records = []
    for i in np.flatnonzero((parts.flop > 0) & (parts.bytes_moved > 0) & (parts.time_s > 0)):
        group = _GROUP_OF[OpKind(parts.kind[i])]
        rate, share = float(parts.flop[i] / parts.time_s[i]), float(parts.time_s[i] / parts.step_time_s)
        if group not in _PRODUCTS or share < _LEAST_SHARE:
            continue
        records.append(
            {
                "x": float(parts.flop[i] / parts.bytes_moved[i]),
                "y": rate / TERA,
                "size": share,
                "series": group,
                "path": str(parts.path[i]),
                "shown": (
                    f"{parts.operator[i]}, {parts.phase[i]}: {with_prefix(rate, 'FLOP/s')}, "
                    f"{percent(share)} of the step, on {unit_name(str(parts.path[i]))}, "
                    f"bound by {parts.bound[i]}"
                ),
            }
        )
    return records


# --- operators ------------------------------------------------------------------------------------


def operators_figure(
    steps: Mapping[str, Anatomy], energies_j: Mapping[str, float], baselines: Mapping[str, str]
) -> Figure:
    """Return time and energy of steps by group of operators, over those of each step's baseline.

    Parameters
    ----------
    steps : mapping of str to Anatomy
        By label.
    energies_j : mapping of str to float
        Energy of one GPU and step, by label. [J]
    baselines : mapping of str to str
        Label -> label of the step that is 1.
    """
    series = (*_GROUPS, _WAITING)
    time, energy = [], []
    for label, parts in steps.items():
        base_s, base_j = steps[baselines[label]].step_time_s, energies_j[baselines[label]]
        spent_s, spent_j = _by_group(parts, parts.time_s), _by_group(parts, parts.energy_j)
        spent_s[_WAITING] = max(parts.step_time_s - sum(spent_s.values()), 0.0)
        spent_j[_WAITING] = max(energies_j[label] - sum(spent_j.values()), 0.0)
        time += _stack_records(label, spent_s, base_s, parts.step_time_s, "s")
        energy += _stack_records(label, spent_j, base_j, energies_j[label], "J")
    used = tuple(name for name in series if any(r["series"] == name for r in (*time, *energy)))
    labels = list(steps)
    longest = max(steps, key=lambda label: _share_of(time, label, _PRODUCTS))
    return Figure(
        name="operators",
        title="Where time and energy go",
        caption=(
            "Every bar is one step, as long as it takes relative to the first precision of the same model, "
            "so that the bars of a model show both how much a precision saves and on which operators. "
            f"The step that spends most on products is {longest}, "
            f"{percent(_share_of(time, longest, _PRODUCTS))} of its time; what waits is a GPU that the host "
            "or the other GPUs keep idle, and it draws power all the same."
        ),
        panels=(
            Panel(
                title="Time", chart=stack(time, x_title="Step time / baseline", labels=labels, series=used)
            ),
            Panel(
                title="Energy", chart=stack(energy, x_title="Energy / baseline", labels=labels, series=used)
            ),
        ),
        series=used,
        mark="bar",
        n_columns=2,
    )


def _by_group(parts: Anatomy, amounts: Any) -> dict[str, float]:
    return {
        name: float(amounts[np.isin(parts.kind, [str(kind) for kind in kinds])].sum())
        for name, kinds in _GROUPS.items()
    }


def _stack_records(
    label: str, spent: Mapping[str, float], base: float, total: float, unit: str
) -> list[dict[str, Any]]:
    return [
        {
            "label": label,
            "x": amount / base,
            "series": name,
            "share": amount / total,
            "shown": f"{label}: {name} {with_prefix(amount, unit)}, {percent(amount / total)}",
        }
        for name, amount in spent.items()
        if amount > 0
    ]


def _share_of(records: Sequence[Mapping[str, Any]], label: str, names: Sequence[str]) -> float:
    return float(sum(r["share"] for r in records if r["label"] == label and r["series"] in names))


# --- memory ---------------------------------------------------------------------------------------


def memory_figure(
    steps: Mapping[str, Anatomy], predictions: Mapping[str, Prediction], *, name: str = "memory"
) -> Figure:
    """Return the parts of the memory of steps of one card against its capacity; both by label."""
    records = [
        {
            "label": label,
            "x": size / GIB,
            "series": part,
            "shown": f"{label}: {part} {gibibytes(size)}",
        }
        for label, parts in steps.items()
        for part, size in parts.memory_bytes.items()
    ]
    ends = [
        {
            "label": label,
            "low": p.process_bytes.low / GIB,
            "high": p.process_bytes.high / GIB,
            "shown": f"{label}: process {gibibytes(p.process_bytes.value)}, 90 % interval "
            f"{gibibytes(p.process_bytes.low)} to {gibibytes(p.process_bytes.high)}: {p.memory_verdict}",
        }
        for label, p in predictions.items()
    ]
    first = next(iter(predictions.values()))
    risky = [label for label, p in predictions.items() if p.process_bytes.high > p.capacity_bytes]
    verdict = (
        f"The interval of {', '.join(risky)} reaches beyond it: {'it' if len(risky) == 1 else 'they'} may "
        "run out of memory."
        if risky
        else "All intervals end below it."
    )
    return Figure(
        name=name,
        title=f"Memory against the capacity of {first.gpu}",
        caption=(
            "What the memory of one GPU holds at the peak of a step, from what the model needs to what the "
            "machine adds; the line across the end of a bar is the 90 % interval of the whole, the red line "
            f"the capacity of the {first.gpu_name}, {gibibytes(first.capacity_bytes)}. {verdict}"
        ),
        panels=(
            Panel(
                title="",
                chart=stack(
                    records,
                    x_title="Memory of the process (GiB)",
                    labels=list(steps),
                    series=MEMORY_PARTS,
                    limit=(first.capacity_bytes / GIB, "capacity"),
                    ends=ends,
                ),
            ),
        ),
        series=MEMORY_PARTS,
        mark="bar",
        n_columns=1,
    )


# --- sharing --------------------------------------------------------------------------------------


def sharing_figure(rows: Sequence[Sharing], labels: Mapping[str, str]) -> Figure | None:
    """Return what models cost relative to the fastest; None for fewer than two."""
    if len(rows) < 2:  # noqa: PLR2004 (one model has nothing to be compared with)
        return None
    reference = min(rows, key=lambda row: row.prediction.step_time_s.value)
    names = tuple(labels[row.model] for row in rows)
    records = []
    for row in rows:
        p, r = row.prediction, reference.prediction
        exact = {
            "parameters": (row.n_parameters, reference.n_parameters),
            "work per sample": (row.flop_per_sample, reference.flop_per_sample),
            "activations": (row.activation_bytes, reference.activation_bytes),
        }
        records += [
            _sharing_record(what, labels[row.model], mine / other) for what, (mine, other) in exact.items()
        ]
        ratios = {
            "memory, process": p.process_bytes.over(r.process_bytes),
            "step time": p.step_time_s.over(r.step_time_s),
            "energy per sample": p.energy_per_sample_j.over(r.energy_per_sample_j),
        }
        for what, ratio in ratios.items():
            ends = {} if row is reference else {"low": ratio.low, "high": ratio.high}
            records.append({**_sharing_record(what, labels[row.model], ratio.value), **ends})
    quantities = list(dict.fromkeys(record["label"] for record in records))
    return Figure(
        name="sharing",
        title="What sharing parameters saves, and what not",
        caption=_sharing_caption(rows, reference, labels),
        panels=(
            Panel(
                title="",
                chart=bars(
                    records,
                    x_title=f"Relative to {labels[reference.model]} (1 = equal)",
                    labels=quantities,
                    series=names,
                    reference_x=1.0,
                ),
            ),
        ),
        series=names,
        mark="bar",
        n_columns=1,
    )


def _sharing_record(what: str, name: str, ratio: float) -> dict[str, Any]:
    return {"label": what, "x": ratio, "series": name, "shown": f"{name}, {what}: {digits(ratio)} times"}


def _sharing_caption(rows: Sequence[Sharing], reference: Sharing, labels: Mapping[str, str]) -> str:
    most = max(rows, key=lambda row: row.n_shared_uses)
    p, r = most.prediction, reference.prediction
    return (
        f"{labels[most.model]} has {with_prefix(most.n_parameters, '').strip()} parameters and uses them "
        f"{most.n_shared_uses} times beyond the first in one forward pass. Sharing saves parameters, their "
        "gradients and their optimizer state; every use still computes and keeps its activations: the step "
        f"takes {digits(p.step_time_s.value / r.step_time_s.value)} times as long as "
        f"{labels[reference.model]}'s and {digits(p.process_bytes.value / r.process_bytes.value)} times the "
        f"memory, with {percent(most.n_parameters / reference.n_parameters).replace('.0 %', ' %')} of the "
        "parameters."
    )
