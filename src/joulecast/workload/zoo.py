"""Traces by model name: packaged ones without torch, others traced when the extra is installed, and cached.

Order: the table packaged with joulecast, the user's cache, a new trace. torch is imported for the last alone.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np

from joulecast.errors import TableError, UsageError
from joulecast.workload.io import FORMAT, find_trace, load_trace_file, save_traces
from joulecast.workload.models import ModelName, check_seq_len, model_card, resolve_model
from joulecast.workload.policies import OPTIMIZERS, precision_policy
from joulecast.workload.table import OptimizerTrace, StepTrace

#: Lengths that determine the dependence of a packaged sequence model.
_GRID_SEQ_LENS: Final = (64, 128, 192)

#: Where the dependence has a corner: lengths beyond it, and the shortest that the table holds for. Experts
#: of switchxl4 take a quarter of the tokens of a sequence, at most their capacity of 64.
_CORNERS: Final = {"config/switchxl4#causal-lm": ((320, 384, 448), 256)}

#: Raised when recording changes what a trace holds: cached traces of other versions are not used.
TRACE_VERSION: Final = 1

#: Optimizers that every trace has: recording one costs milliseconds, whatever the model.
QUICK_OPTIMIZERS: Final = tuple(name for name in OPTIMIZERS if name != "adafactor")

#: What is packaged: models of the study, of the public measurements, and the usual suspects.
PACKAGED: Final = (
    "torchvision/resnet50",
    "torchvision/resnet101",
    "torchvision/resnet152",
    "torchvision/vgg16",
    "torchvision/vit_b_16",
    "torchvision/convnext_large",
    "shufflenet-v2-cifar",
    "hf/distilbert-base-uncased#sequence-classification",
    "hf/albert-base-v2#sequence-classification",
    "hf/bert-base-uncased#sequence-classification",
    "hf/bert-base-uncased#question-answering",
    "hf/bert-base-uncased#masked-lm",
    "hf/bert-large-uncased#sequence-classification",
    "hf/bert-large-uncased#question-answering",
    "hf/bert-large-uncased#body",
    "hf/gpt2#causal-lm",
    "hf/gpt2#body",
    "hf/gpt2-large#causal-lm",
    "hf/opt-1.3b#causal-lm",
    "hf/opt-1.3b#body",
    "hf/qwen2-1.5b#causal-lm",
    "hf/qwen2-1.5b#body",
    "hf/tinyllama-1.1b#causal-lm",
    "hf/llama-3.1-8b#causal-lm",
    "hf/vit-large-patch16-224#image-classification",
    "hf/vit-large-patch16-224#body",
    "hf/mobilevit-small#image-classification",
    "hf/mobilevit-small#body",
    "config/bert_large#causal-lm",
    "config/gpt2_large#causal-lm",
    "config/gpt3_27#causal-lm",
    "config/gpt3_xl#causal-lm",
    "config/opt_13#causal-lm",
    "config/switchxl4#causal-lm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What a trace depends on, besides the model.

    Attributes
    ----------
    variant : str
        As in `policies.PRECISIONS`.
    mode : str
        ``train`` (without and with optimizer) or ``forward``.
    attention : str
        ``eager``, ``flash``, ``efficient``, or ``none`` where the model has no choice.
    memory_format : str
    checkpointing : bool
    image_size, seq_len : int
        0 where they are the model's own, or not fixed.
    slow_optimizer : str
        An optimizer traced besides `QUICK_OPTIMIZERS`, or none.
    """

    variant: str
    mode: str
    attention: str
    memory_format: str
    checkpointing: bool = False
    image_size: int = 0
    seq_len: int = 0
    slow_optimizer: str = ""

    @property
    def key(self) -> str:
        """The name of the trace in a file."""
        parts = [self.variant, self.mode, self.attention, self.memory_format]
        if self.checkpointing:
            parts.append("checkpointing")
        if self.image_size:
            parts.append(f"image{self.image_size}")
        if self.seq_len:
            parts.append(f"seq{self.seq_len}")
        if self.slow_optimizer:
            parts.append(self.slow_optimizer)
        return "_".join(parts)


def trace_options(
    name: ModelName,
    *,
    precision: str,
    mode: str,
    attention: str,
    memory_format: str,
    flash: bool,
    image_size: int | None = None,
    checkpointing: bool = False,
) -> TraceOptions:
    """Return what a request means for the trace: options that cannot matter are dropped.

    ``flash`` is whether the GPU runs flash attention; it matters in 16 bit alone.
    """
    card = model_card(name)
    variant = precision_policy(precision).variant
    kind = card.attention_or_default(attention) if name.family != "file" else attention
    if kind is None:
        attention = "none"
    elif kind == "sdpa":
        attention = "flash" if flash and variant != "fp32" else "efficient"
    else:
        attention = kind
    own_size = image_size is None or image_size == card.default_image_size
    return TraceOptions(
        variant=variant,
        mode="forward" if mode == "forward" else "train",
        attention=attention,
        memory_format="contiguous" if card.is_sequence else memory_format,
        checkpointing=checkpointing and mode != "forward",
        image_size=0 if own_size or card.is_sequence else int(image_size or 0),
    )


def load_trace(  # noqa: PLR0913  (options by name)
    model: str,
    *,
    precision: str = "fp32",
    attention: str = "sdpa",
    memory_format: str = "contiguous",
    mode: str = "train",
    seq_len: int | None = None,
    image_size: int | None = None,
    checkpointing: bool = False,
    flash: bool = True,
    optimizer: str | None = None,
    batch_size: int | None = None,
) -> StepTrace:
    """Return the trace of a named model: packaged, cached, or traced now.

    Parameters
    ----------
    model : str
        As `resolve_model` takes it.
    precision, attention, memory_format, mode : str
        As in `policies`.
    seq_len : int, optional
        Tokens per sample; where no table holds for every length, the model is traced at this one.
    image_size : int, optional
        Pixels of a side; the model's own by default.
    checkpointing : bool
        Whether the activations of repeated blocks are recomputed.
    flash : bool
        Whether the GPU runs flash attention.
    optimizer : str, optional
        One that the trace must have; the usual ones it has anyway.
    batch_size : int, optional
        Where to trace a model whose work is not linear in the batch; of a file, a size to record at.

    Raises
    ------
    UnknownModelError, UsageError, MissingExtraError, TraceError, TableError
    """
    name = resolve_model(model, mode)
    options = trace_options(
        name,
        precision=precision,
        mode=mode,
        attention=attention,
        memory_format=memory_format,
        flash=flash,
        image_size=image_size,
        checkpointing=checkpointing,
    )
    recorded = replace(options, variant=_RECORDED_AS.get(options.variant, options.variant))
    packaged = _packaged(name, recorded, seq_len)
    if packaged is not None:
        trace = packaged
    elif name.family == "file":  # a file may change: never cached
        trace = trace_named(name, recorded, seq_len=seq_len, batch_size=batch_size)
    else:
        slow = optimizer if optimizer not in QUICK_OPTIMIZERS and mode == "train" else None
        recorded = replace(recorded, seq_len=_traced_seq_len(name, seq_len), slow_optimizer=slow or "")
        trace = _cached(name, recorded, batch_size)
    return trace if recorded.variant == options.variant else _in_half_precision(trace)


def _packaged(name: ModelName, options: TraceOptions, seq_len: int | None) -> StepTrace | None:
    """Return the packaged trace, if there is one that holds for the length asked for."""
    path = packaged_path(name)
    trace = find_trace(path, options.key) if path.is_file() else None
    if trace is None:
        return None
    shortest, longest = trace.seq_len_range
    holds = not trace.tokens_per_sample_is_seq_len or shortest <= (seq_len or longest) <= longest
    return trace if holds else None


#: A module wholly in 16 bit runs the same operators in either type. Under autocast it does not: CUDA fuses
#: the cast of a softmax in FP16, not in BF16.
_RECORDED_AS: Final = {"pure-fp16": "pure-bf16"}


def _in_half_precision(trace: StepTrace) -> StepTrace:
    """Return a trace recorded in BF16 as it is in FP16."""
    labels = {name: np.where(column == "bf16", "fp16", column) for name, column in trace.labels.items()}
    optimizers = {
        name: replace(
            step,
            table=replace(step.table, dtype=np.where(step.table.dtype == "bf16", "fp16", step.table.dtype)),
        )
        for name, step in trace.optimizers.items()
    }
    return replace(trace, labels=labels, optimizers=optimizers)


def _traced_seq_len(name: ModelName, seq_len: int | None) -> int:
    card = model_card(name)
    return int(seq_len or card.default_seq_len or 0) if card.is_sequence else 0


def _cached(name: ModelName, options: TraceOptions, batch_size: int | None) -> StepTrace:
    path = cache_path(name, options)
    if path.is_file():
        try:
            trace = load_trace_file(path, options.key)
        except TableError:  # a cache is not the user's data: make it anew
            path.unlink(missing_ok=True)
        else:
            if trace.batch_exact or batch_size in (None, trace.batch_traced):
                return trace
    trace = trace_named(name, options, seq_len=options.seq_len or None, batch_size=batch_size)
    save_traces(path, {options.key: trace})
    return trace


def packaged_path(name: ModelName) -> Path:
    """Return where the packaged table of a model is, or would be."""
    folder = Path(str(files("joulecast.workload") / "tables"))
    return folder / f"{_slug(name.canonical)}.npz"


def _slug(canonical: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", canonical)


def cache_folder() -> Path:
    """Return the folder of cached traces: ``JOULECAST_CACHE``, else the user's cache folder."""
    chosen = os.environ.get("JOULECAST_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "joulecast"


def cache_path(name: ModelName, options: TraceOptions) -> Path:
    """Return the file of a cached trace: it changes with the libraries that make the model."""
    import hashlib  # with the packages' metadata, some 40 ms that a packaged model does not need

    facts = [
        TRACE_VERSION,
        FORMAT,
        options.key,
        *(_version(p) for p in ("torch", "torchvision", "timm", "transformers")),
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_folder() / f"{_slug(name.canonical)}-{digest}.npz"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def trace_named(
    name: ModelName,
    options: TraceOptions,
    *,
    seq_len: int | None = None,
    batch_size: int | None = None,
    seq_lens: Sequence[int] | None = None,
    optimizers: Sequence[str] | None = None,
) -> StepTrace:
    """Trace a named model now.

    Parameters
    ----------
    seq_lens : sequence of int, optional
        Three lengths that determine the dependence, instead of one.
    optimizers : sequence of str, optional
        Instead of the quick ones and the option's.

    Raises
    ------
    MissingExtraError
        If torch, or the model's library, is not installed.
    TraceError, UsageError, DoesNotFitError
    """
    from joulecast.workload.models.builders import build_model

    attention = "eager" if options.attention == "eager" else "sdpa"
    train = options.mode != "forward"
    longest = max(seq_lens) if seq_lens else seq_len
    if longest is not None and name.family != "file":
        check_seq_len(name, longest, raise_positions=not train)
    built = build_model(
        name,
        attention=attention,
        image_size=options.image_size or None,
        seq_len=longest,
        train=train,
        raise_positions=not train,
    )
    from joulecast.workload.trace import BATCH_SIZES, batch_sizes_with, trace_step

    slow = (options.slow_optimizer,) if options.slow_optimizer else ()
    lengths = (
        tuple(seq_lens)
        if seq_lens
        else ((seq_len or built.default_seq_len or 0) if built.is_sequence else 0,)
    )
    trace = trace_step(
        built.module,
        built.make_inputs,
        variant=options.variant,
        mode=options.mode,
        loss=built.loss,
        memory_format=options.memory_format,
        flash=options.attention != "efficient",
        checkpointing=options.checkpointing,
        batch_sizes=batch_sizes_with(batch_size) if name.family == "file" else BATCH_SIZES,
        optimizers=(*QUICK_OPTIMIZERS, *slow) if optimizers is None else optimizers,
        seq_lens=lengths,
        fallback_batch_size=batch_size,
    )
    return replace(trace, notes=(*built.notes, *trace.notes))


# --- packaging ------------------------------------------------------------------------------------


def packaged_options(name: ModelName) -> Iterator[TraceOptions]:
    """Yield what is packaged of a model: every variant, attention kernel, format and mode."""
    card = model_card(name)
    modes = ("forward",) if name.task == "body" else ("train", "forward")
    formats = ("contiguous",) if card.is_sequence or card.type == "vit" else ("contiguous", "channels_last")
    for mode in modes:
        for variant in ("fp32", "amp-bf16", "amp-fp16", "pure-bf16"):
            for attention in _attention_kernels(card.supports_attention, variant):
                for memory_format in formats:
                    yield TraceOptions(
                        variant=variant, mode=mode, attention=attention, memory_format=memory_format
                    )


def _attention_kernels(supported: Sequence[str], variant: str) -> tuple[str, ...]:
    if not supported:
        return ("none",)
    kernels = ("efficient",) if variant == "fp32" else ("flash", "efficient")
    return tuple(k for k in (*kernels, "eager") if k == "eager" or "sdpa" in supported)


def packaged_seq_lens(name: ModelName) -> tuple[int, ...] | None:
    """Return the lengths a packaged model is traced at, or None where it takes no sequences."""
    if name.canonical in _CORNERS:
        return _CORNERS[name.canonical][0]
    return _GRID_SEQ_LENS if model_card(name).is_sequence else None


def _element_bytes(options: TraceOptions) -> int:
    return 2 if options.variant.startswith("pure") else 4


def save_packaged(model: str) -> Path:
    """Trace all that is packaged of a model, and write its table; for those who build joulecast."""
    if model not in PACKAGED:
        raise UsageError(f"{model} is not packaged")
    name = resolve_model(model)
    traces: dict[str, StepTrace] = {}
    steps: dict[int, Mapping[str, OptimizerTrace]] = {}  # by the bytes of the parameters
    for options in packaged_options(name):
        known = steps.get(_element_bytes(options), {}) if options.mode == "train" else {}
        names = () if known else OPTIMIZERS
        trace = trace_named(name, options, seq_lens=packaged_seq_lens(name), optimizers=names)
        if options.mode == "train":
            trace = replace(trace, optimizers=steps.setdefault(_element_bytes(options), trace.optimizers))
        if model in _CORNERS:
            trace = replace(trace, seq_len_range=(float(_CORNERS[model][1]), float("inf")))
        traces[options.key] = trace
    path = packaged_path(name)
    save_traces(path, traces)
    return path
