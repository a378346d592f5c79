"""Predictions for people: one as a page, several as a table."""

from collections.abc import Callable, Sequence
from typing import Final

from joulecast.report.figures import (
    count,
    digits,
    gibibytes,
    hours,
    interval,
    joined,
    kilowatt_hours,
    megahertz,
    percent,
    ranged,
    with_prefix,
)
from joulecast.report.tables import Sheet
from joulecast.results import Prediction, Quantity
from joulecast.units import GIB, J_PER_KWH, MEGA, PERCENT, SECONDS_PER_HOUR

_N_GROUPS: Final = 10
_N_GUESSES: Final = 6


def prediction_page(p: Prediction) -> list[Sheet | str]:
    """Return one prediction in full."""
    page: list[Sheet | str] = [_headline(p), _echo(p), ""]
    page.append(Sheet(columns=("", ">", ">90 % interval", "from"), rows=tuple(_figures(p))))
    page.append(_memory_line(p))
    page.append(f"bound by {p.bound_by}: {joined(_largest_first(p.time_share_by_bound))} of the step")
    if p.mfu is not None:
        page.append(f"MFU divides by {with_prefix(p.mfu_peak_flop_per_s, 'FLOP/s')} dense ({_units(p)})")
    page += ["", _groups_sheet(p)]
    page += _remarks(p)
    return page


def _headline(p: Prediction) -> str:
    return f"{p.model} on {p.n_gpus} x {p.gpu_name} ({p.gpu}), {p.precision}, {_MODE_WORDS[p.mode]}"


_MODE_WORDS: Final = {
    "train": "one training step",
    "train-no-optimizer": "forward and backward",
    "forward": "forward pass",
}


def _echo(p: Prediction) -> str:
    parts = [f"batch {count(p.batch_per_gpu)} per GPU"]
    if p.n_gpus > 1:
        parts.append(f"{count(p.global_batch)} in all ({p.parallel})")
    if p.accumulate > 1:
        parts.append(f"in {p.accumulate} micro-batches")
    if p.seq_len:
        parts.append(f"sequence {p.seq_len}")
    if p.image_size:
        parts.append(f"image {p.image_size}")
    parts += [part for part in (p.optimizer, p.attention and f"{p.attention} attention") if part]
    parts.append(p.memory_format)
    parts += [name for name, on in (("checkpointing", p.checkpointing), ("clipping", p.clip)) if on]
    parts.append(f"limit {digits(p.power_limit_w)} W")
    if p.locked_sm_clock_hz:
        parts.append(f"clock locked at {megahertz(p.locked_sm_clock_hz)}")
    parts.append(f"{p.n_sms} SMs")
    return "  " + ", ".join(parts)


def _figures(p: Prediction) -> list[tuple[str, str, str, str]]:
    """Return label, value, interval and origin of the main quantities."""
    step_time, step_interval = ranged(p.step_time_s, "s")
    energy, energy_interval = ranged(p.energy_per_step_j, "J")
    per_sample, per_sample_interval = ranged(p.energy_per_sample_j, "J")
    rows = [
        ("step time", step_time, step_interval, p.step_time_s),
        ("samples/s", digits(p.samples_per_s.value), interval(p.samples_per_s, 1), p.samples_per_s),
        (
            "mean power per GPU",
            f"{digits(p.mean_power_w.value)} W",
            interval(p.mean_power_w, 1),
            p.mean_power_w,
        ),
        ("energy per step", energy, energy_interval, p.energy_per_step_j),
        ("energy per sample", per_sample, per_sample_interval, p.energy_per_sample_j),
        ("samples per joule", digits(p.samples_per_j.value), interval(p.samples_per_j, 1), p.samples_per_j),
        ("SM clock", megahertz(p.sm_clock_hz.value), interval(p.sm_clock_hz, MEGA, 4), p.sm_clock_hz),
    ]
    if p.tokens_per_s is not None:
        rows.insert(
            2, ("tokens/s", digits(p.tokens_per_s.value), interval(p.tokens_per_s, 1), p.tokens_per_s)
        )
    if p.mfu is not None:
        rows.append(("MFU", percent(p.mfu.value), interval(p.mfu, PERCENT), p.mfu))
    memory: tuple[tuple[str, Quantity], ...] = (
        ("memory allocated", p.allocated_bytes),
        ("memory reserved", p.reserved_bytes),
        ("memory of the process", p.process_bytes),
    )
    rows += [(label, gibibytes(q.value), interval(q, GIB), q) for label, q in memory]
    if p.whole_run is not None:
        time, energy_j = p.whole_run.run_time_s, p.whole_run.run_energy_j
        rows.append(("whole run", hours(time.value), interval(time, SECONDS_PER_HOUR), time))
        rows.append(
            ("energy of the GPUs", kilowatt_hours(energy_j.value), interval(energy_j, J_PER_KWH), energy_j)
        )
    return [(label, value, span, str(quantity.origin)) for label, value, span, quantity in rows]


def _memory_line(p: Prediction) -> str:
    return (
        f"memory: {p.memory_verdict} (process at most {gibibytes(p.process_bytes.high)} "
        f"of {gibibytes(p.capacity_bytes)})"
    )


def _largest_first(shares: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def _units(p: Prediction) -> str:
    shares = _largest_first(p.mfu_paths)
    return shares[0][0] if len(shares) == 1 else joined(shares)


def _groups_sheet(p: Prediction) -> Sheet:
    rows = tuple(
        (
            g.kind,
            g.phase,
            with_prefix(g.time_s, "s"),
            percent(g.time_share_frac),
            with_prefix(g.energy_j, "J"),
            percent(g.energy_share_frac),
            f"{g.n_kernels:.0f}",
            g.bound_by,
        )
        for g in p.op_groups[:_N_GROUPS]
    )
    return Sheet(
        title="costliest operators of one GPU",
        columns=("kind", "phase", ">time", ">", ">energy", ">", ">kernels", "bound by"),
        rows=rows,
    )


def _remarks(p: Prediction) -> list[Sheet | str]:
    lines: list[Sheet | str] = []
    lines += [f"! {flag}" for flag in p.flags]
    if p.coverage.value < 1:
        lines.append(f"! {percent(p.coverage.value)} of the traffic is in operators with a formula")
    if p.guesses:
        more = f" and {len(p.guesses) - _N_GUESSES} more" if len(p.guesses) > _N_GUESSES else ""
        lines.append(f"guessed facts of this card: {', '.join(p.guesses[:_N_GUESSES])}{more}")
    lines += list(p.notes)
    return lines


# --- several --------------------------------------------------------------------------------------

#: Configuration that becomes a column where it differs, and a line above the table where it does not.
_CONFIGURATION: Final[tuple[tuple[str, Callable[[Prediction], str]], ...]] = (
    ("model", lambda p: p.model.partition("#")[0]),
    ("task", lambda p: p.model.partition("#")[2] or "-"),
    ("GPU", lambda p: f"{p.n_gpus} x {p.gpu}" if p.n_gpus > 1 else p.gpu),
    ("precision", lambda p: p.precision),
    ("mode", lambda p: p.mode),
    ("batch/GPU", lambda p: count(p.batch_per_gpu)),
    ("sequence", lambda p: str(p.seq_len or "-")),
    ("image", lambda p: str(p.image_size or "-")),
    ("optimizer", lambda p: p.optimizer or "-"),
    ("attention", lambda p: p.attention or "-"),
    ("format", lambda p: p.memory_format),
    ("limit", lambda p: f"{digits(p.power_limit_w)} W"),
    ("SMs", lambda p: str(p.n_sms)),
)

_FIGURES: Final[tuple[tuple[str, Callable[[Prediction], str]], ...]] = (
    (">step", lambda p: with_prefix(p.step_time_s.value, "s")),
    (">+/-", lambda p: _half_width(p.step_time_s)),
    (">samples/s", lambda p: digits(p.samples_per_s.value)),
    (">MFU", lambda p: percent(p.mfu.value) if p.mfu else "-"),
    (">power", lambda p: f"{p.mean_power_w.value:.0f} W"),
    (">J/sample", lambda p: digits(p.energy_per_sample_j.value)),
    (">samples/J", lambda p: digits(p.samples_per_j.value)),
    (">memory", lambda p: gibibytes(p.process_bytes.value)),
    ("", lambda p: str(p.memory_verdict)),
    ("bound by", lambda p: p.bound_by),
)
_WHOLE_RUN: Final[tuple[tuple[str, Callable[[Prediction], str]], ...]] = (
    (">run", lambda p: hours(p.whole_run.run_time_s.value) if p.whole_run else "-"),
    (">energy", lambda p: kilowatt_hours(p.whole_run.run_energy_j.value) if p.whole_run else "-"),
)
#: Columns left out where the model, or the card, decides them.
_BY_MODEL: Final = ("task", "optimizer", "attention", "image")
_BY_GPU: Final = ("limit", "SMs")


def _follows(predictions: Sequence[Prediction], text: Callable[[Prediction], str], label: str) -> bool:
    """Return whether a configuration value is the same for every row of a model, or of a card."""
    owner = {(p.gpu if label in _BY_GPU else p.model.partition("#")[0], text(p)) for p in predictions}
    return len(owner) == len({name for name, _ in owner})


#: Columns that are there even where they hold one value.
_ALWAYS: Final = ("model", "GPU", "precision")


def _half_width(quantity: Quantity) -> str:
    return f"{50 * (quantity.high - quantity.low) / quantity.value:.0f} %"


def predictions_table(predictions: Sequence[Prediction]) -> list[Sheet | str]:
    """Return several predictions as a table, what they share in a line above."""
    shared, varying = [], []
    implied = (*_BY_MODEL, *_BY_GPU)
    for label, text in _CONFIGURATION:
        values = {text(p) for p in predictions}
        if len(values) > 1 and label in implied and _follows(predictions, text, label):
            continue
        if len(values) == 1 and label not in _ALWAYS:
            (value,) = values
            shared += [f"{label} {value}"] if value != "-" else []
        else:
            varying.append((label, text))
    figures = _FIGURES + (_WHOLE_RUN if any(p.whole_run for p in predictions) else ())
    columns = (*varying, *figures)
    sheet = Sheet(
        columns=tuple(label for label, _ in columns),
        rows=tuple(tuple(text(p) for _, text in columns) for p in predictions),
    )
    origins = sorted({str(p.step_time_s.origin) for p in predictions})
    lines: list[Sheet | str] = [", ".join(shared), sheet]
    lines.append(
        f"memory is the process's against the card's; +/- is half the 90 % interval; {', '.join(origins)}"
    )
    return lines + _shared_flags(predictions)


def _shared_flags(predictions: Sequence[Prediction]) -> list[Sheet | str]:
    """Return every flag once, with the rows it belongs to where not all."""
    flags = dict.fromkeys(flag for p in predictions for flag in p.flags)
    lines: list[Sheet | str] = []
    for flag in flags:
        rows = [p for p in predictions if flag in p.flags]
        where = "" if len(rows) == len(predictions) else _where(rows)
        lines.append(f"! {where}{flag}")
    return lines


def _where(rows: Sequence[Prediction]) -> str:
    models = list(dict.fromkeys(p.model for p in rows))
    return f"{', '.join(models)}: "
