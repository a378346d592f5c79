"""Cards of the catalogue, for people and programs."""

from collections.abc import Sequence
from typing import Any, Final

from joulecast.hardware.catalogue import load_sources
from joulecast.hardware.spec import Fact, FactKind, Gpu
from joulecast.report.figures import digits, gibibytes, megahertz, with_prefix
from joulecast.report.tables import Sheet
from joulecast.units import GIGA, TERA

GPUS_SCHEMA: Final = "joulecast/gpus/1"

#: Columns of the list -> the units whose peak stands there; the first that the card has.
_PEAKS: Final = (
    ("FP32", ("fp32_vector",)),
    ("TF32", ("tf32_tensor",)),
    ("FP16", ("fp16_tensor", "fp16_vector")),
    ("BF16", ("bf16_tensor", "bf16_vector")),
)


def gpus_table(gpus: Sequence[Gpu]) -> list[Sheet | str]:
    """Return one row per card."""
    columns = ("GPU", "name", ">SMs", ">boost", *(f">{label}" for label, _ in _PEAKS))
    rows = tuple(
        (
            gpu.slug,
            gpu.name,
            str(gpu.n_sms),
            megahertz(gpu.boost_clock_hz),
            *(_peak(gpu, paths) for _, paths in _PEAKS),
            gibibytes(gpu.memory_bytes),
            digits(gpu.bandwidth_bytes_per_s / GIGA, 4),
            f"{gpu.min_power_limit_w:.0f}-{gpu.max_power_limit_w:.0f}",
            f"{gpu.power_limit_w:.0f}",
            str(len(gpu.guesses)),
        )
        for gpu in gpus
    )
    sheet = Sheet(columns=(*columns, ">memory", ">GB/s", ">limits W", ">W", ">guesses"), rows=rows)
    return [
        sheet,
        "peaks in TFLOP/s, dense, FP32 accumulation; `joulecast gpus NAME` shows a card's values and sources",
    ]


def _peak(gpu: Gpu, paths: Sequence[str]) -> str:
    peaks = (gpu.peak_flop_per_s(path) for path in paths)
    return next((digits(peak / TERA) for peak in peaks if peak > 0), "-")


def gpu_page(gpu: Gpu) -> list[Sheet | str]:
    """Return the sheet of one card: every value with its source."""
    peaks = tuple(
        (path, with_prefix(gpu.peak_flop_per_s(path), "FLOP/s")) for path in gpu.flop_per_clock_per_sm
    )
    facts = tuple((key, f"{fact.value:g}", str(fact.kind), fact.source) for key, fact in gpu.facts.items())
    page: list[Sheet | str] = [f"{gpu.slug}: {gpu.describe()}, {gpu.architecture} {gpu.compute_capability}"]
    page.append(Sheet(title="dense peaks", columns=("unit", ">at its published clock"), rows=peaks))
    page.append(Sheet(title="facts, SI units", columns=("", ">value", "kind", "source"), rows=facts))
    return page + _sources(gpu)


def _sources(gpu: Gpu) -> list[Sheet | str]:
    known = load_sources()
    stated = (fact for fact in gpu.facts.values() if fact.kind is not FactKind.GUESS)
    keys = dict.fromkeys(key for fact in stated for key in fact.source.split() if key in known)
    rows = tuple((key, " ".join(str(text) for text in known[key].values())) for key in keys)
    return [Sheet(title="sources", columns=("", ""), rows=rows)] if rows else []


def gpu_dict(gpu: Gpu) -> dict[str, Any]:
    """Return the JSON form of one card."""
    return {
        **gpu_row(gpu),
        "peak_flop_per_s": {path: gpu.peak_flop_per_s(path) for path in gpu.flop_per_clock_per_sm},
        "facts": {key: _fact_dict(fact) for key, fact in gpu.facts.items()},
    }


def _fact_dict(fact: Fact) -> dict[str, Any]:
    return {"value": fact.value, "source": fact.source, "kind": str(fact.kind)}


_ROW: Final = (
    "slug name vendor architecture compute_capability n_sms boost_clock_hz min_clock_hz max_clock_hz "
    "memory_bytes bandwidth_bytes_per_s l2_bytes power_limit_w min_power_limit_w max_power_limit_w "
    "idle_power_w waiting_power_w link_kind link_bytes_per_s pcie_bytes_per_s"
).split()


def gpu_row(gpu: Gpu) -> dict[str, Any]:
    """Return one flat row of a card."""
    return {**{name: getattr(gpu, name) for name in _ROW}, "n_guesses": len(gpu.guesses)}


def gpus_document(gpus: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document of ``joulecast gpus --format json``."""
    return {"schema": GPUS_SCHEMA, "gpus": list(gpus)}
