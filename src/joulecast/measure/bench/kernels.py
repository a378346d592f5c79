"""Cases as calls that can be timed. Needs torch.

Forward operators run as in training, with a gradient recorded; gradients run alone, through autograd, for the
operands that the phase names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from joulecast.measure.bench.cases import Case
from joulecast.workload.optimizers import make_optimizer
from joulecast.workload.table import Phase

Tensor = torch.Tensor
Call = Callable[[], object]

_TORCH_DTYPES: Final = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

#: On a processor, operands come round again after so many bytes: in a step, what an operator reads has left
#: the core's own caches. [bytes]
CYCLED_BYTES: Final = 48e6
_MOST_COPIES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A function of tensors, and what its phases differentiate.

    Attributes
    ----------
    function : callable
    operands : tuple of Tensor
    gradients : mapping of str to tuple of int
        Phase -> operands whose gradients it computes.
    """

    function: Callable[..., Tensor]
    operands: tuple[Tensor, ...]
    gradients: dict[str, tuple[int, ...]]


class _Maker:
    """Makes operands of one type on one device."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.sizes = dict(case.sizes)
        self._options: dict[str, Any] = {"device": device, "dtype": _TORCH_DTYPES[case.dtype]}
        self._last = bool(self.sizes.get("channels_last", 0))

    def floats(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return a tensor of normal numbers, in the case's format."""
        made = torch.randn(shape, **self._options).mul_(scale)
        images = len(shape) == 4 and self._last  # noqa: PLR2004  (images, channels, rows, columns)
        made = made.contiguous(memory_format=torch.channels_last) if images else made
        return made.requires_grad_()

    def __getitem__(self, names: str) -> tuple[int, ...]:
        """Return the sizes of some names."""
        return tuple(self.sizes[name] for name in names.split())


def _linear(make: _Maker, _: Case) -> Operation:
    m, n, k = make["m n k"]
    operands = (make.floats(m, k), make.floats(n, k, scale=k**-0.5))
    return Operation(function=functional.linear, operands=operands, gradients={"dgrad": (0,), "wgrad": (1,)})


def _bmm(make: _Maker, _: Case) -> Operation:
    b, m, n, k = make["b m n k"]
    operands = (make.floats(b, m, k), make.floats(b, k, n))
    return Operation(function=torch.bmm, operands=operands, gradients={"dgrad": (0,), "wgrad": (1,)})


def _conv(make: _Maker, _: Case) -> Operation:
    b, c_in, c_out, kernel, size = make["b c_in c_out kernel size"]
    stride, pad, groups = make["stride pad groups"]
    width = c_in // groups
    weight = make.floats(c_out, width, kernel, kernel, scale=(width * kernel**2) ** -0.5)
    return Operation(
        function=lambda x, w: functional.conv2d(x, w, None, stride, pad, 1, groups),
        operands=(make.floats(b, c_in, size, size), weight),
        gradients={"dgrad": (0,), "wgrad": (1,)},
    )


def _attention(make: _Maker, case: Case) -> Operation:
    b, heads, kv_heads, seq, width = make["b heads kv_heads seq head_dim"]
    causal = case.op == "attention-causal"
    operands = (
        make.floats(b, heads, seq, width),
        make.floats(b, kv_heads, seq, width),
        make.floats(b, kv_heads, seq, width),
    )
    return Operation(
        function=lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
        operands=operands,
        gradients={"dgrad": (0, 1, 2)},
    )


_ELEMENTWISE: Final[dict[str, Callable[..., Tensor]]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "copy": torch.clone,
    "softmax": lambda x: torch.softmax(x, -1),
    "sum": lambda x: x.sum(0),
    "dropout": lambda x: torch.native_dropout(x, 0.1, True)[0],
}
_BINARY: Final[dict[str, Callable[..., Tensor]]] = {"add": torch.add, "mul": torch.mul}


def _elementwise(make: _Maker, case: Case) -> Operation:
    operands = (make.floats(*make["b h"]),)
    return Operation(function=_ELEMENTWISE[case.op], operands=operands, gradients={"dgrad": (0,)})


def _binary(make: _Maker, case: Case) -> Operation:
    operands = (make.floats(*make["b h"]), make.floats(*make["b h"]))
    return Operation(function=_BINARY[case.op], operands=operands, gradients={})


def _layer_norm(make: _Maker, _: Case) -> Operation:
    b, h = make["b h"]
    operands = (make.floats(b, h), make.floats(h), make.floats(h))
    return Operation(
        function=lambda x, w, bias: functional.layer_norm(x, (h,), w, bias),
        operands=operands,
        gradients={"dgrad": (0, 1, 2)},
    )


def _batch_norm(make: _Maker, _: Case) -> Operation:
    b, c_in, size = make["b c_in size"]
    operands = (make.floats(b, c_in, size, size), make.floats(c_in), make.floats(c_in))
    mean, variance = (torch.ones(c_in, device=operands[0].device) for _ in range(2))
    return Operation(
        function=lambda x, w, bias: functional.batch_norm(x, mean, variance, w, bias, training=True),
        operands=operands,
        gradients={"dgrad": (0, 1, 2)},
    )


def _max_pool(make: _Maker, _: Case) -> Operation:
    b, c_in, size, kernel, stride, pad = make["b c_in size kernel stride pad"]
    return Operation(
        function=lambda x: functional.max_pool2d(x, kernel, stride, pad),
        operands=(make.floats(b, c_in, size, size),),
        gradients={"dgrad": (0,)},
    )


def _embedding(make: _Maker, _: Case) -> Operation:
    b, h, n = make["b h n"]
    table = make.floats(n, h)
    tokens = torch.randint(n, (b,), device=table.device)
    return Operation(
        function=lambda weight: functional.embedding(tokens, weight),
        operands=(table,),
        gradients={"wgrad": (0,)},
    )


_MAKERS: Final[dict[str, Callable[[_Maker, Case], Operation]]] = {
    "linear": _linear,
    "bmm": _bmm,
    "conv": _conv,
    "attention-full": _attention,
    "attention-causal": _attention,
    "ln": _layer_norm,
    "bn": _batch_norm,
    "max-pool": _max_pool,
    "embedding": _embedding,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BINARY, _binary),
}


def make_call(case: Case, device: torch.device) -> Call:
    """Return a call that runs a case once; each takes other operands where the device is a processor.

    Raises
    ------
    RuntimeError
        The device cannot hold the operands, or has no kernel for them: torch's own.
    """
    if case.phase == Phase.OPTIMIZER:
        return _optimizer_call(case, device)
    first = _phase_call(case, device)
    if device.type != "cpu":
        return first.call
    n_copies = int(min(max(CYCLED_BYTES // max(first.n_bytes, 1), 1), _MOST_COPIES))
    calls = cycle([first.call, *(_phase_call(case, device).call for _ in range(n_copies - 1))])
    return lambda: next(calls)()  # noqa: PLW0108  (another call each time)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhaseCall:
    call: Call
    n_bytes: int


def _phase_call(case: Case, device: torch.device) -> _PhaseCall:
    operation = _MAKERS[case.op](_Maker(case, device), case)
    function, operands = operation.function, operation.operands
    n_bytes = sum(t.numel() * t.element_size() for t in operands)
    if case.phase == Phase.FORWARD:
        return _PhaseCall(call=lambda: function(*operands), n_bytes=n_bytes)
    wanted = [operands[i] for i in operation.gradients[case.phase]]
    for tensor in operands:
        tensor.requires_grad_(any(tensor is other for other in wanted))
    output = function(*operands)
    gradient = torch.randn_like(output)
    n_bytes += gradient.numel() * gradient.element_size()
    return _PhaseCall(
        call=lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True), n_bytes=n_bytes
    )


def _optimizer_call(case: Case, device: torch.device) -> Call:
    sizes = dict(case.sizes)
    tensors = [
        nn.Parameter(torch.randn(sizes["h"], device=device, dtype=_TORCH_DTYPES[case.dtype]))
        for _ in range(sizes["b"])
    ]
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor)
    step: Call = make_optimizer(case.op, tensors).step
    return step


# --- what is no operator --------------------------------------------------------------------------

_BLOCKS: Final = 32
_WIDTH: Final = 8


def tiny_chain(device: torch.device) -> tuple[nn.Module, Tensor]:
    """Return a network of kernels so small that the host is all there is to time, and its input."""
    blocks = [
        layer
        for _ in range(_BLOCKS)
        for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.LayerNorm(_WIDTH))
    ]
    return nn.Sequential(*blocks).to(device), torch.randn(2, _WIDTH, device=device)


def tiny_tensors(n_tensors: int, device: torch.device) -> Sequence[nn.Parameter]:
    """Return parameters so small that an optimizer's step is the host's work alone."""
    made = [nn.Parameter(torch.randn(_WIDTH, device=device)) for _ in range(n_tensors)]
    for tensor in made:
        tensor.grad = torch.randn_like(tensor)
    return made
