"""A space of configurations -> a table of predictions, one row each.

In: a `Space`, parameters. Out: `SweepResult`, columns named as in `Prediction.to_row`.
"""

from collections.abc import Mapping
from typing import Any, Final

from joulecast.errors import UnknownNameError, UsageError
from joulecast.explore.space import Space, scenario_of, space_of
from joulecast.explore.table import SweepResult, table_of
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.prediction import predict_scenario


def sweep(space: Space | Mapping[str, Any], *, parameters: ParameterSet | None = None) -> SweepResult:
    """Predict every configuration of a space.

    Parameters
    ----------
    space : Space or mapping
        As `space_of` takes it: ``{"model": "bert-base", "gpu": ["a100-sxm4-40gb", "t4"]}``.
    parameters : ParameterSet, optional
        By default the shipped set.

    Returns
    -------
    SweepResult
        One row per configuration, the last key of the space fastest; what cannot be says why in
        ``skipped_reason``.

    Raises
    ------
    UsageError
        The space is empty, or a key is unknown.
    UnknownNameError
        A model, a card or a choice is unknown.
    """
    fitted = load_parameters() if parameters is None else parameters
    asked = space if isinstance(space, Space) else space_of(space)
    return table_of([_row(configuration, fitted) for configuration in asked.configurations()])


def _row(configuration: Mapping[str, Any], parameters: ParameterSet) -> dict[str, Any]:
    try:
        prediction = predict_scenario(scenario_of(configuration), parameters)
    except UnknownNameError:
        raise
    except UsageError as error:
        asked = {key: value for key, value in configuration.items() if key not in _PREDICTED}
        return {"n_gpus": 1, "accumulate": 1, **asked, "skipped_reason": " ".join(str(error).split())}
    shares = {f"{bound}_time_share_frac": x for bound, x in prediction.time_share_by_bound.items()}
    return {**prediction.to_row(), **shares}


#: Keys whose columns hold what is predicted, not what was asked.
_PREDICTED: Final = frozenset({"sm_clock_hz"})
