"""One question: a model, a card and options; and the step it means.

Names become records here (model, GPU), open choices are made, limits are checked, and the trace is taken at
the size asked for. Prints nothing and knows no measurement.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from joulecast.errors import MissingExtraError, PowerLimitError, UsageError
from joulecast.hardware.catalogue import load_gpu
from joulecast.hardware.changes import changed_gpu, parse_changes
from joulecast.hardware.spec import Gpu
from joulecast.workload.compose import workload, workloads
from joulecast.workload.models import ModelCard, ModelName, check_seq_len, model_card, resolve_model
from joulecast.workload.policies import (
    ATTENTIONS,
    MEMORY_FORMATS,
    MODES,
    checked_optimizer,
    precision_policy,
)
from joulecast.workload.table import Floats, StepTrace, Workload, Workloads
from joulecast.workload.zoo import load_trace

PARALLELS: Final = ("none", "ddp")

_CHOICES: Final[Mapping[str, Iterable[str | None]]] = {
    "mode": MODES,
    "attention": (*ATTENTIONS, None),
    "memory_format": MEMORY_FORMATS,
    "parallel": (*PARALLELS, None),
}
_POSITIVE: Final = (
    "n_gpus",
    "batch_size",
    "seq_len",
    "image_size",
    "accumulate",
    "power_limit_w",
    "sm_clock_hz",
    "n_sms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One step to predict.

    Attributes
    ----------
    model : str
        ``torchvision/NAME``, ``timm/NAME``, ``hf/NAME#TASK``, an alias, or ``path/to/file.py:function``.
    gpu : str
        A catalogued name, or the path of a TOML file.
    n_gpus : int
        GPUs of one node, data parallel.
    precision, mode : str
        One of ``workload.policies.PRECISIONS``; ``train``, ``train-no-optimizer`` or ``forward``.
    batch_size : float
        Samples per GPU and micro-batch. None takes `DEFAULT_BATCH_SIZE`.
    seq_len, image_size : int
        Tokens per sample; pixels of a side. None takes the model's own.
    optimizer : str
        None takes the one usual for the model.
    attention : str
        ``sdpa`` or ``eager``; None takes the model's default.
    memory_format : str
        ``contiguous`` or ``channels_last``.
    checkpointing, clip : bool
        Activation checkpointing; gradient clipping.
    accumulate : int
        Micro-batches per step.
    power_limit_w : float
        Board power limit; None takes the card's default. [W]
    sm_clock_hz : float
        Locked clock; None leaves it to the card. [Hz]
    n_sms : int
        Multiprocessors in use, where not all.
    hardware : str
        Properties of the card to change, as ``hardware.changes.parse_changes`` reads them:
        ``"bandwidth=2x, peak_bf16=+20%"``.
    force : bool
        Predict limits and clocks outside the card's range too, and sequences longer than the model's
        positions; flagged.
    parallel : str
        One of `PARALLELS`. None takes ``ddp`` for several GPUs, ``none`` for one; ``ddp`` for one GPU is a
        script that wraps its module all the same: the gradients' buckets are there.
    """

    model: str
    gpu: str
    n_gpus: int = 1
    precision: str = "fp32"
    batch_size: float | None = None
    seq_len: int | None = None
    image_size: int | None = None
    optimizer: str | None = None
    mode: str = "train"
    attention: str | None = None
    memory_format: str = "contiguous"
    checkpointing: bool = False
    accumulate: int = 1
    clip: bool = False
    power_limit_w: float | None = None
    sm_clock_hz: float | None = None
    n_sms: int | None = None
    hardware: str | None = None
    force: bool = False
    parallel: str | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                known = ", ".join(str(choice) for choice in choices if choice)
                raise UsageError(f"unknown {name.replace('_', ' ')} {value!r}: choose one of {known}")
        precision_policy(self.precision)
        if self.optimizer is not None:
            checked_optimizer(self.optimizer)
        for name in _POSITIVE:
            _require_positive(name, getattr(self, name))
        if self.parallel == "none" and self.n_gpus > 1:
            raise UsageError(f"{self.n_gpus} GPUs need a kind of parallelism: ddp")


def _require_positive(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{name} must be a number, got {value!r}")
    if not isfinite(value) or value <= 0:
        raise UsageError(f"{name} must be above 0, got {value:g}")


#: GPUs of the largest node that is sold (16 in one NVLink domain, DGX-2).
MOST_GPUS: Final = 16

#: Samples per GPU where nobody says; printed with every prediction.
DEFAULT_BATCH_SIZE: Final = 32


# --- scenario -> step -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledStep:
    """A step whose open choices are made, whatever the card.

    Attributes
    ----------
    model : str
        Canonical name.
    card : ModelCard
    precision, mode : str
    batch_size : float
        Samples per GPU and micro-batch.
    seq_len, image_size : int or None
    optimizer, attention : str or None
        None where the step has none.
    memory_format : str
    checkpointing, clip : bool
    accumulate : int
    flags : tuple of str
        Options that do not apply.
    """

    model: str
    card: ModelCard
    precision: str
    mode: str
    batch_size: float
    seq_len: int | None
    image_size: int | None
    optimizer: str | None
    attention: str | None
    memory_format: str
    checkpointing: bool
    clip: bool
    accumulate: int
    flags: tuple[str, ...]

    def at(self, batch_size: float) -> "SettledStep":
        """Return the step at another batch size."""
        return replace(self, batch_size=batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledGpu:
    """The cards of a scenario, limits checked.

    Attributes
    ----------
    gpu : Gpu
        With the multiprocessors in use.
    n_gpus, parallel : int, str
    power_limit_w : float
        In force. [W]
    locked_sm_clock_hz : float or None
        [Hz]
    """

    gpu: Gpu
    n_gpus: int
    parallel: str
    power_limit_w: float
    locked_sm_clock_hz: float | None


#: Fields of `SettledStep` that results echo.
ECHOED: Final = (
    "model",
    "precision",
    "mode",
    "seq_len",
    "image_size",
    "optimizer",
    "memory_format",
    "attention",
    "checkpointing",
    "accumulate",
    "clip",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModule:
    """A module in hand, instead of a name.

    Attributes
    ----------
    module : nn.Module
    make_inputs : callable
        ``make_inputs(batch_size, seq_len)`` -> keyword arguments (dict) or positional ones (tuple).
    loss : callable or None
        ``loss(output, inputs)`` -> scalar, where the output has no ``.loss``.
    """

    module: Any
    make_inputs: Callable[[int, int], Any]
    loss: Callable[[Any, Any], Any] | None

    @property
    def name(self) -> str:
        """Its class."""
        return type(self.module).__name__

    @property
    def model_name(self) -> ModelName:
        """Its name among models: that of a module of one's own."""
        return ModelName(family="file", name=self.name, task="own")


def own_module(
    module: Any, inputs: Any, loss: Callable[[Any, Any], Any] | None = None
) -> tuple[OwnModule, int | None]:
    """Return a module in hand, and the batch size of its example inputs (None where a function makes them).

    Parameters
    ----------
    module : nn.Module
    inputs : callable, Tensor, tuple or dict
        ``make_inputs(batch_size, seq_len)``, or one step's inputs whose first axis is the batch.
    loss : callable, optional

    Raises
    ------
    UsageError
        There are no inputs, or the examples do not agree on the batch size.
    MissingExtraError
        torch is not installed.
    """
    if inputs is None:
        raise UsageError("a module needs inputs: example tensors, or a function of batch size and length")
    if callable(inputs):
        return OwnModule(module=module, make_inputs=inputs, loss=loss), None
    try:
        from joulecast.workload.trace import inputs_like
    except ImportError as error:
        raise MissingExtraError("tracing a module needs torch: pip install 'joulecast[torch]'") from error
    make_inputs, batch_size = inputs_like(inputs)
    return OwnModule(module=module, make_inputs=make_inputs, loss=loss), batch_size


@lru_cache(maxsize=4096)
def _resolve_model(model: str, mode: str) -> ModelName:
    """Return the model of a name; looking one up among all of timm's takes milliseconds."""
    return resolve_model(model, mode)


def settle_step(scenario: Scenario, own: OwnModule | None = None) -> SettledStep:
    """Return the step that a scenario means; ``own`` is a module in hand instead of the name.

    Raises
    ------
    UsageError
        The model is unknown, or the sequence is longer than its positions.
    """
    name = own.model_name if own else _resolve_model(scenario.model, scenario.mode)
    card = model_card(name)
    chosen = _applicable(scenario, card)
    if chosen["seq_len"] is not None and card.is_sequence:
        check_seq_len(name, chosen["seq_len"], raise_positions=scenario.force)
    return SettledStep(
        model=str(name),
        card=card,
        precision=scenario.precision,
        mode=scenario.mode,
        batch_size=scenario.batch_size or DEFAULT_BATCH_SIZE,
        checkpointing=scenario.checkpointing,
        clip=scenario.clip,
        accumulate=scenario.accumulate,
        flags=_without_effect(scenario, chosen),
        **chosen,
    )


def settle_gpu(scenario: Scenario) -> SettledGpu:
    """Return the cards that a scenario means.

    Raises
    ------
    UsageError
        The card is unknown, or a limit, a clock or a number cannot be.
    """
    gpu = changed_gpu(load_gpu(scenario.gpu), parse_changes(scenario.hardware or ""))
    if scenario.n_sms is not None:
        gpu = gpu.with_sms(scenario.n_sms)
    if scenario.n_gpus > MOST_GPUS:
        raise UsageError(f"{scenario.n_gpus} GPUs: one node is predicted, of at most {MOST_GPUS}")
    gpu.link_between(scenario.n_gpus)
    _check_range(scenario, gpu)
    return SettledGpu(
        gpu=gpu,
        n_gpus=scenario.n_gpus,
        parallel=scenario.parallel or ("ddp" if scenario.n_gpus > 1 else "none"),
        power_limit_w=scenario.power_limit_w or gpu.power_limit_w,
        locked_sm_clock_hz=scenario.sm_clock_hz,
    )


#: Architecture types that are trained with AdamW, besides everything that reads tokens.
_ADAMW_TYPES: Final = frozenset({"vit", "mobilevit"})


def _applicable(scenario: Scenario, card: ModelCard) -> dict[str, Any]:
    """Return the options that depend on the model; None for what it does not have."""
    own = card.type == "file"
    uses_adamw = card.is_sequence or card.type in _ADAMW_TYPES
    usual_optimizer = "adamw" if uses_adamw else "sgd-momentum"
    takes_seq_len, takes_image_size = card.is_sequence or own, not card.is_sequence
    asked = scenario.attention or card.default_attention
    attention = card.attention_or_default(asked) if asked else None
    return {
        "seq_len": (scenario.seq_len or card.default_seq_len) if takes_seq_len else None,
        "image_size": (scenario.image_size or card.default_image_size) if takes_image_size else None,
        "attention": scenario.attention or "sdpa" if own else attention,
        "memory_format": "contiguous" if card.is_sequence else scenario.memory_format,
        "optimizer": (scenario.optimizer or usual_optimizer) if scenario.mode == "train" else None,
    }


def _without_effect(asked: Scenario, chosen: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line for every option that was given and does not apply."""
    lines = []
    for option, used in chosen.items():
        given = getattr(asked, option)
        if given is not None and given != used:
            label = option.replace("_", " ")
            lines.append(
                f"{label} {given} does not apply to this step: " + (f"{used} used" if used else "ignored")
            )
    return tuple(lines)


def _check_range(scenario: Scenario, gpu: Gpu) -> None:
    """Raise for what lies outside the card's range, unless the scenario forces it."""
    if scenario.force:
        return
    try:
        if scenario.power_limit_w is not None:
            gpu.check_power_limit_w(scenario.power_limit_w)
        if scenario.sm_clock_hz is not None:
            gpu.check_clock_hz(scenario.sm_clock_hz)
    except PowerLimitError as error:
        raise PowerLimitError(f"{error}; --force predicts it all the same") from None


@lru_cache(maxsize=64)
def _trace(model: str, options: tuple[tuple[str, Any], ...], batch_size: float) -> StepTrace:
    return load_trace(model, **dict(options), batch_size=int(batch_size))


def trace_key(step: SettledStep, *, flash: bool) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Return what a trace depends on: equal keys share one trace."""
    options = (
        "precision",
        "attention",
        "memory_format",
        "mode",
        "seq_len",
        "image_size",
        "checkpointing",
        "optimizer",
    )
    return step.model, (*((option, getattr(step, option)) for option in options), ("flash", flash))


def _own_trace(step: SettledStep, own: OwnModule, flash: bool) -> StepTrace:
    try:
        from joulecast.workload.trace import batch_sizes_with, trace_step
    except ImportError as error:
        raise MissingExtraError("tracing a module needs torch: pip install 'joulecast[torch]'") from error
    return trace_step(
        own.module,
        own.make_inputs,
        variant=precision_policy(step.precision).variant,
        mode=step.mode,
        loss=own.loss,
        memory_format=step.memory_format,
        flash=flash,
        checkpointing=step.checkpointing,
        optimizers=[step.optimizer] if step.optimizer else [],
        seq_lens=(step.seq_len or 0,),
        batch_sizes=batch_sizes_with(int(step.batch_size)),
        fallback_batch_size=int(step.batch_size),
    )


def workload_of(step: SettledStep, *, flash: bool = True, own: OwnModule | None = None) -> Workload:
    """Return the step of one GPU at its sizes.

    Parameters
    ----------
    step : SettledStep
    flash : bool
        Whether the card runs flash attention, see `runs_flash`.
    own : OwnModule, optional
        The module, where it is in hand.
    """
    if own is not None:
        trace = _own_trace(step, own, flash)
    else:
        trace = _trace(*trace_key(step, flash=flash), step.batch_size)
    return workload(trace, batch_size=step.batch_size, **_composition(step, trace))


def workloads_of(step: SettledStep, batch_sizes: Floats, *, flash: bool = True) -> Workloads | None:
    """Return a step of one GPU at many batch sizes from one trace; None where each size needs its own.

    Parameters
    ----------
    step : SettledStep
        Of any batch size.
    batch_sizes : ndarray [size]
        Samples per GPU and micro-batch. [1]
    flash : bool
        Whether the card runs flash attention.
    """
    if step.card.type == "file":  # recorded at the size asked for
        return None
    trace = _trace(*trace_key(step, flash=flash), float(DEFAULT_BATCH_SIZE))
    if not trace.batch_exact:
        return None
    return workloads(trace, batch_sizes=batch_sizes, **_composition(step, trace))


def _composition(step: SettledStep, trace: StepTrace) -> dict[str, Any]:
    """Return what makes a workload of a trace, beside the batch size."""
    seq_len = step.seq_len or (trace.seq_len_range[0] if trace.tokens_per_sample_is_seq_len else 0)
    return {
        "seq_len": seq_len,
        "precision": step.precision,
        "mode": step.mode,
        "optimizer": step.optimizer or "adamw",  # counts in mode ``train`` alone
        "accumulate": step.accumulate,
        "clip": step.clip,
    }


#: NVIDIA cards run flash attention from here on. Source: PyTorch, aten/src/ATen/native/transformers/cuda/
#: sdp_utils.cpp, check_flash_attention_hardware_support (sm80).
_FLASH_COMPUTE_CAPABILITY: Final = 8.0


def runs_flash(gpu: Gpu) -> bool:
    """Return whether PyTorch's fused attention on this card is the flash kernel in 16 bit."""
    if gpu.vendor.lower() != "nvidia":
        return True
    try:
        return float(gpu.compute_capability) >= _FLASH_COMPUTE_CAPABILITY
    except ValueError:
        return True
