"""Time, power, energy and memory of PyTorch training steps, predicted without a GPU.

The public names load on first use, so ``import joulecast`` is quick and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Characterisation",
    "JoulecastError",
    "Prediction",
    "Predictions",
    "Quantity",
    "Scenario",
    "Site",
    "TrainingPlan",
    "__version__",
    "cost",
    "forecast",
    "load_sweep",
    "predict",
    "recommend",
    "sensitivity",
    "sweep",
    "trace",
    "validate",
]

if TYPE_CHECKING:
    from joulecast.calibrate.validation import validate
    from joulecast.characterisation import Characterisation, trace
    from joulecast.errors import JoulecastError
    from joulecast.explore.forecast import forecast
    from joulecast.explore.recommend import recommend
    from joulecast.explore.sensitivity import sensitivity
    from joulecast.explore.sweep import sweep
    from joulecast.explore.table import load_sweep
    from joulecast.explore.whole_run import Site, TrainingPlan, cost
    from joulecast.prediction import predict
    from joulecast.results import Prediction, Predictions, Quantity
    from joulecast.scenario import Scenario

_HOME_OF = {
    "Characterisation": "joulecast.characterisation",
    "JoulecastError": "joulecast.errors",
    "Prediction": "joulecast.results",
    "Predictions": "joulecast.results",
    "Quantity": "joulecast.results",
    "Scenario": "joulecast.scenario",
    "Site": "joulecast.explore.whole_run",
    "TrainingPlan": "joulecast.explore.whole_run",
    "cost": "joulecast.explore.whole_run",
    "forecast": "joulecast.explore.forecast",
    "predict": "joulecast.prediction",
    "load_sweep": "joulecast.explore.table",
    "recommend": "joulecast.explore.recommend",
    "sensitivity": "joulecast.explore.sensitivity",
    "sweep": "joulecast.explore.sweep",
    "trace": "joulecast.characterisation",
    "validate": "joulecast.calibrate.validation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'joulecast' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
