"""Names of the choices a step leaves open: precision policies, optimizers, modes; imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from joulecast.errors import UnknownNameError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPolicy:
    """How a precision policy computes.

    Attributes
    ----------
    variant : str
        The trace it evaluates: ``fp32``, ``amp-bf16``, ``amp-fp16``, ``pure-bf16``, ``pure-fp16``.
    masters : bool
        Whether the optimizer keeps FP32 master weights of a 16-bit module.
    scaler : bool
        Whether gradients are unscaled and checked for overflow (a gradient scaler).
    """

    variant: str
    masters: bool = False
    scaler: bool = False


#: PyTorch's own semantics: ``fp32`` and ``tf32`` differ in the units they use, not in the operators.
PRECISIONS: Final[Mapping[str, PrecisionPolicy]] = MappingProxyType(
    {
        "fp32": PrecisionPolicy(variant="fp32"),
        "fp32-strict": PrecisionPolicy(variant="fp32"),
        "tf32": PrecisionPolicy(variant="fp32"),
        "bf16": PrecisionPolicy(variant="amp-bf16"),
        "fp16": PrecisionPolicy(variant="amp-fp16", scaler=True),
        "bf16-pure": PrecisionPolicy(variant="pure-bf16"),
        "fp16-pure": PrecisionPolicy(variant="pure-fp16"),
        "fp16-o2": PrecisionPolicy(variant="pure-fp16", masters=True, scaler=True),
        "fp16-static": PrecisionPolicy(variant="pure-fp16", scaler=True),
    }
)

MODES: Final = ("train", "train-no-optimizer", "forward")
ATTENTIONS: Final = ("sdpa", "eager")
MEMORY_FORMATS: Final = ("contiguous", "channels_last")

#: Optimizers that can be traced; foreach unless the name says fused.
OPTIMIZERS: Final = (
    "sgd",
    "sgd-momentum",
    "adam",
    "adamw",
    "adadelta",
    "adafactor",
    "adagrad",
    "rmsprop",
    "fused-adam",
    "fused-adamw",
)


def precision_policy(name: str) -> PrecisionPolicy:
    """Return the policy of a name.

    Raises
    ------
    UnknownNameError
        If there is none.
    """
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS, f"one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def checked_optimizer(name: str) -> str:
    """Return the name if it is an optimizer's.

    Raises
    ------
    UsageError
        If it is an 8-bit one: its block-wise quantised state runs in kernels that are no part of PyTorch.
    UnknownNameError
        If it is unknown.
    """
    if "8bit" in name or "8-bit" in name:
        raise UsageError(
            f"optimizer {name!r} is not predicted: its block-wise quantised kernels are no part of PyTorch "
            "and have no formula here; use adamw for an upper bound"
        )
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}")
    return name
