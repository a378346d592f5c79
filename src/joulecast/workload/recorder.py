"""A dispatch mode that records the operator calls and the life of every storage of what runs inside it."""

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils._python_dispatch import TorchDispatchMode

from joulecast.workload.calls import Call, Work
from joulecast.workload.formulas import work_of
from joulecast.workload.table import Phase


@dataclass(slots=True)
class Recording:
    """One step as it was dispatched, at one size.

    Attributes
    ----------
    labels : list of tuple
        `LABEL_COLUMNS` of every kernel.
    work : list of Work
        Its work.
    shapes : list of tuple
        The shape of its first result.
    born_bytes : list of float
        Size of every storage, in the order of their births. [bytes]
    events : list of int
        Births and deaths in order: ``i`` the birth of storage ``i``, ``~i`` its death.
    """

    labels: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    born_bytes: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    #: Uses of parameters beyond the first.
    n_shared_uses: int = 0


_SKIPPED_NAMESPACES: Final = frozenset({"prim", "prims", "profiler", "inductor"})


class Recorder(TorchDispatchMode):
    """Record the operator calls and the life of every storage of what runs inside.

    Attributes
    ----------
    recording : Recording
        What was seen so far.
    keep_rows : bool
        Whether calls are recorded, or storages only.
    module_calls : Counter
        Forward calls by ``id(module)``.
    scalar : float or None
        What a read of a value on the device returns; ``None`` leaves it to the fake tensor, which refuses.

    Parameters
    ----------
    module_paths : dict of int to str
        Path by ``id(module)``.
    resident : sequence of Tensor
        Parameters and buffers: there before the step, so not born in it.
    phase : Phase
        `Phase.OPTIMIZER` marks every call so; else the phase is found from autograd.
    """

    def __init__(
        self,
        module_paths: dict[int, str],
        resident: Sequence[torch.Tensor],
        phase: Phase = Phase.FORWARD,
        scalar: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self.keep_rows = True
        self.module_calls: Counter[int] = Counter()
        self.scalar = scalar
        self._phase = phase
        self._paths = module_paths
        self._stack: list[str] = [""]
        self._path_of_sequence: dict[int, str] = {}
        self._live: dict[int, Any] = {}
        self._resident = frozenset(t.untyped_storage()._cdata for t in resident)
        self._weights: set[int] = set(self._resident)
        self._active = False

    def __enter__(self) -> "Recorder":
        self._hooks = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            nn_module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self._active = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._active = False
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: nn.Module, _args: Any) -> None:
        if torch._C._current_autograd_node() is None:  # a recomputation is not another use
            self.module_calls[id(module)] += 1
        self._stack.append(self._paths.get(id(module), self._stack[-1]))

    def _leave_module(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._stack.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = _kind_of_call(func)
        if kind == "skip":
            return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default and self.scalar is not None:
            return self.scalar
        result = func(*args, **kwargs)
        if kind == "view":
            return result
        outputs = tuple(result) if isinstance(result, list | tuple) else (result,)
        outputs = tuple(t for item in outputs for t in (item if isinstance(item, list) else [item]))
        self._track(outputs)
        if self.keep_rows:
            self._record(func, args, kwargs, outputs)
        return result

    def _is_weight(self, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata in self._weights

    def _record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: tuple[Any, ...]
    ) -> None:
        node: Any = torch._C._current_autograd_node()  # None outside of the backward pass
        recompute = node is not None and torch.is_grad_enabled()
        phase, path = self._where(node, recompute)
        packet = func._schema.name.split("::")[-1]
        if packet == "_to_copy" and self._is_weight(args[0]):
            self._weights.add(outputs[0].untyped_storage()._cdata)
        call = Call(
            name=packet,
            args=args,
            kwargs=kwargs,
            outputs=outputs,
            in_backward=phase is Phase.BACKWARD,
            weight_operand=any(self._is_weight(a) for a in args[:3]),
        )
        for work in work_of(call):
            work_phase = (work.phase or phase) if phase is Phase.BACKWARD else phase
            self.recording.labels.append((work.kind, work_phase, work.dtype, packet, path))
            self.recording.work.append(work._replace(model_flop=0.0) if recompute else work)
            self.recording.shapes.append(_first_shape(outputs))

    def _where(self, node: Any, recompute: bool) -> tuple[Phase, str]:
        """Return the phase, and the path of the module whose forward the call belongs to."""
        if self._phase is Phase.OPTIMIZER:
            return Phase.OPTIMIZER, ""
        if node is not None and not recompute:
            return Phase.BACKWARD, self._path_of_sequence.get(node._sequence_nr(), "")
        # The autograd node of the call that runs now took the last sequence number.
        self._path_of_sequence[torch._C._autograd._get_sequence_nr() - 1] = self._stack[-1]
        return Phase.RECOMPUTE if recompute else Phase.FORWARD, self._stack[-1]

    def _track(self, outputs: tuple[Any, ...]) -> None:
        """Note the birth of every new storage, and its death when it comes."""
        for tensor in outputs:
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._live or key in self._resident:
                continue
            index = len(self.recording.born_bytes)
            self.recording.born_bytes.append(float(storage.nbytes()))
            self.recording.events.append(index)
            self._live[key] = weakref.ref(storage, partial(self._note_death, key, index))

    def _note_death(self, key: int, index: int, _reference: Any) -> None:
        self._live.pop(key, None)
        self._weights.discard(key)
        if self._active:
            self.recording.events.append(~index)


def _first_shape(outputs: tuple[Any, ...]) -> tuple[int, ...]:
    return next((tuple(o.shape) for o in outputs if isinstance(o, torch.Tensor)), ())


_CALL_KINDS: dict[Any, str] = {}


_ALIASES: Final = frozenset({"aten::_unsafe_view", "aten::_reshape_alias", "aten::detach"})


def _returns_views(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _kind_of_call(func: Any) -> str:
    """Return ``skip``, ``view`` or ``kernel``; decided once for every overload."""
    kind = _CALL_KINDS.get(func)
    if kind is None:
        if func.namespace in _SKIPPED_NAMESPACES:
            kind = "skip"
        elif func._schema.name in _ALIASES or _returns_views(func):
            kind = "view"
        else:
            kind = "kernel"
        _CALL_KINDS[func] = kind
    return kind
