"""A whole run forecast anew from steps already measured.

In: the prediction of a step as prior, the measured steps, the plan and the site. Out: `Forecast`, whose
interval shrinks as steps come in.
"""

from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Any, Final

from joulecast.errors import UsageError
from joulecast.explore.measured_steps import Mean, MeasuredSteps
from joulecast.explore.whole_run import (
    RunCost,
    RunPart,
    Site,
    TrainingPlan,
    run_cost,
    run_inputs,
)
from joulecast.model.parameters import ParameterSet, load_parameters
from joulecast.results import Z90, Origin, Prediction, Quantity
from joulecast.scenario import Scenario

FORECAST_SCHEMA: Final = "joulecast/forecast/1"

#: How far the mean of the rest of a run may lie from that of the steps measured, because of other jobs,
#: temperature or data: standard deviation of the logarithm. [1] (guess)
DRIFT_LOG_SD: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A run, before and after its steps were measured.

    Attributes
    ----------
    measured : MeasuredSteps
    prior : RunCost
        By prediction alone.
    run : RunCost
        What is done, as measured, and the rest by the posterior.
    prior_weight_frac : float
        Weight of the prediction in the posterior step time. [1]
    drift_log_sd : float
        See `DRIFT_LOG_SD`. [1]
    measured_over_predicted : float
        Of the mean step time. [1]
    """

    measured: MeasuredSteps
    prior: RunCost
    run: RunCost
    prior_weight_frac: float
    drift_log_sd: float
    measured_over_predicted: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``joulecast forecast --format json``."""
        m = self.measured
        return {
            "schema": FORECAST_SCHEMA,
            "measured": {
                "source": m.source,
                "n_done": m.n_done,
                "n_averaged": m.n_averaged,
                "step_time_s": m.step_time_s.value,
                "step_time_log_sd": m.step_time_s.log_sd,
                "energy_per_step_j": m.energy_per_step_j and m.energy_per_step_j.value,
                "energy_per_step_log_sd": m.energy_per_step_j and m.energy_per_step_j.log_sd,
            },
            "measured_over_predicted": self.measured_over_predicted,
            "prior_weight_frac": self.prior_weight_frac,
            "drift_log_sd": self.drift_log_sd,
            "step_time_s": self.run.training.step_time_s.to_dict(),
            "energy_per_step_j": self.run.training.energy_per_step_j.to_dict(),
            "prior": self.prior.to_dict(),
            "run": self.run.to_dict(),
        }

    def to_row(self) -> dict[str, Any]:
        """Return one flat row: that of the run, and the prior's time and energy beside it."""
        prior = {
            f"prior_{end}{name}": getattr(getattr(self.prior, name), key)
            for name in ("run_time_s", "gpu_energy_j")
            for end, key in (("", "value"), ("low_", "low"), ("high_", "high"))
        }
        return {
            "measured": self.measured.source,
            "n_done": self.measured.n_done,
            **self.run.to_row(),
            **prior,
        }


def forecast(
    measured: MeasuredSteps,
    *,
    plan: TrainingPlan,
    scenario: Scenario | None = None,
    site: Site | None = None,
    parameters: ParameterSet | None = None,
    drift_log_sd: float = DRIFT_LOG_SD,
) -> Forecast:
    """Forecast a run anew from its first steps, or from a measurement of a run like it.

    Parameters
    ----------
    measured : MeasuredSteps
        From `load_measured`.
    plan : TrainingPlan
        The whole run, the steps that are done included.
    scenario : Scenario, optional
        What runs; by default what `measured` says.
    site : Site, optional
    parameters : ParameterSet, optional
        By default the shipped set.
    drift_log_sd : float, optional
        How far the mean of the rest may lie from that of the steps measured. [1]

    Raises
    ------
    UsageError
        Neither the caller nor the record says what runs, or more steps are done than the run has.

    Notes
    -----
    Conjugate normal update of the logarithm of the mean step time. Prior: the prediction, with the deviation
    of its interval, ``N(log t, s0^2)``. Measurement: ``N(log m, s1^2 + drift^2)``, s1 from `block_mean`.
    Posterior: mean weighted by the inverse variances, whose sum is the inverse of its variance. Energy per
    step likewise where it is measured; where not, mean power keeps its prior and multiplies the posterior
    time.
    """
    chosen = scenario or measured.scenario
    if chosen is None:
        raise UsageError(f"{measured.source} does not say what ran: name the model and the card")
    if not 0 <= drift_log_sd < 1:
        raise UsageError(f"a drift of {drift_log_sd:g} cannot be: give a share of the step time, 0 to 1")
    fitted = load_parameters() if parameters is None else parameters
    inputs = run_inputs(chosen, plan, fitted)
    prior = run_cost(inputs, plan, site or Site())
    training, weight = updated(inputs.training, measured, drift_log_sd)
    done = _done(training, measured)
    if done is not None and done.n_steps > prior.high_n_steps:
        raise UsageError(
            f"{measured.source} has {done.n_steps:.0f} steps, and the run {prior.high_n_steps:.0f}: "
            "check samples, epochs and batch size"
        )
    return Forecast(
        measured=measured,
        prior=prior,
        run=run_cost(replace(inputs, training=training), plan, site or Site(), done),
        prior_weight_frac=weight,
        drift_log_sd=drift_log_sd,
        measured_over_predicted=measured.step_time_s.value / inputs.training.step_time_s.value,
    )


def updated(prior: Prediction, measured: MeasuredSteps, drift_log_sd: float) -> tuple[Prediction, float]:
    """Return the prediction with time and energy per step updated, and the prior's weight in the time."""
    time_s, weight = posterior(prior.step_time_s, measured.step_time_s, drift_log_sd)
    if measured.energy_per_step_j is not None:
        energy_j, _ = posterior(prior.energy_per_step_j, measured.energy_per_step_j, drift_log_sd)
    else:
        log_sd = sqrt(time_s.log_sd**2 + prior.mean_power_w.log_sd**2)
        energy_j = _log_normal(log(prior.mean_power_w.value * prior.n_gpus * time_s.value), log_sd)
    power_w = energy_j.value / time_s.value / prior.n_gpus
    power_log_sd = min(energy_j.log_sd, prior.mean_power_w.log_sd)
    n_samples = prior.global_batch
    return replace(
        prior,
        step_time_s=time_s,
        energy_per_step_j=energy_j,
        mean_power_w=_log_normal(log(power_w), power_log_sd),
        samples_per_s=time_s.into(n_samples),
        energy_per_sample_j=energy_j.times(1 / n_samples),
        samples_per_j=energy_j.into(n_samples),
    ), weight


def posterior(prior: Quantity, measured: Mean, drift_log_sd: float) -> tuple[Quantity, float]:
    """Return a quantity updated by a measured mean, and the prior's weight in it. [1]."""
    prior_variance = prior.log_sd**2
    variance = measured.log_sd**2 + drift_log_sd**2
    if prior_variance == 0:
        return prior, 1.0
    weight = variance / (variance + prior_variance)  # the inverse variances' share
    centre = weight * log(prior.value) + (1 - weight) * log(measured.value)
    return _log_normal(centre, sqrt(weight * prior_variance)), weight


def _log_normal(centre: float, log_sd: float) -> Quantity:
    """Return the median and the 90 % interval; calibrated, because it is fitted to the run itself."""
    return Quantity(
        value=exp(centre),
        low=exp(centre - Z90 * log_sd),
        high=exp(centre + Z90 * log_sd),
        origin=Origin.CALIBRATED,
    )


def _done(training: Prediction, measured: MeasuredSteps) -> RunPart | None:
    """Return the steps that are over, as measured; energy by the mean power where there is no meter."""
    if not measured.n_done:
        return None
    time_s = _exact(measured.done_time_s)
    if measured.done_energy_j is None:
        energy_j = training.mean_power_w.times(training.n_gpus * measured.done_time_s)
    else:
        energy_j = _exact(measured.done_energy_j)
    return RunPart(name="done", n_steps=measured.n_done, time_s=time_s, energy_j=energy_j)


def _exact(value: float) -> Quantity:
    return Quantity(value=value, low=value, high=value, origin=Origin.MEASURED)
