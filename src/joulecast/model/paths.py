"""Which arithmetic unit runs each kind of row, as PyTorch picks it.

In: kind, dtype, precision policy, a GPU. Out: the name of a unit and what it can do. Knows no efficiency.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from joulecast.hardware.spec import Gpu
from joulecast.workload.table import Dtype, OpKind, OpTable

#: Fused attention in FP32 splits each product into three of TF32 on Ampere and newer.
#: Source: PyTorch, aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h
#: (``OpMultiplyAddFastF32`` for Sm80).
TF32_PRODUCTS_PER_FP32: Final = 3.0

#: Row families: indices into `definitions.PATH_FAMILIES`.
VECTOR, TF32, TENSOR16 = 0, 1, 2


def path_of(kind: str, dtype: str, precision: str, gpu: Gpu) -> str:
    """Return the unit that runs a row: a key of ``Gpu.flop_per_clock_per_sm``, or ``tf32x3``.

    Parameters
    ----------
    kind, dtype : str
        Values of `OpKind` and `Dtype`.
    precision : str
        The policy; decides whether FP32 work may use TF32.
    gpu : Gpu

    Notes
    -----
    PyTorch's defaults: FP32 products on the vector (AMD: matrix) units, FP32 convolutions in TF32 where cuDNN
    has it; ``tf32`` allows both, ``fp32-strict`` none. A 16-bit type without tensor units accumulates in
    FP32 on the vector units.
    """
    units = gpu.flop_per_clock_per_sm
    if dtype in (Dtype.BF16, Dtype.FP16, Dtype.FP8):
        tensor = f"{dtype}_tensor"
        return tensor if units.get(tensor, 0.0) > 0 else "fp32_vector"
    if dtype == Dtype.FP64:
        return "fp64_vector"
    if units.get("tf32_tensor", 0.0) > 0:
        if kind == OpKind.ATTENTION and precision != "fp32-strict":
            return "tf32x3"
        cudnn = kind == OpKind.CONVOLUTION and precision != "fp32-strict" and gpu.vendor.lower() == "nvidia"
        if cudnn or precision == "tf32":
            return "tf32_tensor"
    return "fp32_matrix" if units.get("fp32_matrix", 0.0) > 0 else "fp32_vector"


def unit_flop_per_clock(path: str, gpu: Gpu) -> float:
    """Return the work of a path in one clock of the whole GPU. [FLOP]."""
    units = gpu.flop_per_clock_per_sm
    if path == "tf32x3":
        return gpu.n_sms * max(units["tf32_tensor"] / TF32_PRODUCTS_PER_FP32, units["fp32_vector"])
    return gpu.n_sms * units.get(path, units["fp32_vector"])


def row_paths(table: OpTable, precision: str, gpu: Gpu) -> npt.NDArray[np.str_]:
    """Return the path of every row. [op]."""
    labels = list(zip(table.kind.tolist(), table.dtype.tolist(), strict=True))
    known = {pair: path_of(*pair, precision, gpu) for pair in set(labels)}
    return np.array([known[pair] for pair in labels], dtype=np.str_)


def family_of(path: str) -> int:
    """Return the path family of a path: an index into `definitions.PATH_FAMILIES`."""
    if path in ("tf32_tensor", "tf32x3"):
        return TF32
    return TENSOR16 if path.endswith("_tensor") else VECTOR
