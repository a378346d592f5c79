from dataclasses import replace

import pytest

from joulecast.errors import ParameterSetError
from joulecast.model.definitions import PARAMETERS
from joulecast.model.intervals import QUANTITIES, IntervalModel, Spread, guessed_intervals
from joulecast.model.parameters import (
    FORMAT_VERSION,
    ResidualQuantiles,
    Scalars,
    StageRecord,
    definition,
    initial_parameters,
    load_parameters,
    save_parameters,
)


def test_the_shipped_set_loads_and_says_where_it_comes_from():
    shipped = load_parameters()
    assert set(shipped.values) == {p.name for p in PARAMETERS}
    assert shipped.provenance
    for quantity in ("time", "power", "energy", "memory"):
        for coverage in ("seen", "unseen"):
            residual = shipped.residuals[f"{quantity}.{coverage}"]
            assert residual.low <= residual.median <= residual.high


def test_a_set_survives_the_file(tmp_path):
    saved = replace(
        initial_parameters().with_values({"launch.kernel_s": 3e-6}),
        provenance={"data": 'a "quoted"\nline', "seed": "0"},
        residuals={"time.seen": ResidualQuantiles(low=-0.1, median=0.01, high=0.2, n_rows=7)},
        intervals=IntervalModel(
            spreads={
                **guessed_intervals().spreads,
                "time": Spread(intercept=-2.0, weights={"host": 0.5}, low=-1.5, high=1.7, n_rows=99),
            }
        ),
        covered_gpus=("t4", "l4"),
        covered_precisions=("fp32",),
        covered_architectures=("turing-pro",),
        covered_classes=("attention",),
        covered_ranges={"n_gpus": (1.0, 8.0)},
        model_scalars={"hf/gpt2#causal-lm": Scalars(time=1.1, power=0.9, n_rows=3)},
        precision_scalars={"bf16": Scalars(time=0.95, power=1.0, n_rows=4)},
        stages=(
            StageRecord(
                name="host",
                parameters=("host.step_s",),
                n_rows=9,
                error_before=0.2,
                error_after=0.1,
                held_out_before=0.2,
                held_out_after=0.15,
                kept=True,
                reason="held-out error falls",
            ),
        ),
    )
    save_parameters(saved, tmp_path / "set.toml")
    assert load_parameters(tmp_path / "set.toml") == saved
    assert not list(tmp_path.glob("*.partial"))


def test_names_are_unique_and_values_lie_within_bounds_with_units():
    assert len({p.name for p in PARAMETERS}) == len(PARAMETERS)
    for p in PARAMETERS:
        assert p.low <= p.value <= p.high, p.name
        assert p.unit, p.name
        assert p.meaning, p.name


def test_coverage_needs_gpu_and_precision():
    covered = replace(initial_parameters(), covered_gpus=("t4",), covered_precisions=("fp32",))
    assert covered.covers("t4", "fp32")
    assert not covered.covers("t4", "bf16")
    assert not covered.covers("l4", "fp32")


HEADER = f"""format_version = {FORMAT_VERSION}
[coverage]
gpus=[]
precisions=[]
architectures=[]
classes=[]
[provenance]
[residuals]
[intervals]
""" + "\n".join(
    f"{name} = {{ intercept = -1.0, low = -1.0, high = 1.0, n_rows = 0, weights = {{}} }}"
    for name in QUANTITIES
)
HEADER += "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "format version None"),
        ("format_version = 99", f"format version 99, this joulecast reads {FORMAT_VERSION}"),
        ("format_version = 1", r"format version 1, .* reads 2: fit it again \(since 1, intervals follow"),
        (
            HEADER.replace("weights = {}", "weights = { luck = 1.0 }") + "[parameters]\n",
            "unknown features of the intervals: luck",
        ),
        (HEADER.replace("process = {", "swap = {") + "[parameters]\n", "lacks intervals of process"),
        (HEADER + "[model_scalars]\nx = { time = 0.0, power = 1.0, n_rows = 1 }\n[parameters]\n", "above 0"),
        ("format_version = [", "not a parameter set"),
        (f"format_version = {FORMAT_VERSION}", "not a parameter set"),
        (
            HEADER + '[parameters]\n"launch.kernel_s" = { value = 1e-6 }',
            "lacks",
        ),
        (
            HEADER + '[parameters]\n"launch.kernel_s" = { value = "fast" }',
            "launch.kernel_s is not a number",
        ),
        (
            HEADER + '[parameters]\n"launch.kernel_s" = { value = 1.0 }',
            "outside",
        ),
        (
            HEADER + '[parameters]\n"no.such" = { value = 1.0 }',
            "unknown parameter 'no.such'",
        ),
    ],
)
def test_a_corrupt_set_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "set.toml"
    path.write_text(text)
    with pytest.raises(ParameterSetError, match=message) as caught:
        load_parameters(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ParameterSetError, match=r"cannot read .*absent\.toml"):
        load_parameters(tmp_path / "absent.toml")


def test_an_unknown_definition_is_refused():
    assert definition("launch.kernel_s").unit == "s"
    with pytest.raises(ParameterSetError, match="unknown parameter"):
        definition("no.such")
