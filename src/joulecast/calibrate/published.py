"""What others published of their own errors: figures to stand beside ours, each with its source.

None was run again here. Their data, cards and metrics are their own; a figure says what is reachable, not who
is better.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published error.

    Attributes
    ----------
    figure : str
        In its authors' terms.
    source : str
        Who, where, when.
    """

    figure: str
    source: str


_STUDY: Final = (
    "A Framework for Analytical Performance and Energy Prediction of DL Training on GPUs, SBAC-PAD 2025, "
    "doi 10.1109/sbac-pad66369.2025.00028, abstract; in sample, six models, A100"
)
_NEUSIGHT: Final = (
    "NeuSight: Forecasting GPU Performance for Deep Learning Training and Inference, ASPLOS 2025, and its "
    "artifact's labels and predictions"
)
_ENERGAIZER: Final = "EnergAIzer, ISPASS 2026, artifact; forward passes, A100 PCIe"
_MEMORY: Final = (
    "xMem (estimates from a CPU run); DNNMem: Estimating GPU Memory Consumption of Deep Learning Models, "
    "ESEC/FSE 2020"
)

#: By the name of a target's line.
PUBLISHED: Final = MappingProxyType(
    {
        "willgpaik time": Published(figure="3.05 % (another data set)", source=_STUDY),
        "willgpaik power": Published(figure="5.78 % (another data set)", source=_STUDY),
        "willgpaik energy": Published(figure="4.14 % overall (another data set)", source=_STUDY),
        "NeuSight time": Published(
            figure="7.3 % mean over its NVIDIA training points, 6-27 % by GPU", source=_NEUSIGHT
        ),
        "EnergAIzer power": Published(figure="7.7 %", source=_ENERGAIZER),
        "EnergAIzer energy": Published(figure="14.2 %", source=_ENERGAIZER),
        "milabench memory": Published(figure="3-14 % (other data sets)", source=_MEMORY),
        "operators GEMM": Published(figure="14-20 %", source=_NEUSIGHT),
        "operators elementwise": Published(figure="19 %", source=_NEUSIGHT),
        "operators softmax and norm": Published(figure="softmax 14 %, norm 57 %", source=_NEUSIGHT),
    }
)
