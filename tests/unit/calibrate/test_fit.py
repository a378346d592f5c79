"""A fit recovers the parameters that made its data; its parts by hand."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.dataset import StepRecord, weighted
from joulecast.calibrate.intervals import held_out_steps, without_pipelines
from joulecast.calibrate.operators import (
    bench_floor_s,
    fit_operators,
    observed_floors_s,
    operator_problem,
    product_problem,
    sampled,
    set_aside,
)
from joulecast.calibrate.ops import OperatorRecords
from joulecast.calibrate.stages import JointProblem, Stage, fit_stage, mean_error
from joulecast.calibrate.steps import (
    centred,
    residual_quantiles,
    step_problem,
    step_residuals,
    thinned,
)
from joulecast.hardware.catalogue import load_gpu
from joulecast.model.batch import Step, batch_of, step_costs
from joulecast.model.definitions import PARAMETERS
from joulecast.model.parameters import initial_parameters
from joulecast.workload.table import OpTable, ParameterCount, Workload

TRUTH = initial_parameters().values


def table_of(m, n, k, kinds, phase="forward"):
    """Return FP32 rows: products, or streams where k is 0."""
    n_rows = len(m)
    ones, zeros = np.ones(n_rows), np.zeros(n_rows)
    flop = 2.0 * m * n * k
    return OpTable(
        kind=np.array(kinds),
        phase=np.full(n_rows, phase),
        dtype=np.full(n_rows, "fp32"),
        operator=np.full(n_rows, "op"),
        module=np.full(n_rows, "*"),
        batch=ones,
        m=m,
        n=n,
        k=k,
        flop=flop,
        model_flop=flop.copy(),
        read_bytes=4.0 * np.where(k > 0, m * k + k * n, m * n),
        written_bytes=4.0 * m * n,
        n_calls=ones.copy(),
        n_kernels=ones.copy(),
        kernel_area=ones.copy(),
        stride=ones.copy(),
        groups=ones.copy(),
        group_width=zeros,
        causal=zeros.copy(),
        masked=zeros.copy(),
        channels_last=zeros.copy(),
        counted=ones.copy(),
    )


@pytest.fixture
def records():
    """Return products and streams on two GPUs that take exactly what the initial parameters say."""
    random = np.random.default_rng(3)
    n_rows = 400
    product = np.arange(n_rows) % 2 == 0
    m, n, k = (np.round(2.0 ** random.uniform(5, 13, n_rows)) for _ in range(3))
    table = table_of(m, n, np.where(product, k, 0.0), np.where(product, "gemm", "elementwise"))
    blank = OperatorRecords(
        table=table,
        operator=np.where(product, "linear", "relu"),
        gpu=np.where(np.arange(n_rows) % 4 < 2, "t4", "a100-pcie-40gb"),
        precision=np.full(n_rows, "fp32-strict"),
        is_eager=np.zeros(n_rows, dtype=np.bool_),
        latency_s=np.ones(n_rows),
        mean_power_w=np.full(n_rows, np.nan),
    )
    latency_s, _ = operator_problem(blank, gpus()).latency_and_power(TRUTH)
    return replace(blank, latency_s=latency_s)


def gpus():
    return {slug: load_gpu(slug) for slug in ("t4", "a100-pcie-40gb")}


def test_a_stage_recovers_the_parameters_that_made_the_data(records):
    names = ("product.vector.k_half", "bandwidth.elementwise", "launch.kernel_s")
    wrong = {**TRUTH, "product.vector.k_half": 20.0, "bandwidth.elementwise": 0.5, "launch.kernel_s": 4e-6}
    stage = Stage(name="all", parameters=names, problem=operator_problem(records, gpus()), prior_weight=0.0)
    result = fit_stage(stage, wrong)
    assert result.error_after < 0.005 < result.error_before
    for name in names:
        assert result.values[name] == pytest.approx(TRUTH[name], rel=0.02), name
    assert result.at_bound == ()


def test_a_parameter_at_its_bound_is_named(records):
    problem = operator_problem(replace(records, latency_s=1e-3 * records.latency_s), gpus())
    stage = Stage(
        name="all", parameters=("launch.kernel_s",), problem=problem, n_evaluations=50, prior_weight=0.0
    )
    assert fit_stage(stage, TRUTH).at_bound == ("launch.kernel_s",)


def test_stages_on_operators_leave_a_good_fit_good(records):
    results = fit_operators(records, gpus(), TRUTH, left_out=["t4"])
    assert [r.name for r in results] == ["bench", "streams", "products"]
    assert all(r.error_after <= r.error_before + 1e-3 for r in results[1:])
    assert product_problem(records, gpus(), ["t4", "a100-pcie-40gb"]) is None


def test_dispatch_is_a_floor_of_eager_operators(records):
    eager = replace(records, is_eager=np.ones(len(records), dtype=np.bool_))
    problem = operator_problem(eager, gpus())
    latency_s, _ = problem.latency_and_power(TRUTH)
    assert np.all(latency_s >= bench_floor_s(problem.rows, TRUTH) * (1 - 1e-9))
    floors = observed_floors_s(eager)
    assert len(np.unique(floors)) == 4


def test_samples_are_drawn_by_operator_and_gpu(records):
    few = sampled(records, 10, seed=1)
    assert len(few) == 40
    np.testing.assert_array_equal(few.latency_s, sampled(records, 10, seed=1).latency_s)


def test_pascal_products_are_set_aside(records):
    pascal = replace(records, gpu=np.full(len(records), "p4"))
    assert set_aside(pascal).sum() == len(records) // 2
    assert not set_aside(records).any()


def test_joint_problems_weigh_their_parts(records):
    one = operator_problem(records, gpus())
    shifted = {**TRUTH, "launch.kernel_s": 5e-6}
    joint = JointProblem(problems=(one, one), weights=(1.0, 0.5)).residuals(shifted)
    np.testing.assert_allclose(joint[len(records) :], 0.5 * joint[: len(records)])


# --- steps ----------------------------------------------------------------------------------------


def step_of(slug="a100-pcie-40gb", n_calls=1.0, limit_w=None):
    m = np.array([4096.0, 8192.0, 64.0])
    table = table_of(m, m, np.array([4096.0, 0.0, 64.0]), ["gemm", "copy", "gemm"]).repeated(n_calls)
    return Step(
        workload=Workload(
            table=table,
            batch_size=1.0,
            seq_len=0.0,
            precision="fp32",
            mode="train",
            parameters=ParameterCount(
                n_parameters=1,
                n_trainable=1,
                n_tensors=1,
                parameter_bytes=4,
                trainable_bytes=4,
                buffer_bytes=0,
            ),
            gradient_bytes=4.0,
            persistent_bytes=4.0,
            peak_live_bytes=4.0,
        ),
        gpu=load_gpu(slug),
        power_limit_w=limit_w,
    )


def record_of(step, source="s", relative_to="", factor=1.0):
    costs = step_costs(batch_of([step]), TRUTH)
    return StepRecord(
        run_id="r",
        source=source,
        model="m",
        step=step,
        step_time_s=factor * float(costs.step_time_s[0]),
        mean_power_w=float(costs.mean_power_w[0]),
        relative_to=relative_to,
    )


def steps():
    slugs = ("a100-pcie-40gb", "t4", "v100-sxm2-16gb")
    return [record_of(step_of(slug, n), source=slug) for slug in slugs for n in (1.0, 3.0, 10.0)]


def test_steps_recover_time_and_energy_parameters():
    names = ("bandwidth.copy", "power.j_per_byte")
    stage = Stage(name="steps", parameters=names, problem=step_problem(steps()), prior_weight=0.0)
    result = fit_stage(stage, {**TRUTH, "bandwidth.copy": 0.5, "power.j_per_byte": 2e-10})
    for name in names:
        assert result.values[name] == pytest.approx(TRUTH[name], rel=0.02), name


def test_relative_groups_count_by_their_ratios_alone():
    slow = [record_of(step_of(limit_w=w), relative_to="g", factor=1.7) for w in (150.0, 250.0)]
    problem = step_problem([*slow, record_of(step_of(), factor=1.1)])
    residuals = problem.residuals(TRUTH) / np.tile(problem.weight, 2)
    np.testing.assert_allclose(residuals[:3], [0.0, 0.0, np.log(1.1)], atol=1e-9)
    np.testing.assert_allclose(centred(np.array([1.0, np.nan]), np.array([-1, 0])), [1.0, np.nan])


def test_a_time_with_an_input_pipeline_widens_no_interval():
    records = [record_of(step_of(), relative_to="g", factor=1.7), record_of(step_of(), factor=1.1)]
    rows = held_out_steps(records, TRUTH, initial_parameters())
    np.testing.assert_allclose(rows.log_ratio, np.log([1.7, 1.1, 1.0, 1.0, 1.7, 1.1]), atol=1e-9)
    kept = without_pipelines(rows, records).log_ratio
    np.testing.assert_allclose(kept, np.log([np.nan, 1.1, 1.0, 1.0, np.nan, 1.1]), atol=1e-9)


def test_what_was_not_measured_does_not_count():
    blind = replace(record_of(step_of()), mean_power_w=float("nan"))
    assert len(step_problem([blind]).residuals(TRUTH)) == 1


def test_sources_count_by_the_root_of_their_rows():
    many = [*steps()[:1], *[record_of(step_of(), source="big")] * 4]
    weights = weighted(many)
    assert weights[0] / weights[1] == pytest.approx(2.0)
    assert np.mean(weights) == pytest.approx(1.0)
    assert weighted([]) == []


def test_thinning_keeps_measured_rows_of_every_source():
    unmeasured = replace(steps()[0], step_time_s=float("nan"), mean_power_w=float("nan"))
    assert len(thinned([*steps(), unmeasured], 2, seed=0)) == 6


def test_residuals_need_enough_rows():
    assert step_residuals(steps(), TRUTH, "seen") == {}
    found = step_residuals(steps() * 3, TRUTH, "seen")
    assert set(found) == {"time.seen", "power.seen", "energy.seen"}
    assert found["time.seen"].median == pytest.approx(0.0, abs=1e-9)
    quantiles = residual_quantiles(np.linspace(-1, 1, 101))
    assert (quantiles.low, quantiles.median, quantiles.high) == pytest.approx((-0.9, 0.0, 0.9))


def test_the_mean_error_is_relative():
    assert mean_error(np.log(np.array([2.0, 0.5]))) == pytest.approx((0.5 + 1.0) / 2)
    assert np.isnan(mean_error(np.array([])))


def test_every_fitted_name_is_a_parameter():
    from joulecast.calibrate.operators import OPERATOR_STAGES, PRODUCT_PARAMETERS
    from joulecast.calibrate.steps import STEP_POWER_PARAMETERS, STEP_TIME_PARAMETERS

    known = {p.name for p in PARAMETERS}
    fitted = [name for _, names in OPERATOR_STAGES.values() for name in names]
    assert {*fitted, *PRODUCT_PARAMETERS, *STEP_POWER_PARAMETERS, *STEP_TIME_PARAMETERS} <= known
    joint = (*STEP_TIME_PARAMETERS, *STEP_POWER_PARAMETERS, *PRODUCT_PARAMETERS)
    assert len(set(joint)) == len(joint)
