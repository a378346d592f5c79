"""FLOPs, bytes and kernels of one operator call, as a GPU runs it; knows no GPU and imports no torch.

A formula takes the call as PyTorch dispatched it (`Call`) and returns its kernels as `Work` records:
usually one, two or three for the gradient of a convolution, none for a view. Formulas are registered by
ATen name without overload; registering a name twice is an error. A call whose name has no formula gets
`uncounted_work`: its bytes, and ``counted`` 0, so that coverage falls and the name is reported.

Conventions: a multiply-add is 2 FLOP; only products, convolutions and attention have FLOPs, everything
else is memory traffic. Bytes are what the kernel must move: a broadcast operand once, an in-place one
twice.
"""

from joulecast.workload import products, traffic  # noqa: F401  (their formulas register on import)
from joulecast.workload.calls import FORMULAS, Call, Work, streaming
from joulecast.workload.table import OpKind
from joulecast.workload.traffic import NO_KERNEL, foreach_work


def uncounted_work(call: Call) -> list[Work]:
    """Return the bytes of a call that has no formula, marked as not counted."""
    return streaming(call, OpKind.OTHER, counted=0)


def work_of(call: Call) -> list[Work]:
    """Return the kernels of a call: by its formula, or uncounted."""
    name = call.name
    if name in NO_KERNEL:
        return []
    if name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_amp_foreach")):
        return foreach_work(call)
    function = FORMULAS.get(name) or FORMULAS.get(name.rstrip("_"))
    return function(call) if function is not None else uncounted_work(call)
