"""What was measured, for people: one record as a page, several as a table."""

from collections.abc import Callable
from typing import Final

from joulecast.report.figures import (
    count,
    digits,
    gibibytes,
    interval,
    megahertz,
    prefix_of,
    ranged,
)
from joulecast.report.tables import Sheet
from joulecast.results import MeasuredQuantity, Measurement, Quantity
from joulecast.units import GIB, MEGA, MIB

_WORDS: Final = {
    "train": "training steps",
    "train-no-optimizer": "forward and backward passes",
    "forward": "forward passes",
}


def measurement_page(m: Measurement) -> list[Sheet | str]:
    """Return one measurement in full; absent quantities stand below, with the reason."""
    present = [(label, q, show) for label, q, show in _quantities(m) if q.quantity is not None]
    rows = tuple((label, *show(q), _how(q)) for label, q, show in present)
    page: list[Sheet | str] = [_headline(m), *_echo(m), ""]
    if rows:
        page.append(Sheet(columns=("", ">", ">90 % interval", "by"), rows=rows))
    page += _protocol(m)
    page += [f"! {flag}" for flag in m.flags]
    page += [f"! {m.error}"] if m.error else []
    page += _absences(m)
    page.append(f"run {m.run_id} at {m.started_at}")
    return page


def _headline(m: Measurement) -> str:
    if m.command is not None:
        where = f" on {m.n_gpus} x {m.gpu_name}" if m.gpu_name else ""
        return f"{' '.join(m.command)}{where}: {m.status}, {digits(m.duration_s)} s"
    if m.model is None:
        return f"a training loop on {m.gpu_name or 'this machine'}: {m.status}"
    place = f"{m.n_gpus} x {m.gpu_name}" + (f" ({m.gpu})" if m.gpu else "")
    what = _WORDS.get(m.mode or "", "steps")
    status = "" if m.status == "complete" else f" ({m.status})"
    return f"{m.model} on {place}, {m.precision}, {m.n_steps} {what}{status}"


def _echo(m: Measurement) -> list[str]:
    """Return the configuration in one line, of a model."""
    if m.batch_per_gpu is None:
        return []
    parts = [f"batch {count(m.batch_per_gpu)} per device"]
    if m.global_batch is not None and m.global_batch != m.batch_per_gpu:
        parts.append(f"{count(m.global_batch)} in all ({m.parallel})")
    if m.accumulate and m.accumulate > 1:
        parts.append(f"in {m.accumulate} micro-batches")
    parts += [f"sequence {m.seq_len}"] if m.seq_len else []
    parts += [f"image {m.image_size}"] if m.image_size else []
    parts += [part for part in (m.optimizer, m.attention and f"{m.attention} attention") if part]
    parts += [m.memory_format] if m.memory_format else []
    parts += [name for name, on in (("checkpointing", m.checkpointing), ("clipping", m.clip)) if on]
    parts += [f"limit {digits(m.power_limit_w)} W"] if m.power_limit_w else []
    return ["  " + ", ".join(parts)]


def _with_prefix(unit: str) -> Callable[[MeasuredQuantity], tuple[str, str]]:
    return lambda q: ranged(_known(q), unit)


def _plain(unit: str) -> Callable[[MeasuredQuantity], tuple[str, str]]:
    return lambda q: (f"{digits(_known(q).value)} {unit}".strip(), interval(_known(q), 1))


def _bytes(q: MeasuredQuantity) -> tuple[str, str]:
    known = _known(q)
    if known.low == known.high:
        return gibibytes(known.value), ""
    return gibibytes(known.value), interval(known, GIB if known.value >= GIB / 10 else MIB)


def _clock(q: MeasuredQuantity) -> tuple[str, str]:
    return megahertz(_known(q).value), interval(_known(q), MEGA, 4)


def _known(q: MeasuredQuantity) -> Quantity:
    quantity = q.quantity
    assert quantity is not None, "only quantities that are there are shown"
    return quantity


_Row = tuple[str, MeasuredQuantity, Callable[[MeasuredQuantity], tuple[str, str]]]


def _quantities(m: Measurement) -> list[_Row]:
    rows: list[_Row] = [
        ("step time", m.step_time_s, _with_prefix("s")),
        ("samples/s", m.samples_per_s, _plain("")),
        ("tokens/s", m.tokens_per_s, _plain("")),
        ("mean power per device", m.mean_power_w, _plain("W")),
        ("energy per step", m.energy_per_step_j, _with_prefix("J")),
        ("energy per sample", m.energy_per_sample_j, _with_prefix("J")),
        ("samples per joule", m.samples_per_j, _plain("")),
        ("memory allocated", m.allocated_bytes, _bytes),
        ("memory reserved", m.reserved_bytes, _bytes),
        ("memory of the process", m.process_bytes, _bytes),
        ("SM clock", m.sm_clock_hz, _clock),
        ("highest temperature", m.temperature_c, _plain("degC")),
        ("idle power per device", m.idle_power_w, _plain("W")),
        ("energy of the GPUs", m.gpu_energy_j, _with_prefix("J")),
        ("energy of the processors", m.cpu_energy_j, _with_prefix("J")),
        ("energy of the memory", m.dram_energy_j, _with_prefix("J")),
    ]
    return rows


def _how(q: MeasuredQuantity) -> str:
    """Return method, scope and sampling in a few words."""
    words = [q.method, f"of the {q.scope}" if q.scope else ""]
    if q.sampling_hz:
        words.append(f"at {digits(q.sampling_hz)} Hz")
    return " ".join(word for word in words if word)


def _protocol(m: Measurement) -> list[str]:
    """Return how many windows there were, and how far apart they lie."""
    if not m.repeat_step_time_s:
        return []
    times = sorted(m.repeat_step_time_s)
    factor, prefix = prefix_of(times[0])
    spread = f"{digits(times[0] / factor)} - {digits(times[-1] / factor)} {prefix}s"
    middle = times[len(times) // 2]
    return [
        f"{m.n_repeats} windows of {digits(m.window_s / m.n_repeats)} s after {m.n_warmup_steps} warm-up "
        f"steps; their means: {spread}, median {digits(middle / factor)} {prefix}s"
    ]


def _absences(m: Measurement) -> list[str]:
    """Return what is absent, grouped by reason, with the remedy."""
    skipped = "a sample is not a sequence"
    groups: dict[tuple[str, str], list[str]] = {}
    for label, q, _ in _quantities(m):
        if q.quantity is None and not q.reason.startswith(skipped):
            groups.setdefault((q.reason, q.remedy), []).append(label)
    lines = []
    for (reason, remedy), labels in groups.items():
        tail = f"; remedy: {remedy}" if remedy else ""
        lines.append(f"not measured: {', '.join(labels)}: {reason}{tail}")
    return lines
