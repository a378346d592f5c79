"""The operators that a benchmark may run: names, phases, sizes. No torch, no clock.

Names and sizes are the columns of an operator file; see `workload.operator_table`. A *group* is what shares
an efficiency in the model; the benchmark learns group by group.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from joulecast.errors import UsageError
from joulecast.workload.operator_table import DIMENSIONS, HOST_PARAMETERS, HOST_PHASES
from joulecast.workload.table import Phase

#: Types that products are timed in: ``tf32`` is FP32 on TF32 units.
DTYPES: Final = ("fp32", "tf32", "bf16", "fp16")

_FORWARD, _DGRAD, _WGRAD = (str(phase) for phase in (Phase.FORWARD, Phase.DGRAD, Phase.WGRAD))
_OPTIMIZER: Final = str(Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operator at one size.

    Attributes
    ----------
    op, phase, dtype : str
        As in an operator file.
    variant : str
        What else sets its group: the form of a convolution.
    sizes : tuple of (str, int)
        Dimensions by name; those that do not apply are left out.
    """

    op: str
    phase: str
    dtype: str
    variant: str = ""
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def group(self) -> str:
        """What it shares an efficiency with."""
        return " ".join(part for part in (self.op, self.variant, self.phase, self.dtype) if part)

    @property
    def identity(self) -> tuple[Any, ...]:
        """What makes it the same case in a file."""
        return (self.op, self.phase, self.dtype, tuple(sorted(self.sizes)))


def columns_of(cases: Sequence[Case]) -> dict[str, Any]:
    """Return cases as columns of an operator file; NaN where a dimension does not apply. [op]."""
    columns: dict[str, Any] = {
        name: np.array([getattr(case, name) for case in cases], dtype=np.str_)
        for name in ("op", "phase", "dtype")
    }
    sizes = [dict(case.sizes) for case in cases]
    for name in DIMENSIONS:
        columns[name] = np.array([float(found.get(name, np.nan)) for found in sizes])
    return columns


def case_of(row: dict[str, Any]) -> Case:
    """Return the case of a row of an operator file."""
    given = {name: row.get(name) for name in DIMENSIONS}
    sizes = tuple((name, int(value)) for name, value in given.items() if value is not None)
    variant = _variant(dict(sizes)) if row["op"] == "conv" else ""
    return Case(op=row["op"], phase=row["phase"], dtype=row["dtype"], variant=variant, sizes=sizes)


def all_cases(dtypes: Sequence[str], *, channels_last: bool) -> list[Case]:
    """Return every case in some types.

    Parameters
    ----------
    dtypes : sequence of str
        Of `DTYPES`.
    channels_last : bool
        Time convolutions and their companions in this format too.

    Raises
    ------
    UsageError
        A type is unknown.
    """
    unknown = sorted(set(dtypes) - set(DTYPES))
    if unknown or not dtypes:
        raise UsageError(f"unknown type {', '.join(unknown) or '(none)'}: choose of {', '.join(DTYPES)}")
    found = [Case(op=op, phase=host_phase(op), dtype="fp32") for op in HOST_PARAMETERS]
    for dtype in dtypes:
        found += _products(dtype)
        found += _convolutions(dtype, channels_last)
        if dtype == "tf32":  # the others do not look at it
            continue
        found += _attention(dtype)
        found += _streams(dtype)
        found += _image_streams(dtype, channels_last)
    found += _optimizers()
    return found


def host_phase(op: str) -> str:
    """Return the phase of a record that is no operator."""
    launch, dispatch = HOST_PHASES
    return launch if op == launch else dispatch


def _sized(
    op: str, phases: Sequence[str], dtype: str, sizes: Mapping[str, int], variant: str = ""
) -> Iterator[Case]:
    """Yield a case for each phase."""
    for phase in phases:
        yield Case(op=op, phase=phase, dtype=dtype, variant=variant, sizes=tuple(sizes.items()))


#: Inputs and outputs of linear layers, of networks from small to large.
_LAYERS: Final = (
    (128, 128),
    (256, 1024),
    (512, 512),
    (768, 768),
    (768, 3072),
    (3072, 768),
    (2048, 5632),
    (4096, 4096),
)
_TOKENS: Final = (8, 64, 256, 1024, 4096, 16384)


def _products(dtype: str) -> Iterator[Case]:
    for m, (k, n) in product(_TOKENS, _LAYERS):
        yield from _sized("linear", (_FORWARD, _DGRAD, _WGRAD), dtype, {"b": 1, "m": m, "n": n, "k": k})
    for b, seq, width in product((12, 48, 192, 768), (64, 128, 512), (32, 64, 128)):
        yield from _sized("bmm", (_FORWARD, _DGRAD), dtype, {"b": b, "m": seq, "n": seq, "k": width})


#: Input and output channels, kernel, size of the image, stride.
_DENSE: Final = (
    *((64, 64, 3, 56, 1), (128, 128, 3, 28, 1), (256, 256, 3, 14, 1), (512, 512, 3, 7, 1)),
    *((64, 64, 3, 16, 1), (128, 128, 3, 8, 1), (256, 256, 3, 4, 1), (512, 512, 3, 2, 1)),
    *(
        (64, 128, 3, 56, 2),
        (256, 512, 3, 14, 2),
        (64, 64, 3, 112, 1),
        (32, 32, 3, 32, 1),
        (128, 256, 3, 16, 2),
    ),
)
_POINTWISE: Final = (
    *((64, 256, 1, 56, 1), (256, 64, 1, 56, 1), (512, 128, 1, 28, 1), (256, 1024, 1, 14, 1)),
    *(
        (1024, 256, 1, 14, 1),
        (2048, 512, 1, 7, 1),
        (64, 128, 1, 16, 1),
        (256, 512, 1, 8, 1),
        (512, 1024, 1, 4, 1),
    ),
)
_STEM: Final = (
    (3, 64, 7, 224, 2),
    (3, 64, 3, 224, 1),
    (3, 64, 7, 64, 2),
    (3, 32, 3, 64, 2),
    (3, 768, 16, 224, 16),
    (3, 192, 16, 64, 16),
)
_DEPTHWISE: Final = (
    (32, 32, 3, 112, 1),
    (144, 144, 3, 56, 1),
    (384, 384, 3, 14, 1),
    (96, 96, 7, 56, 1),
    (192, 192, 3, 16, 1),
)
_BATCHES: Final = (2, 8, 32, 128)


def _convolutions(dtype: str, channels_last: bool) -> Iterator[Case]:
    formats = (0, 1) if channels_last else (0,)
    for layers in (_DENSE, _POINTWISE, _STEM, _DEPTHWISE):
        for last, b, (c_in, c_out, kernel, size, stride) in product(formats, _BATCHES, layers):
            pad = (kernel - 1) // 2 if stride < kernel else 0
            sizes = {
                **{"b": b, "c_in": c_in, "c_out": c_out, "kernel": kernel, "size": size, "stride": stride},
                **{"pad": pad, "groups": c_in if layers is _DEPTHWISE else 1, "channels_last": last},
            }
            phases = (_FORWARD, _WGRAD) if layers is _STEM else (_FORWARD, _DGRAD, _WGRAD)
            yield from _sized("conv", phases, dtype, sizes, _variant(sizes))


#: Fewer input channels than this are the image's.
_FEW_CHANNELS: Final = 4


def _variant(sizes: dict[str, int]) -> str:
    """Return the form of a convolution."""
    if sizes.get("groups", 1) > 1:
        form = "depthwise"
    elif sizes["c_in"] < _FEW_CHANNELS:
        form = "stem"
    else:
        form = "1x1" if sizes["kernel"] == 1 else "dense"
    return f"{form} channels-last" if sizes.get("channels_last") else form


def _attention(dtype: str) -> Iterator[Case]:
    for op, b, seq, (heads, width) in product(
        ("attention-full", "attention-causal"),
        (1, 4, 16),
        (64, 128, 512, 2048),
        ((4, 32), (12, 64), (16, 128)),
    ):
        sizes = {"b": b, "seq": seq, "heads": heads, "kv_heads": heads, "head_dim": width}
        yield from _sized(op, (_FORWARD, _DGRAD), dtype, sizes)


_WIDTHS: Final = (64, 256, 768, 2048, 4096)


def _streams(dtype: str) -> Iterator[Case]:
    for b, h in product(_TOKENS, _WIDTHS):
        for op in ("add", "mul", "copy"):
            yield from _sized(op, (_FORWARD,), dtype, {"b": b, "h": h})
        for op in ("relu", "gelu", "dropout", "softmax", "ln"):
            yield from _sized(op, (_FORWARD, _DGRAD), dtype, {"b": b, "h": h})
        yield from _sized("sum", (_FORWARD,), dtype, {"b": b, "h": h})
        if h in _EMBEDDED:
            yield from _sized("embedding", (_FORWARD, _WGRAD), dtype, {"b": b, "h": h, "n": _VOCABULARY})


_EMBEDDED: Final = (256, 768, 2048)
#: Of BERT. [1]
_VOCABULARY: Final = 30522


def _image_streams(dtype: str, channels_last: bool) -> Iterator[Case]:
    shapes = (
        (64, 112),
        (64, 56),
        (256, 56),
        (128, 28),
        (512, 28),
        (256, 14),
        (1024, 14),
        (512, 7),
        (64, 16),
        (512, 2),
    )
    formats = (0, 1) if channels_last else (0,)
    for last, b, (c_in, size) in product(formats, _BATCHES, shapes):
        variant = "channels-last" if last else ""
        sizes = {"b": b, "c_in": c_in, "size": size, "channels_last": last}
        yield from _sized("bn", (_FORWARD, _DGRAD), dtype, sizes, variant)
        if size >= _POOLED:
            pool = {**sizes, "kernel": 3, "stride": 2, "pad": 1}
            yield from _sized("max-pool", (_FORWARD, _DGRAD), dtype, pool, variant)


_POOLED: Final = 16


def _optimizers() -> Iterator[Case]:
    for op, b, h in product(("sgd-momentum", "adamw"), (8, 64, 256), (4096, 65536, 589824, 2359296)):
        yield from _sized(op, (_OPTIMIZER,), "fp32", {"b": b, "h": h})


def positions(cases: Sequence[Case]) -> npt.NDArray[np.float64]:
    """Return where cases of a group lie, by the logarithm of their dimensions. [case, dimension]."""
    names = sorted({name for case in cases for name, _ in case.sizes})
    if not names:
        return np.zeros((len(cases), 1))
    sizes = [dict(case.sizes) for case in cases]
    return np.log2([[1.0 + found.get(name, 0) for name in names] for found in sizes])
