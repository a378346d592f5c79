"""Any ``nn.Module`` -> `StepTrace`, on fake tensors: no GPU, no weights in memory.

One training step runs under `FakeTensorMode` on fake CPU tensors while a dispatch mode records every
operator call and the life of every storage. What a GPU would do differently is arranged first
(`gpu_behaviour`): CUDA's autocast lists, fused attention, fused dropout. The step runs at two batch
sizes (and, where asked, three sequence lengths); rows that depend on them become polynomials.

Enters: a module (real, or on ``meta``), a function that makes its inputs. Leaves: a `StepTrace`. It must
not know any GPU.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.checkpoint import checkpoint

from joulecast.errors import TraceError, UsageError
from joulecast.workload.formulas import Work
from joulecast.workload.gpu_behaviour import gpu_behaviour
from joulecast.workload.optimizers import trace_optimizer
from joulecast.workload.recorder import Recorder, Recording
from joulecast.workload.table import (
    FIXED_COLUMNS,
    LABEL_COLUMNS,
    MONOMIALS,
    SCALING_COLUMNS,
    Floats,
    OptimizerTrace,
    ParameterCount,
    Phase,
    StepTrace,
    monomials,
)

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

#: Blocks of the CUDA caching allocator are multiples of this.
_ALLOCATOR_BLOCK_BYTES: Final = 512

# --- the module on fake tensors -------------------------------------------------------------------


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wraps, or the module itself."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else module


def _module_paths(module: nn.Module) -> dict[int, str]:
    """Return paths by module identity, layer indices replaced by ``*``."""
    paths = {}
    for name, child in module.named_modules():
        paths[id(child)] = re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)
    return paths


def _fake_like(
    tensor: torch.Tensor, dtype: torch.dtype | None, memory_format: torch.memory_format, requires_grad: bool
) -> torch.Tensor:
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    fake = torch.empty(tuple(tensor.shape), dtype=wanted)
    if memory_format is torch.channels_last and fake.dim() == 4:
        fake = fake.to(memory_format=torch.channels_last)
    return fake.requires_grad_(requires_grad)


@contextmanager
def _fake_parameters(
    module: nn.Module, dtype: torch.dtype | None, memory_format: torch.memory_format
) -> Iterator[list[torch.Tensor]]:
    """Give the module fake parameters and buffers, tied ones once; put the old ones back after."""
    fakes: dict[int, torch.Tensor] = {}
    saved: list[tuple[dict[str, Any], str, Any]] = []
    trainable: list[torch.Tensor] = []

    def fake_of(tensor: torch.Tensor, is_parameter: bool) -> torch.Tensor:
        if id(tensor) not in fakes:
            needs_gradient = is_parameter and tensor.requires_grad
            fakes[id(tensor)] = _fake_like(tensor, dtype, memory_format, needs_gradient)
            if needs_gradient:
                trainable.append(fakes[id(tensor)])
        return fakes[id(tensor)]

    try:
        for child in module.modules():
            for slot, is_parameter in ((child._parameters, True), (child._buffers, False)):
                for name, tensor in list(slot.items()):
                    if tensor is not None:
                        saved.append((slot, name, tensor))
                        slot[name] = fake_of(tensor, is_parameter)  # type: ignore[assignment]
        yield trainable
    finally:
        for slot, name, tensor in saved:
            slot[name] = tensor


@contextmanager
def _training_mode(module: nn.Module, train: bool) -> Iterator[None]:
    """Set every submodule's training flag, and set each back after."""
    before = [(child, child.training) for child in module.modules()]
    try:
        module.train(train)
        yield
    finally:
        for child, training in before:
            child.training = training


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost repeated blocks: what a list, or a row of composite modules, holds."""
    for child in module.children():
        members = list(child.children())
        is_list = isinstance(child, nn.ModuleList) or (isinstance(child, nn.Sequential) and len(members) > 1)
        if is_list and members and all(list(m.children()) for m in members):
            yield from members
        else:
            yield from _blocks(child)


@contextmanager
def _checkpointed(module: nn.Module) -> Iterator[None]:
    """Recompute each repeated block in the backward pass, as ``torch.utils.checkpoint`` does.

    Raises
    ------
    TraceError
        If the module has no repeated blocks.
    """
    blocks = list(_blocks(module))
    if not blocks:
        raise TraceError("activation checkpointing: the module has no repeated blocks to recompute")
    for block in blocks:
        block.forward = partial(  # type: ignore[method-assign]
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def count_parameters(module: nn.Module, dtype: torch.dtype | None = None) -> ParameterCount:
    """Return the parameters of a module, tied ones once, stored in ``dtype`` where given."""
    module = unwrapped(module)
    parameters = {id(p): p for p in module.parameters()}.values()
    buffers = {id(b): b for b in module.buffers()}.values()

    def n_bytes(t: torch.Tensor) -> int:
        size = dtype.itemsize if dtype is not None and t.is_floating_point() else t.element_size()
        return t.numel() * size

    trainable = [p for p in parameters if p.requires_grad]
    return ParameterCount(
        n_parameters=sum(p.numel() for p in parameters),
        n_trainable=sum(p.numel() for p in trainable),
        n_tensors=len(trainable),
        parameter_bytes=sum(n_bytes(p) for p in parameters),
        trainable_bytes=sum(n_bytes(p) for p in trainable),
        buffer_bytes=sum(n_bytes(b) for b in buffers),
    )


# --- one step -------------------------------------------------------------------------------------


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
        if inputs.dim() == 4:
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


def _run_step(module: nn.Module, recorder: Recorder, options: _StepOptions, batch_size: int, seq_len: int) -> None:
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
        loss.backward()  # type: ignore[no-untyped-call]


def _positional(inputs: Any, options: _StepOptions) -> tuple[Any, ...]:
    """Return the arguments of ``forward``: all but the labels that only the loss takes."""
    return inputs[:1] if options.loss is not None and len(inputs) > 1 else inputs


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
        stack.enter_context(_training_mode(module, train))
        if options.checkpointing:
            stack.enter_context(_checkpointed(module))
        trainable = stack.enter_context(_fake_parameters(module, options.dtype, options.memory_format))
        resident = [*module.parameters(), *module.buffers(), *trainable]
        recorder = Recorder(_module_paths(module), resident)
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


# --- from recordings to polynomials ---------------------------------------------------------------

_FIXED_OF_WORK: Final = tuple(name for name in FIXED_COLUMNS if name != "n_calls")


def _fit(values: Floats, batch_sizes: Sequence[int], seq_lens: Sequence[int]) -> Floats:
    """Return the polynomials through values [batch, length, ...] as [..., term].

    Newton's divided differences, linear in the batch and quadratic in the length: exact in float64, since
    values and coefficients are integers or halves of integers.
    """
    in_batch = _newton(values, batch_sizes)  # [power of B, length, ...]
    in_both = _newton(np.moveaxis(in_batch, 1, 0), seq_lens)  # [power of S, power of B, ...]
    terms = np.zeros((*values.shape[2:], len(MONOMIALS)))
    for term, (i, j) in enumerate(MONOMIALS):
        if i < len(batch_sizes) and j < len(seq_lens):
            terms[..., term] = in_both[j, i]
    return terms


def _newton(values: Floats, points: Sequence[int]) -> Floats:
    """Return the coefficients [power, ...] of the polynomial through values [point, ...]."""
    if len(points) == 1:
        return values
    slope = (values[1] - values[0]) / (points[1] - points[0])
    if len(points) == 2:
        return np.stack([values[0] - slope * points[0], slope])
    second = ((values[2] - values[1]) / (points[2] - points[1]) - slope) / (points[2] - points[0])
    first = slope - second * (points[0] + points[1])
    return np.stack([values[0] - first * points[0] - second * points[0] ** 2, first, second])


@dataclass(frozen=True, slots=True)
class _Grid:
    """Recordings of one step over batch sizes x lengths, length fastest."""

    recordings: list[Recording]
    batch_sizes: tuple[int, ...]
    seq_lens: tuple[int, ...]

    def polynomials(self, values: Floats) -> Floats:
        """Return the polynomials of values [recording, ...] as [..., term]."""
        shape = (len(self.batch_sizes), len(self.seq_lens), *values.shape[1:])
        return _fit(values.reshape(shape), self.batch_sizes, self.seq_lens)

    def is_aligned(self) -> bool:
        """Whether the same calls ran, and as many storages were born, at every size."""
        first = self.recordings[0]
        fixed = [[_fixed_of(w) for w in r.work] for r in self.recordings]
        return all(
            r.labels == first.labels and f == fixed[0] and len(r.born_bytes) == len(first.born_bytes)
            for r, f in zip(self.recordings[1:], fixed[1:], strict=True)
        )

    def is_quadratic_in_batch(self) -> bool:
        """Whether two axes of one result follow the batch: two batch sizes do not determine it then."""
        small, large = self.recordings[0], self.recordings[-len(self.seq_lens)]
        return any(
            len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) > 1
            for a, b in zip(small.shapes, large.shapes, strict=True)
        )


def _fixed_of(work: Work) -> tuple[float, ...]:
    return tuple(getattr(work, column) for column in _FIXED_OF_WORK)


@dataclass(frozen=True, slots=True)
class _Rows:
    labels: dict[str, Any]
    fixed: dict[str, Floats]
    polynomials: Floats


def _merged_rows(grid: _Grid) -> _Rows:
    """Merge equal calls into rows with their multiplicity."""
    first = grid.recordings[0]
    counts: Counter[Any] = Counter()
    for i, label in enumerate(first.labels):
        scaling = tuple(tuple(getattr(r.work[i], c) for c in SCALING_COLUMNS) for r in grid.recordings)
        counts[label, _fixed_of(first.work[i]), scaling] += 1
    keys = list(counts)
    labels = {name: np.array([k[0][i] for k in keys], dtype=np.str_) for i, name in enumerate(LABEL_COLUMNS)}
    fixed = {
        name: np.array([k[1][i] for k in keys], dtype=np.float64) for i, name in enumerate(_FIXED_OF_WORK)
    }
    fixed["n_calls"] = np.array([counts[k] for k in keys], dtype=np.float64)
    shape = (len(keys), len(grid.recordings), len(SCALING_COLUMNS))
    values = np.array([k[2] for k in keys], dtype=np.float64).reshape(shape)  # [op, recording, column]
    return _Rows(labels=labels, fixed=fixed, polynomials=grid.polynomials(np.moveaxis(values, 1, 0)))


#: Sizes at which the candidates for the peak are looked for.
_PEAK_BATCHES: Final = np.unique(np.round(np.geomspace(1, 16384, 43)))
_PEAK_LENGTHS: Final = np.unique(np.round(np.geomspace(8, 32768, 13)))


def _peak_candidates(grid: _Grid) -> Floats:
    """Return the moments [candidate, term] that are the peak at some size.

    Live bytes are polynomials at every moment; only those that are largest somewhere on a grid of sizes
    are kept. Storages of constant size are rounded up to the allocator's blocks.
    """
    born = np.array([r.born_bytes for r in grid.recordings], dtype=np.float64)  # [recording, storage]
    if not born.size:
        return np.zeros((1, len(MONOMIALS)))
    constant = np.all(born == born[0], axis=0)
    blocks = np.ceil(born / _ALLOCATOR_BLOCK_BYTES) * _ALLOCATOR_BLOCK_BYTES
    born = np.where(constant, blocks, born)
    if len(grid.recordings) == 1:
        born = blocks
    sizes = grid.polynomials(born)  # [storage, term]
    events = np.array(grid.recordings[-1].events)
    changes = np.where((events >= 0)[:, None], sizes[events], -sizes[~events])
    live = np.cumsum(changes, axis=0)  # [event, term]
    lengths = _PEAK_LENGTHS if len(grid.seq_lens) > 1 else np.array([float(grid.seq_lens[0])])
    points = np.array([monomials(b, s) for b in _PEAK_BATCHES for s in lengths])  # [point, term]
    return np.asarray(live[np.unique(np.argmax(live @ points.T, axis=0))])


def _features(module: nn.Module, recording: Recording) -> dict[str, float]:
    """Return structural features: depth, layers, repeated and shared ones."""
    leaves = [m for m in module.modules() if not list(m.children())]
    weighted = [m for m in leaves if any(p.dim() > 1 for p in m.parameters(recurse=False))]
    forward = [w for w, label in zip(recording.work, recording.labels, strict=True) if label[1] == Phase.FORWARD]
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


def trace_step(
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
    batch_sizes: tuple[int, int] = (2, 3),
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
    rows = _merged_rows(grid)
    return StepTrace(
        labels=rows.labels,
        fixed=rows.fixed,
        polynomials=rows.polynomials,
        live_bytes=_peak_candidates(grid),
        parameters=replace(
            count_parameters(module, dtype), n_shared_uses=grid.recordings[0].n_shared_uses
        ),
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
) -> _Grid:
    recordings = [_record_step(module, options, b, s) for b in batch_sizes for s in seq_lens]
    return _Grid(recordings=recordings, batch_sizes=batch_sizes, seq_lens=seq_lens)


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
