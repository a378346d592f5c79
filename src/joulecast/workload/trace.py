"""Any ``nn.Module`` -> `StepTrace`, on fake tensors: no GPU, no weights in memory.

One training step runs under `FakeTensorMode` on fake CPU tensors while a dispatch mode records every
operator call and the life of every storage. What a GPU would do differently is arranged first
(`gpu_behaviour`): CUDA's autocast lists, fused attention, fused dropout. The step runs at two batch
sizes (and, where asked, three sequence lengths); rows that depend on them become polynomials.

Enters: a module (real, or on ``meta``), a function that makes its inputs. Leaves: a `StepTrace`. It must
not know any GPU.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from joulecast.errors import TraceError, UsageError
from joulecast.workload.calls import IMAGE_DIMENSIONS
from joulecast.workload.fake_module import (
    checkpointed,
    count_parameters,
    fake_parameters,
    module_paths,
    training_mode,
    unwrapped,
)
from joulecast.workload.gpu_behaviour import gpu_behaviour
from joulecast.workload.optimizers import trace_optimizer
from joulecast.workload.polynomials import Grid, merged_rows, peak_candidates
from joulecast.workload.recorder import Recorder, Recording
from joulecast.workload.table import OptimizerTrace, Phase, StepTrace

#: Makes one step's inputs: positional arguments, or keyword arguments, at a batch size and length.
MakeInputs = Callable[[int, int], tuple[Any, ...] | dict[str, Any]]
#: A scalar loss from the module's output and its inputs.
LossFunction = Callable[[Any, Any], torch.Tensor]

#: Compute variants behind the precision policies: dtype of autocast, dtype of the whole module.
_VARIANTS: Final[dict[str, tuple[torch.dtype | None, torch.dtype | None]]] = {
    "fp32": (None, None),
    "amp-bf16": (torch.bfloat16, None),
    "amp-fp16": (torch.float16, None),
    "pure-bf16": (None, torch.bfloat16),
    "pure-fp16": (None, torch.float16),
}

#: The batch sizes that determine the dependence of a model whose operators do not follow the batch.
BATCH_SIZES: Final = (2, 3)


def batch_sizes_with(batch_size: int | None) -> tuple[int, int]:
    """Return two batch sizes of which one is that asked for: a graph that switches with it is seen then."""
    small, large = BATCH_SIZES
    return small, max(batch_size or large, large)


# --- one step -------------------------------------------------------------------------------------


def inputs_like(examples: Any) -> tuple[MakeInputs, int]:
    """Return a maker of inputs from one step's example tensors, and their batch size.

    Parameters
    ----------
    examples : Tensor, tuple or dict
        The first axis of every tensor is the batch; a tensor without axes, or a value that is no tensor,
        stays as it is.

    Raises
    ------
    UsageError
        If there is no tensor with a batch, or they disagree on its size.
    """
    named = examples if isinstance(examples, dict) else dict(enumerate(_as_tuple(examples)))
    sizes = {t.shape[0] for t in named.values() if isinstance(t, torch.Tensor) and t.dim() > 0}
    if len(sizes) != 1:
        raise UsageError(
            f"example inputs must share the size of their first axis, the batch; found {sorted(sizes)}"
        )

    def resized(value: Any, batch_size: int) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        return torch.zeros((batch_size, *value.shape[1:]), dtype=value.dtype)

    def make_inputs(batch_size: int, _seq_len: int) -> Any:
        made = {name: resized(value, batch_size) for name, value in named.items()}
        return made if isinstance(examples, dict) else tuple(made.values())

    return make_inputs, sizes.pop()


def _as_tuple(examples: Any) -> tuple[Any, ...]:
    return tuple(examples) if isinstance(examples, list | tuple) else (examples,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepOptions:
    make_inputs: MakeInputs
    loss: LossFunction | None
    mode: str
    autocast: torch.dtype | None
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    checkpointing: bool


def _cast_inputs(inputs: Any, options: _StepOptions) -> Any:
    """Store floating inputs as the module's dtype and images in its memory format."""
    if isinstance(inputs, dict):
        return {k: _cast_inputs(v, options) for k, v in inputs.items()}
    if isinstance(inputs, list | tuple):
        return tuple(_cast_inputs(v, options) for v in inputs)
    if isinstance(inputs, torch.Tensor) and inputs.is_floating_point():
        if options.dtype is not None:
            inputs = inputs.to(options.dtype)
        if inputs.dim() == IMAGE_DIMENSIONS:
            inputs = inputs.contiguous(memory_format=options.memory_format)
    return inputs


def loss_of(output: Any, inputs: Any, loss: LossFunction | None) -> torch.Tensor:
    """Return the scalar to differentiate: the given loss, an output's ``.loss``, or a scalar output.

    Raises
    ------
    TraceError
        If there is none.
    """
    if loss is not None:
        return loss(output, inputs)
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return output
    raise TraceError(
        "the module returns no loss: pass a loss function, or return a scalar or an output with .loss"
    )


def _run_step(
    module: nn.Module, recorder: Recorder, options: _StepOptions, batch_size: int, seq_len: int
) -> None:
    recorder.keep_rows = False
    inputs = _cast_inputs(options.make_inputs(batch_size, seq_len), options)
    recorder.keep_rows = True
    train = options.mode != "forward"
    amp = torch.autocast("cpu", dtype=options.autocast) if options.autocast is not None else nullcontext()
    with amp, nullcontext() if train else torch.no_grad():
        output = module(**inputs) if isinstance(inputs, dict) else module(*_positional(inputs, options))
        loss = loss_of(output, inputs, options.loss) if train else None
    del output
    if loss is not None:
        loss.backward()


def _positional(inputs: Any, options: _StepOptions) -> tuple[Any, ...]:
    """Return the arguments of ``forward``: all but the labels that only the loss takes."""
    arguments: tuple[Any, ...] = tuple(inputs)
    return arguments[:1] if options.loss is not None else arguments


def _record_step(module: nn.Module, options: _StepOptions, batch_size: int, seq_len: int) -> Recording:
    """Run one step at one size and return what was recorded.

    Raises
    ------
    TraceError
        If the module raises, or branches on the values of its data.
    """
    train = options.mode != "forward"
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(training_mode(module, train))
        if options.checkpointing:
            stack.enter_context(checkpointed(module))
        trainable = stack.enter_context(fake_parameters(module, options.dtype, options.memory_format))
        resident = [*module.parameters(), *module.buffers(), *trainable]
        recorder = Recorder(module_paths(module), resident)
        try:
            with recorder:
                _run_step(module, recorder, options, batch_size, seq_len)
        except DataDependentOutputException as error:
            raise TraceError(
                f"the module branches on its data ({error}): joulecast traces without values; "
                "replace the branch by one that depends on shapes only"
            ) from error
        except TraceError:
            raise
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise TraceError(f"the module's step raised {type(error).__name__}: {first_line}") from error
    recorder.recording.n_shared_uses = _shared_uses(module, recorder.module_calls)
    return recorder.recording


def _shared_uses(module: nn.Module, calls: Counter[int]) -> int:
    """Return how often parameters are used beyond once: shared layers, tied tensors."""
    uses: Counter[int] = Counter()
    for child in module.modules():
        for parameter in child.parameters(recurse=False):
            uses[id(parameter)] += max(calls[id(child)], 1)
    return sum(n - 1 for n in uses.values() if n > 1)


def _features(module: nn.Module, recording: Recording) -> dict[str, float]:
    """Return structural features: depth, layers, repeated and shared ones."""
    leaves = [m for m in module.modules() if not list(m.children())]
    weighted = [m for m in leaves if any(p.dim() > 1 for p in m.parameters(recurse=False))]
    forward = [
        w for w, label in zip(recording.work, recording.labels, strict=True) if label[1] == Phase.FORWARD
    ]
    products = [w for w in forward if w.flop > 0]
    uses = Counter((w.kind, w.m, w.n, w.k, w.batch) for w in products)
    widths = sorted(w.n * w.batch for w in products)
    return {
        "n_weighted_layers": float(len(weighted)),
        "n_products": float(len(products)),
        "median_width": float(widths[len(widths) // 2]) if widths else 0.0,
        "repeated_layer_frac": 1.0 - len(uses) / len(products) if products else 0.0,
        "n_products_per_weighted_layer": len(products) / len(weighted) if weighted else 0.0,
    }


def trace_step(  # noqa: PLR0913  (options by name)
    module: nn.Module,
    make_inputs: MakeInputs,
    *,
    variant: str = "fp32",
    mode: str = "train",
    loss: LossFunction | None = None,
    memory_format: str = "contiguous",
    flash: bool = True,
    checkpointing: bool = False,
    optimizers: Sequence[str] = ("adamw",),
    batch_sizes: tuple[int, int] = BATCH_SIZES,
    seq_lens: Sequence[int] = (0,),
    fallback_batch_size: int | None = None,
) -> StepTrace:
    """Record one step of a module as a `StepTrace`; the module is left as it was.

    Parameters
    ----------
    module : nn.Module
        Real or on ``meta``; a compiled one is unwrapped and traced as eager.
    make_inputs : callable
        ``make_inputs(batch_size, seq_len)`` -> keyword arguments (dict), or positional ones (tuple) of
        which, when a loss function is given, all but the first go to the loss alone.
    variant : str
        ``fp32``, ``amp-bf16``, ``amp-fp16``, ``pure-bf16`` or ``pure-fp16``.
    mode : str
        ``train`` and ``train-no-optimizer`` record forward, loss and backward in training mode;
        ``forward`` a forward pass in evaluation mode without gradients.
    loss : callable, optional
        ``loss(output, inputs)`` -> scalar; else the output's ``.loss`` or a scalar output is used.
    memory_format : str
        ``contiguous`` or ``channels_last``.
    flash : bool
        Whether 16-bit attention without a mask runs as flash (else as memory-efficient).
    checkpointing : bool
        Whether the activations inside repeated blocks are recomputed in the backward pass.
    optimizers : sequence of str
        Optimizers whose step is recorded too.
    batch_sizes : (int, int)
        The two batch sizes that determine the dependence.
    seq_lens : sequence of int
        One length, or three that determine the dependence.
    fallback_batch_size : int, optional
        The batch to trace at where two sizes do not determine the dependence.

    Returns
    -------
    StepTrace

    Raises
    ------
    UsageError
        If an option is unknown.
    TraceError
        If the module raises, branches on data, or returns no loss.
    """
    if variant not in _VARIANTS:
        raise UsageError(f"unknown variant {variant!r}; one of {', '.join(_VARIANTS)}")
    compiled = unwrapped(module) is not module
    module = unwrapped(module)
    autocast, dtype = _VARIANTS[variant]
    options = _StepOptions(
        make_inputs=make_inputs,
        loss=loss,
        mode=mode,
        autocast=autocast,
        dtype=dtype,
        memory_format=torch.channels_last if memory_format == "channels_last" else torch.contiguous_format,
        checkpointing=checkpointing,
    )
    notes = ["torch.compile is reported as eager"] if compiled else []
    lengths = tuple(seq_lens)
    with gpu_behaviour(flash=flash):
        grid = _record_grid(module, options, batch_sizes, lengths)
        exact = grid.is_aligned() and not grid.is_quadratic_in_batch()
        if not exact:
            grid = _record_grid(module, options, (fallback_batch_size or batch_sizes[-1],), lengths[-1:])
            notes.append(f"the work is not linear in the batch: traced at batch {grid.batch_sizes[0]} alone")
    rows = merged_rows(grid)
    return StepTrace(
        labels=rows.labels,
        fixed=rows.fixed,
        polynomials=rows.polynomials,
        live_bytes=peak_candidates(grid),
        parameters=replace(count_parameters(module, dtype), n_shared_uses=grid.recordings[0].n_shared_uses),
        optimizers=_optimizer_traces(module, optimizers, dtype) if mode == "train" else {},
        tokens_per_sample_is_seq_len=max(lengths) > 0,
        seq_len_range=(1.0, float("inf")) if len(grid.seq_lens) > 1 else (lengths[-1], lengths[-1]),
        batch_exact=exact,
        batch_traced=0.0 if exact else float(grid.batch_sizes[0]),
        features=_features(module, grid.recordings[0]),
        notes=tuple(notes),
    )


def _record_grid(
    module: nn.Module, options: _StepOptions, batch_sizes: tuple[int, ...], seq_lens: tuple[int, ...]
) -> Grid:
    recordings = [_record_step(module, options, b, s) for b in batch_sizes for s in seq_lens]
    return Grid(recordings=recordings, batch_sizes=batch_sizes, seq_lens=seq_lens)


def _optimizer_traces(
    module: nn.Module, names: Sequence[str], dtype: torch.dtype | None
) -> dict[str, OptimizerTrace]:
    """Return one step of each optimizer over the module's trainable parameters.

    A module in 16 bit also gets each over FP32 master weights, as ``NAME+master``.
    """
    shapes = [tuple(p.shape) for p in module.parameters() if p.requires_grad]
    stored = dtype if dtype is not None else torch.float32
    steps = {name: trace_optimizer(shapes, name, stored) for name in names}
    if dtype is not None:
        for name in names:
            steps[f"{name}+master"] = trace_optimizer(shapes, name, torch.float32, model_dtype=dtype)
    return steps
