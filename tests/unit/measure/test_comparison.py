from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from joulecast.errors import UsageError
from joulecast.measure.comparison import (
    Comparison,
    MeasuredValue,
    OperatorTimes,
    Stage,
    StepProfile,
    compare,
)
from joulecast.measure.side_by_side import measured_values, scenario_of
from joulecast.measure.stored import StoredRun
from joulecast.report.comparisons import comparison_page, save_comparison_figure
from joulecast.results import Measurement, OpGroup, Prediction, Quantity

MakeRun = Callable[..., Measurement]
MakePrediction = Callable[..., Prediction]


def group(kind: str, phase: str, time_s: float, n_kernels: float = 10.0) -> OpGroup:
    return OpGroup(
        kind=kind,
        phase=phase,
        time_s=time_s,
        energy_j=1.0,
        time_share_frac=0.5,
        energy_share_frac=0.5,
        n_kernels=n_kernels,
        flop=0.0,
        bytes_moved=1.0,
        bound_by="compute",
    )


def ran(kind: str, stage: Stage, time_s: float, n_kernels: float = 10.0) -> OperatorTimes:
    return OperatorTimes(
        operator=kind, kind=kind, stage=stage, time_s=time_s, n_calls=n_kernels, n_kernels=n_kernels
    )


#: 60 ms of products forward, 30 ms of their gradients in two phases, 10 ms of small kernels: 100 ms.
GROUPS = (
    group("gemm", "forward", 0.060),
    group("gemm", "dgrad", 0.010),
    group("gemm", "wgrad", 0.020),
    group("elementwise", "forward", 0.010),
)
AS_PREDICTED = (
    ran("gemm", Stage.FORWARD, 0.060),
    ran("gemm", Stage.BACKWARD, 0.030, n_kernels=20),
    ran("elementwise", Stage.FORWARD, 0.010),
)


@pytest.fixture
def compared(make_prediction: MakePrediction) -> Callable[..., Comparison]:
    """Return a maker of comparisons with a prediction of 0.1 s that the operators fill."""

    def make(
        step_s: float,
        operators: tuple[OperatorTimes, ...] = AS_PREDICTED,
        *,
        profiled_s: float | None = None,
        input_s: float = 0.0,
        clock_hz: float = 1.4e9,
        groups: tuple[OpGroup, ...] = GROUPS,
    ) -> Comparison:
        profile = StepProfile(
            operators=operators,
            step_time_s=profiled_s or step_s,
            input_time_s=input_s,
            has_kernels=True,
        )
        measured = {
            "step_time_s": MeasuredValue(value=step_s, low=step_s * 0.99, high=step_s * 1.01),
            "sm_clock_hz": MeasuredValue(value=clock_hz),
        }
        return compare("r1", make_prediction(op_groups=groups), measured, profile)

    return make


def test_phases_add_to_stages_and_times_are_scaled_by_the_profilers_slowdown(
    compared: Callable[..., Comparison],
) -> None:
    slowed = tuple(replace(operator, time_s=2 * operator.time_s) for operator in AS_PREDICTED)
    c = compared(0.1, slowed, profiled_s=0.2)
    assert [(s.stage, s.predicted_s, s.measured_s) for s in c.stages] == [
        (Stage.FORWARD, pytest.approx(0.07), pytest.approx(0.07)),
        (Stage.BACKWARD, pytest.approx(0.03), pytest.approx(0.03)),
    ]
    assert sum(g.predicted_s for g in c.groups) == pytest.approx(0.1)
    backward = next(g for g in c.groups if g.stage is Stage.BACKWARD)
    assert (backward.kind, backward.n_predicted, backward.n_measured) == ("gemm", 20, 20)
    assert c.residual_s == pytest.approx(0)


class TestCauses:
    def test_a_step_that_waits_is_the_hosts(self, compared: Callable[..., Comparison]) -> None:
        cause = compared(0.15).likely_cause
        assert cause is not None
        assert (cause.name, cause.residual_s) == ("host", pytest.approx(0.05))
        assert "50 ms of 150 ms measured, 0 ms of 100 ms predicted" in cause.evidence

    def test_a_lower_clock_slows_what_is_bound_by_compute(self, compared: Callable[..., Comparison]) -> None:
        # 0.7 of the step is bound by compute; a clock of 1/1.4 makes 28 ms of it
        slower = (ran("gemm", Stage.FORWARD, 0.088), *AS_PREDICTED[1:])
        c = compared(0.128, slower, clock_hz=1e9)
        assert c.likely_cause is not None
        assert (c.likely_cause.name, c.likely_cause.residual_s) == ("clock", pytest.approx(0.028))
        operators = next(cause for cause in c.causes if cause.name == "operators")
        assert operators.residual_s == pytest.approx(0)  # counted once

    def test_more_small_kernels_than_counted(self, compared: Callable[..., Comparison]) -> None:
        c = compared(0.14, (*AS_PREDICTED[:2], ran("elementwise", Stage.FORWARD, 0.050, n_kernels=50)))
        assert c.likely_cause is not None
        assert (c.likely_cause.name, c.likely_cause.residual_s) == ("missing fusion", pytest.approx(0.04))
        assert c.likely_cause.evidence == "elementwise forward: 50 ran, 10 were counted"

    def test_attention_in_pieces_was_not_fused(self, compared: Callable[..., Comparison]) -> None:
        fused = (*GROUPS, group("attention", "forward", 0.010))
        pieces = (
            ran("batched_gemm", Stage.FORWARD, 0.040),
            ran("softmax", Stage.FORWARD, 0.020),
        )
        c = compared(0.16, AS_PREDICTED + pieces, groups=fused)
        assert c.likely_cause is not None
        assert (c.likely_cause.name, c.likely_cause.residual_s) == ("missing fusion", pytest.approx(0.05))
        assert "ran as products and softmax" in c.likely_cause.evidence

    def test_waiting_for_data_is_the_input_pipelines(self, compared: Callable[..., Comparison]) -> None:
        cause = compared(0.15, input_s=0.05).likely_cause
        assert cause is not None
        assert (cause.name, cause.residual_s) == ("input pipeline", pytest.approx(0.05))

    def test_what_is_left_is_the_operators_and_the_worst_is_named(
        self, compared: Callable[..., Comparison]
    ) -> None:
        cause = compared(0.13, (ran("gemm", Stage.FORWARD, 0.090), *AS_PREDICTED[1:])).likely_cause
        assert cause is not None
        assert (cause.name, cause.residual_s) == ("operators", pytest.approx(0.03))
        assert cause.evidence == "gemm forward took 90 ms, 60 ms were predicted"

    def test_a_faster_step_has_causes_too(self, compared: Callable[..., Comparison]) -> None:
        cause = compared(0.07, (ran("gemm", Stage.FORWARD, 0.030), *AS_PREDICTED[1:])).likely_cause
        assert cause is not None
        assert (cause.name, cause.residual_s) == ("operators", pytest.approx(-0.03))

    def test_without_a_profile_the_clock_alone_tells(self, make_prediction: MakePrediction) -> None:
        measured = {
            "step_time_s": MeasuredValue(value=0.12),
            "sm_clock_hz": MeasuredValue(value=None, reason="no such sensor"),
        }
        c = compare("r1", make_prediction(), measured)
        assert c.likely_cause is None
        assert {cause.name: cause.evidence for cause in c.causes}["clock"] == "no such sensor"
        assert all(cause.residual_s is None for cause in c.causes)


class TestRuns:
    def test_a_record_gives_its_step_and_its_values(self, make_run: MakeRun) -> None:
        run = StoredRun.of(make_run(accumulate=4, checkpointing=True, attention=None, n_sms=108))
        scenario = scenario_of(run)
        assert (scenario.batch_size, scenario.accumulate, scenario.checkpointing) == (8, 4, True)
        values = measured_values(run)
        assert (values["step_time_s"].value, values["step_time_s"].low) == (0.25, 0.24)
        assert values["mean_power_w"].reason == "no sensor"

    @pytest.mark.parametrize(
        ("meter", "known", "absent"),
        [
            ("torch.max_memory_allocated", "allocated_bytes", "process_bytes"),
            ("NVML device used", "process_bytes", "allocated_bytes"),
        ],
    )
    def test_a_row_gives_memory_as_it_was_read(
        self, meter: str, known: str, absent: str, make_run: MakeRun
    ) -> None:
        row = make_run().to_row() | {"peak_memory_bytes": 8e9, "memory_meter": meter}
        values = measured_values(StoredRun(row=row))
        assert values[known].value == 8e9
        assert values[absent].value is None
        assert values["step_time_s"] == MeasuredValue(value=0.25)

    def test_what_has_no_prediction(self, make_run: MakeRun) -> None:
        whole = StoredRun.of(make_run(model=None, command=("python", "train.py")))
        with pytest.raises(UsageError, match="run r1 has no prediction: it was measured whole"):
            scenario_of(whole)
        with pytest.raises(UsageError, match="its gpu is not known"):
            scenario_of(StoredRun.of(make_run(gpu=None)))


class TestPage:
    def test_it_shows_both_sides_and_the_cause(self, compared: Callable[..., Comparison]) -> None:
        text = str(comparison_page(compared(0.15)))
        for part in ("'100 ms'", "'150 ms'", "-33.3 %", "outside", "likely cause: host (+50.0 ms)", "wgrad"):
            assert (part in text) == (part != "wgrad")

    @pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<svg"), (".png", b"\x89PNG")])
    def test_figures(
        self, suffix: str, start: bytes, compared: Callable[..., Comparison], tmp_path: Path
    ) -> None:
        pytest.importorskip("altair")
        path = tmp_path / f"figure{suffix}"
        save_comparison_figure(compared(0.15), path)
        assert path.read_bytes().startswith(start)
        if suffix == ".svg":
            assert b"elementwise forward" in path.read_bytes()

    def test_a_figure_of_another_kind(self, compared: Callable[..., Comparison], tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"ends in \.svg or \.png"):
            save_comparison_figure(compared(0.15), tmp_path / "figure.bmp")


# --- profile --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    start: float
    end: float

    def elapsed_us(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Kernel:
    duration: float


@dataclass(frozen=True)
class Event:
    """What the profiler says of an operator; microseconds."""

    id: int
    name: str
    start: float
    end: float
    self_cpu_time_total: float = 0.0
    cpu_parent: Any = None
    kernels: tuple[Kernel, ...] = field(default=())

    @property
    def time_range(self) -> Span:
        return Span(self.start, self.end)


def scripted_events() -> list[Event]:
    """Return one step: a linear layer forward and backward, a clipped update, and a copy in between."""
    step = Event(0, "joulecast step", 0, 1000)
    linear = Event(1, "aten::linear", 10, 110, 5, step)
    addmm = Event(2, "aten::addmm", 12, 108, 80, linear, (Kernel(50),))
    copy = Event(3, "aten::copy_", 20, 25, 5, addmm, (Kernel(4),))
    node = Event(4, "autograd::engine::evaluate_function: AddmmBackward0", 200, 400, 30, step)
    mm = Event(5, "aten::mm", 210, 390, 150, node, (Kernel(70), Kernel(30)))
    norm = Event(6, "aten::_foreach_norm", 500, 510, 10, step, (Kernel(6),))
    optimizer = Event(7, "Optimizer.step#SGD.step", 600, 700, 20, step)
    add = Event(8, "aten::_foreach_add_", 610, 650, 40, optimizer, (Kernel(20),))
    item = Event(9, "aten::item", 660, 662, 2, optimizer)
    copied = Event(10, "Memcpy HtoD (Pageable -> Device)", 700, 725)
    return [step, linear, addmm, copy, node, mm, norm, optimizer, add, item, copied]


class TestProfile:
    KINDS: ClassVar = {
        "addmm": "gemm",
        "mm": "gemm",
        "_foreach_add_": "optimizer",
        "_foreach_norm": "reduction",
    }

    @pytest.mark.parametrize("is_cuda", [False, True])
    def test_operators_by_kind_and_stage(self, is_cuda: bool) -> None:
        pytest.importorskip("torch")
        from joulecast.measure.profile import profile_of_events

        profile = profile_of_events(scripted_events(), self.KINDS, is_cuda=is_cuda, n_steps=1)
        times = {(o.operator, o.kind, o.stage): (o.time_s, o.n_calls) for o in profile.operators}
        us = pytest.approx
        expected = {
            # the copy is the product's; what surrounds it is no operator of a known kind
            ("addmm", "gemm", Stage.FORWARD): (us(54e-6 if is_cuda else 85e-6), 1),
            ("mm", "gemm", Stage.BACKWARD): (us(100e-6 if is_cuda else 150e-6), 1),
            # clipping comes after the last gradient, outside of the optimizer's own call
            ("_foreach_norm", "optimizer", Stage.OPTIMIZER): (us(6e-6 if is_cuda else 10e-6), 1),
            ("_foreach_add_", "optimizer", Stage.OPTIMIZER): (us(20e-6 if is_cuda else 40e-6), 1),
        }
        if not is_cuda:
            expected |= {
                ("linear", "other", Stage.FORWARD): (us(5e-6), 1),
                ("item", "other", Stage.OPTIMIZER): (us(2e-6), 1),
            }
        assert times == expected
        assert profile.step_time_s == pytest.approx(1e-3)
        assert profile.input_time_s == pytest.approx(25e-6)

    def test_of_a_real_step(self) -> None:
        torch = pytest.importorskip("torch")
        from joulecast.measure.profile import profile_step

        layer = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        inputs = torch.ones(8, 64)

        def run() -> None:
            optimizer.zero_grad()
            layer(inputs).sum().backward()
            optimizer.step()

        profile = profile_step(run, lambda: None, {"addmm": "gemm", "mm": "gemm"}, is_cuda=False)
        calls = {(o.operator, o.stage): o.n_calls for o in profile.operators if o.kind == "gemm"}
        assert calls == {("addmm", Stage.FORWARD): 1, ("mm", Stage.BACKWARD): 1}
        assert sum(o.time_s for o in profile.operators) < profile.step_time_s
        assert {o.stage for o in profile.operators} == set(Stage)


def test_inside_says_whether_the_interval_holds_the_value(make_prediction: MakePrediction) -> None:
    q = Quantity(value=0.1, low=0.08, high=0.12, origin=make_prediction().step_time_s.origin)
    for value, inside in ((0.08, True), (0.121, False), (None, None)):
        measured = {"step_time_s": MeasuredValue(value=value, reason="" if value else "no clock")}
        c = compare("r1", make_prediction(step_time_s=q), measured)
        assert c.quantities[0].is_inside is inside
