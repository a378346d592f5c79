"""Time, power, energy and memory of PyTorch training steps, predicted without a GPU.

The public names load on first use, so ``import joulecast`` is quick and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Characterisation",
    "JoulecastError",
    "Measurement",
    "Meter",
    "Prediction",
    "Predictions",
    "Quantity",
    "Scenario",
    "Site",
    "TrainingPlan",
    "__version__",
    "combine",
    "cost",
    "forecast",
    "load_sweep",
    "measure",
    "measure_command",
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
    from joulecast.measure.command import measure_command
    from joulecast.measure.meter import Meter
    from joulecast.measure.nodes import combine
    from joulecast.measure.session import measure
    from joulecast.prediction import predict
    from joulecast.results import Measurement, Prediction, Predictions, Quantity
    from joulecast.scenario import Scenario

_HOME_OF = {
    "Characterisation": "joulecast.characterisation",
    "JoulecastError": "joulecast.errors",
    "Measurement": "joulecast.results",
    "Meter": "joulecast.measure.meter",
    "Prediction": "joulecast.results",
    "Predictions": "joulecast.results",
    "Quantity": "joulecast.results",
    "Scenario": "joulecast.scenario",
    "combine": "joulecast.measure.nodes",
    "measure": "joulecast.measure",
    "measure_command": "joulecast.measure.command",
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
    home = import_module(_HOME_OF[name])
    value = home if name == "measure" else getattr(home, name)  # that package is called itself
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
