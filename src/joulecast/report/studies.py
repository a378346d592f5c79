"""A study as tables, for the screen and for Markdown, and its findings in words."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from joulecast.explore.findings import Finding, PublishedStudy, findings
from joulecast.explore.measured_runs import Beside
from joulecast.explore.study import (
    SHARED_BY_CARD,
    Sharing,
    Study,
    gains,
    limit_choices,
    scaling,
    sharing,
)
from joulecast.report.figures import count, digits, gibibytes, interval, percent, with_prefix
from joulecast.report.step_figures import unit_name
from joulecast.report.tables import Sheet, markdown
from joulecast.results import MemoryVerdict, Prediction, Quantity
from joulecast.units import PERCENT

#: Bounds under this share of a step are left out of a reason.
_LEAST_SHARE: Final = 0.02


def study_sheets(found: Study, measured: Sequence[Beside] = ()) -> list[Sheet | str]:
    """Return a study in full."""
    sheets: list[Sheet | str] = [_headline(found), points_sheet(found)]
    if len(found.plan.precisions) > 1:
        sheets += [gains_sheet(found), reasons_sheet(found)]
    if len(sharing(found)) > 1:
        sheets.append(sharing_sheet(found))
    if len(found.plan.n_gpus) > 1:
        sheets.append(scaling_sheet(found))
    sheets.append(limits_sheet(found))
    if measured:
        sheets.append(measured_sheet(found, measured))
    return [*sheets, *_flags(found)]


def _headline(found: Study) -> str:
    counts = ", ".join(str(n) for n in found.plan.n_gpus)
    return (
        f"{found.gpu.name} ({found.gpu.slug}), {counts} of them; intervals are 90 %, of a ratio with "
        f"{percent(SHARED_BY_CARD)} of the error shared where model and card are the same"
    )


def _flags(found: Study) -> list[Sheet | str]:
    lines: dict[str, list[str]] = {}
    for p in found.points:
        for flag in p.flags:
            labels = lines.setdefault(flag, [])
            if found.labels[p.model] not in labels:
                labels.append(found.labels[p.model])
    return [f"! {', '.join(labels)}: {flag}" for flag, labels in lines.items()]


def _ratio(quantity: Quantity) -> tuple[str, str]:
    return digits(quantity.value), interval(quantity, 1.0)


# --- tables ---------------------------------------------------------------------------------------


def points_sheet(found: Study) -> Sheet:
    """Return every model, count of cards and precision."""
    rows = []
    for p in found.points:
        size = f"{p.seq_len} tokens" if p.seq_len else f"{p.image_size} px" if p.image_size else ""
        rows.append(
            (
                found.labels[p.model],
                count(p.n_gpus),
                p.precision,
                f"{count(p.batch_per_gpu)} x {size}",
                with_prefix(p.step_time_s.value, "s"),
                digits(p.samples_per_s.value),
                interval(p.samples_per_s, 1),
                digits(p.mean_power_w.value),
                interval(p.mean_power_w, 1),
                digits(p.energy_per_sample_j.value),
                digits(p.samples_per_j.value),
                interval(p.samples_per_j, 1),
                gibibytes(p.process_bytes.value),
                _fit(p),
            )
        )
    columns = ("model", ">GPUs", "precision", "batch per GPU", ">step", ">samples/s", ">90 %", ">W/GPU")
    more = (">90 %", ">J/sample", ">samples/J", ">90 %", ">memory", "")
    return Sheet(title="throughput, power, energy, memory", columns=(*columns, *more), rows=tuple(rows))


def _fit(p: Prediction) -> str:
    return "" if p.memory_verdict is MemoryVerdict.FITS else str(p.memory_verdict)


def gains_sheet(found: Study) -> Sheet:
    """Return what every precision gains over the first."""
    baseline = found.plan.precisions[0]
    return Sheet(
        title=f"gain over {baseline}",
        columns=("model", ">GPUs", "precision", ">speed-up", ">90 %", ">energy gain", ">90 %"),
        rows=tuple(
            (
                found.labels[gain.model],
                str(gain.n_gpus),
                gain.precision,
                *_ratio(gain.time_ratio),
                *_ratio(gain.energy_ratio),
            )
            for gain in gains(found)
        ),
    )


def reasons_sheet(found: Study) -> Sheet:
    """Return what bounds the step in every precision, on the first count of cards."""
    rows = [
        (found.labels[model], precision, bounds_text(found.anatomies[model, precision].time_share))
        for model in found.models
        for precision in found.plan.precisions
    ]
    return Sheet(
        title="what bounds the step: the reason of a gain",
        columns=("model", "precision", "share of the step"),
        rows=tuple(rows),
    )


def bounds_text(shares: Mapping[str, float]) -> str:
    """Return what bounds a step, largest share first, units by the names people use."""
    shown = sorted(
        ((name, share) for name, share in shares.items() if share >= _LEAST_SHARE), key=lambda item: -item[1]
    )
    return ", ".join(f"{unit_name(name)} {100 * share:.0f} %" for name, share in shown)


def sharing_sheet(found: Study) -> Sheet:
    """Return what parameters cost in the sequence models that compare."""
    rows = sharing(found)
    first = rows[0].prediction
    return Sheet(
        title=(
            f"parameter sharing: {first.precision}, batch {count(first.batch_per_gpu)} x "
            f"{first.seq_len} tokens, {first.n_gpus} GPU{'s' if first.n_gpus > 1 else ''}"
        ),
        columns=(
            "model",
            ">parameters",
            ">shared uses",
            ">FLOP/sample",
            ">FLOP/sample/parameter",
            ">activations",
            ">memory",
            ">step",
            ">J/sample",
        ),
        rows=tuple(_sharing_row(found, row) for row in rows),
    )


def _sharing_row(found: Study, row: Sharing) -> tuple[str, ...]:
    p = row.prediction
    return (
        found.labels[row.model],
        with_prefix(row.n_parameters, "").strip(),
        str(row.n_shared_uses),
        with_prefix(row.flop_per_sample, "").strip(),
        digits(row.flop_per_sample / row.n_parameters),
        gibibytes(row.activation_bytes),
        gibibytes(p.process_bytes.value),
        with_prefix(p.step_time_s.value, "s"),
        digits(p.energy_per_sample_j.value),
    )


def scaling_sheet(found: Study) -> Sheet:
    """Return the efficiency of more cards."""
    return Sheet(
        title=f"scaling over {found.plan.n_gpus[0]} at the same batch per GPU",
        columns=(
            "model",
            "precision",
            ">GPUs",
            ">throughput per GPU",
            ">90 %",
            ">samples/J",
            ">90 %",
            ">communication shows",
            ">waits for the host",
        ),
        rows=tuple(
            (
                found.labels[s.model],
                s.precision,
                str(s.n_gpus),
                percent(s.time_efficiency.value),
                interval(s.time_efficiency, PERCENT),
                percent(s.energy_efficiency.value),
                interval(s.energy_efficiency, PERCENT),
                percent(s.communication_frac),
                percent(s.host_frac),
            )
            for s in scaling(found)
        ),
    )


def limits_sheet(found: Study) -> Sheet:
    """Return the power limit of least energy, and what it costs."""
    return Sheet(
        title="power limit of least energy, against the limit in force",
        columns=("model", "precision", ">limit", ">energy", ">90 %", ">time", ">90 %"),
        rows=tuple(
            (
                found.labels[choice.model],
                choice.precision,
                f"{digits(choice.chosen.power_limit_w)} W",
                _change(choice.energy_ratio.value),
                _changes(choice.energy_ratio),
                _change(choice.time_ratio.value),
                _changes(choice.time_ratio),
            )
            for choice in limit_choices(found)
        ),
    )


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _changes(ratio: Quantity) -> str:
    return f"{_change(ratio.low)} to {_change(ratio.high)}"


def measured_sheet(found: Study, measured: Sequence[Beside]) -> Sheet:
    """Return measured runs beside the predictions of their steps."""
    names = ("step_time_s", "mean_power_w", "energy_per_step_j")
    rows = []
    for pair in measured:
        p = pair.prediction
        cells = []
        for name in names:
            predicted: Quantity = getattr(p, name)
            value = pair.run.measured.get(name)
            if value is None:
                cells += ["-", digits(predicted.value), "-"]
            else:
                inside = predicted.low <= value <= predicted.high
                error = f"{100 * (predicted.value / value - 1):+.1f} %"
                cells += [digits(value), digits(predicted.value), error if inside else f"{error} *"]
        rows.append((found.labels[p.model], str(p.n_gpus), p.precision, count(p.batch_per_gpu), *cells))
    head = ("model", ">GPUs", "precision", ">batch")
    triples = [(f">{unit} measured", ">predicted", ">error") for unit in ("s/step", "W", "J/step")]
    return Sheet(
        title="measured runs beside the predictions (* outside the 90 % interval)",
        columns=(*head, *(column for triple in triples for column in triple)),
        rows=tuple(rows),
    )


# --- for programs ---------------------------------------------------------------------------------

STUDY_SCHEMA: Final = "joulecast/study/1"


def study_document(found: Study, measured: Sequence[Beside] = ()) -> dict[str, Any]:
    """Return the JSON document of ``joulecast study --format json``."""
    return {
        "schema": STUDY_SCHEMA,
        "gpu": found.gpu.slug,
        "baseline": found.plan.precisions[0],
        "predictions": [p.to_dict() for p in found.points],
        "gains": [
            {
                **_named(gain, "model", "precision", "n_gpus"),
                "time_ratio": gain.time_ratio.to_dict(),
                "energy_ratio": gain.energy_ratio.to_dict(),
                "baseline_time_share": dict(gain.baseline_share) if gain.baseline_share else None,
                "time_share": dict(gain.share) if gain.share else None,
            }
            for gain in gains(found)
        ],
        "sharing": [
            _named(row, "model", "n_parameters", "n_shared_uses", "flop_per_sample", "activation_bytes")
            for row in sharing(found)
        ],
        "scaling": [
            {
                **_named(row, "model", "precision", "n_gpus", "communication_frac", "host_frac"),
                "time_efficiency": row.time_efficiency.to_dict(),
                "energy_efficiency": row.energy_efficiency.to_dict(),
            }
            for row in scaling(found)
        ],
        "power_limits": [
            {
                **_named(choice, "model", "precision"),
                "power_limit_w": choice.chosen.power_limit_w,
                "energy_ratio": choice.energy_ratio.to_dict(),
                "time_ratio": choice.time_ratio.to_dict(),
            }
            for choice in limit_choices(found)
        ],
        "measured": [
            {
                "run_id": pair.run.run_id,
                **_named(pair.prediction, "model", "precision", "n_gpus", "batch_per_gpu"),
                **pair.run.measured,
            }
            for pair in measured
        ],
    }


def _named(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


# --- the published study --------------------------------------------------------------------------

_INTRODUCTION: Final = """\
# The study, by prediction

Written by `make study`; do not edit. The trade-offs of precision and parameter sharing that *Energy-Aware
Deep Learning on GPUs through Parameter Sharing and Mixed Precision Training* (SBAC-PADW 2025,
doi 10.1109/sbac-padw69789.2025.00024) measured, here as `joulecast study` predicts them on a machine without
a GPU, with the shipped parameters:

```bash
joulecast study {models} --gpu {gpu} --n-gpus {n_gpus} --precision {precisions}
```

Every model runs at its own default size and at the default batch of a study, the largest power of two up to
32 that is expected to fit in every precision: no size was chosen to meet a finding. A finding counts as
reproduced where the predicted value lies in the range that the finding states; the interval beside it says
how sure that is. Intervals are 90 %; in a ratio of two steps of one model, {shared} of the variance of their
log errors is taken as shared, as `scripts/measure_error_correlation` finds on public runs, and none in a
ratio of two models."""


def study_markdown(
    found: PublishedStudy, measured: Sequence[Beside] = (), figures: Sequence[str] = ()
) -> str:
    """Return the page of the published study.

    Parameters
    ----------
    found : PublishedStudy
    measured : sequence of Beside
    figures : sequence of str
        Markdown of the figures, in order.
    """
    main = found.main
    judged = findings(found)
    parts = [
        _INTRODUCTION.format(
            models=" ".join(main.plan.models),
            gpu=main.plan.gpu,
            n_gpus=",".join(map(str, main.plan.n_gpus)),
            precisions=",".join(main.plan.precisions),
            shared=percent(SHARED_BY_CARD),
        ),
        "## Findings",
        markdown(_findings_sheet(judged)),
        *(_finding(i, finding) for i, finding in enumerate(judged, start=1)),
        _gain_by_batch(main),
        "## Numbers",
    ]
    sheets = [sheet for sheet in study_sheets(main, measured) if isinstance(sheet, Sheet)]
    parts += [_titled(sheet) for sheet in sheets]
    if not measured:
        parts.append("No measured run stands beside: none was given (`scripts/write_study RUNS.csv`).")
    parts += [f"{line}" for line in study_sheets(main) if isinstance(line, str) and line.startswith("!")]
    if figures:
        parts += ["## Figures", *figures]
    return "\n\n".join(parts) + "\n"


def _titled(sheet: Sheet) -> str:
    title = sheet.title[0].upper() + sheet.title[1:]
    return f"### {title}\n\n{markdown(Sheet(columns=sheet.columns, rows=sheet.rows))}"


def _findings_sheet(judged: Sequence[Finding]) -> Sheet:
    return Sheet(
        columns=(">", "the study found", "prediction"),
        rows=tuple(
            (str(i), finding.claim, f"**{finding.verdict}**") for i, finding in enumerate(judged, start=1)
        ),
    )


def _finding(i: int, finding: Finding) -> str:
    rows = tuple(
        (
            case.label,
            digits(case.found.value),
            "exact" if case.found.low == case.found.high else interval(case.found, 1.0),
            "yes" if case.holds else "no, but the interval does" if case.may_hold else "no",
        )
        for case in finding.cases
    )
    sheet = Sheet(columns=("", ">predicted", ">90 % interval", "agrees"), rows=rows)
    return f"### {i}. {finding.claim}: {finding.verdict}\n\n{markdown(sheet)}\n\n{finding.why}"


def _gain_by_batch(found: Study) -> str:
    """Return the speed-up of BF16 by batch, model by model."""
    baseline = found.plan.precisions[0]
    lines: dict[str, dict[float, str]] = {}
    for model in found.models:
        own = found.point(model, baseline).batch_per_gpu
        pairs = (found.curve(found.batch_curve, model, precision) for precision in (baseline, "bf16"))
        for before, after in zip(*pairs, strict=True):
            fits = before.memory_verdict is not MemoryVerdict.DOES_NOT_FIT
            ratio = before.step_time_s.value / after.step_time_s.value
            cell = digits(ratio) if fits else "does not fit"
            lines.setdefault(found.labels[model], {})[before.batch_per_gpu / own] = cell
    scales = sorted({scale for line in lines.values() for scale in line})
    sheet = Sheet(
        columns=("model", ">study's batch", *(f">{scale:g} x" for scale in scales)),
        rows=tuple(
            (
                found.labels[model],
                count(found.point(model, baseline).batch_per_gpu),
                *(lines[found.labels[model]].get(scale, "") for scale in scales),
            )
            for model in found.models
        ),
    )
    return (
        "### Speed-up of BF16 over FP32 by batch, one GPU\n\n"
        f"{markdown(sheet)}\n\nBatches are multiples of the study's own; the host decides at the small ones."
    )
