"""What a step computes, for people."""

from collections.abc import Sequence
from typing import Final

from joulecast.characterisation import Characterisation, OpSummary
from joulecast.report.figures import count, digits, gibibytes, percent, with_prefix
from joulecast.report.tables import Sheet
from joulecast.units import KILO

_N_MODULES: Final = 20


def characterisation_page(c: Characterisation) -> list[Sheet | str]:
    """Return a characterisation in full."""
    page: list[Sheet | str] = [_headline(c), ""]
    page.append(Sheet(columns=("", ">"), rows=tuple(_totals(c))))
    page.append(_summaries("by kind", "kind", c.by_kind, c))
    page.append(_summaries("by phase", "phase", c.by_phase, c))
    shown = c.by_module[:_N_MODULES]
    title = (
        "by module" if len(shown) == len(c.by_module) else f"by module, {len(shown)} of {len(c.by_module)}"
    )
    page.append(_summaries(title, "module", shown, c))
    page.append(Sheet(title="structure", columns=("", ">"), rows=_features(c)))
    if c.uncounted:
        page.append(f"! no formula, only bytes counted: {', '.join(c.uncounted)}")
    page += list(c.notes)
    return page


def _headline(c: Characterisation) -> str:
    parts = [str(c.configuration["model"]), "one step of one GPU"]
    skipped = ("model", "checkpointing", "clip", "accumulate")
    names = {"batch_per_gpu": "batch", "seq_len": "sequence", "image_size": "image"}
    for name, value in c.configuration.items():
        if value is not None and name not in skipped:
            parts.append(
                f"{names.get(name, '')} {count(value) if isinstance(value, float) else value}".strip()
            )
    parts += [name for name in ("checkpointing", "clip") if c.configuration.get(name)]
    return ", ".join(parts)


def _totals(c: Characterisation) -> list[tuple[str, str]]:
    tied = "" if c.n_trainable == c.n_parameters else f" ({with_prefix(c.n_trainable, '').strip()} trainable)"
    return [
        ("parameters, shared ones once", with_prefix(c.n_parameters, "").strip() + tied),
        ("work", with_prefix(c.flop, "FLOP")),
        ("work by MFU's convention", with_prefix(c.model_flop, "FLOP")),
        ("traffic", gibibytes(c.bytes_moved)),
        ("intensity", f"{digits(c.intensity_flop_per_byte)} FLOP/byte"),
        ("kernels", f"{c.n_kernels:.0f}"),
        ("parameters, buffers, optimizer state", gibibytes(c.persistent_bytes)),
        ("activations, gradients, temporaries at the peak", gibibytes(c.peak_live_bytes)),
        ("traffic in operators with a formula", percent(c.coverage_frac)),
    ]


def _summaries(title: str, label: str, summaries: Sequence[OpSummary], c: Characterisation) -> Sheet:
    return Sheet(
        title=title,
        columns=(label, ">FLOP", ">", ">bytes", ">", ">FLOP/byte", ">calls", ">kernels"),
        rows=tuple(
            (
                s.label or "-",
                with_prefix(s.flop, "").strip(),
                percent(s.flop / c.flop if c.flop else 0.0),
                gibibytes(s.bytes_moved),
                percent(s.bytes_moved / c.bytes_moved if c.bytes_moved else 0.0),
                digits(s.intensity_flop_per_byte),
                f"{s.n_calls:.0f}",
                f"{s.n_kernels:.0f}",
            )
            for s in summaries
        ),
    )


def _features(c: Characterisation) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name.replace("_", " "), with_prefix(value, "").strip() if value >= KILO else digits(value, 4))
        for name, value in sorted(c.features.items())
    )
