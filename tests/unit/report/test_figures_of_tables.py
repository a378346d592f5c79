"""Figures say what the table says: their numbers are its numbers, and their documents can be drawn."""

import json
from itertools import pairwise

import pytest

from joulecast.explore.study import StudyPlan, study
from joulecast.explore.sweep import sweep
from joulecast.report.slices import columns_of
from joulecast.report.table_figures import model_labels, table_figures

pytest.importorskip("altair")

from joulecast.report.charts import (
    Figure,
    Panel,
    curve_with_measured,
    error_by_group,
    file_spec,
    predicted_against_measured,
    round_values,
    save_png,
    save_svg,
)

GPU = "a100-sxm4-40gb"


@pytest.fixture(scope="module")
def found():
    plan = StudyPlan(
        models=("resnet50", "distilbert"), gpu=GPU, n_gpus=(1, 2, 4), precisions=("fp32", "bf16")
    )
    return study(plan)


@pytest.fixture(scope="module")
def figures(found):
    return {figure.name: figure for figure in table_figures(columns_of(found.table()), found.labels)}


def records(chart):
    """Return all records that a chart's document holds."""
    document = chart.to_dict()
    layers = [document, *document.get("layer", [])]
    return [
        record
        for layer in layers
        for record in layer.get("data", {}).get("values", [])
        if isinstance(record, dict) and "shown" in record
    ] + [record for values in document.get("datasets", {}).values() for record in values if "shown" in record]


def test_a_study_has_every_figure(figures):
    assert set(figures) == {
        "precision",
        "batch-samples-per-s",
        "batch-samples-per-j",
        "power-limit-energy-per-sample-j",
        "power-limit-step-time-s",
        "scaling",
        "scaling-curves",
        "front",
    }


def test_one_configuration_has_none():
    one = sweep({"model": "distilbert", "gpu": GPU, "precision": "bf16"})
    assert table_figures(columns_of(one)) == []


def test_gains_are_the_ratios_of_the_table(found, figures):
    (model,) = (name for name, label in found.labels.items() if label == "resnet50")
    before, after = (found.point(model, precision) for precision in ("fp32", "bf16"))

    (bar, *_) = [r for r in records(figures["precision"].panels[0].chart) if r["label"] == "resnet50"]

    assert bar["x"] == pytest.approx(before.step_time_s.value / after.step_time_s.value)
    assert bar["low"] < bar["x"] < bar["high"]


def test_the_ring_marks_the_least_energy(found, figures):
    for panel in figures["power-limit-energy-per-sample-j"].panels:
        (model,) = (name for name, label in found.labels.items() if label == panel.title)
        for precision in ("fp32", "bf16"):
            curve = found.curve(found.limit_curve, model, precision)
            least = min(curve, key=lambda p: p.energy_per_sample_j.value)
            ringed = {
                r["x"] for r in records(panel.chart) if r.get("mark") == "best" and r["series"] == precision
            }
            assert ringed == {least.power_limit_w}


def test_captions_name_what_is_held(figures):
    assert "power limit 400 W" in figures["precision"].caption
    assert "GPUs 1" in figures["batch-samples-per-s"].caption
    assert "GPUs" not in figures["scaling"].caption.rpartition("Held:")[2]


def test_every_number_that_is_pointed_at_has_its_interval(figures):
    for name, figure in figures.items():
        for panel in figure.panels:
            for record in records(panel.chart):
                assert ("low" in record) is (name != "front")


@pytest.mark.parametrize("name", ["precision", "batch-samples-per-s", "scaling-curves", "front"])
def test_figures_are_drawn_as_files(figures, name, tmp_path):
    svg, png = save_svg(figures[name], tmp_path), save_png(figures[name], tmp_path)

    text = svg.read_text()
    assert text.startswith("<svg")
    for panel in figures[name].panels:
        assert panel.title in text
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_file_names_colours_and_a_width(figures):
    text = json.dumps(file_spec(figures["precision"]))
    assert "var(--" not in text
    assert '"width"' in text


def test_a_figure_needs_a_panel():
    with pytest.raises(ValueError, match="has no panel"):
        Figure(name="x", title="", caption="", panels=())


def test_the_front_is_marked_and_joined(figures):
    for panel in figures["front"].panels:
        marks = [r for r in records(panel.chart) if r["on_front"]]
        line = sorted({(r["x"], r["y"]) for r in marks})
        assert line
        assert all(t < t2 and e > e2 for (t, e), (t2, e2) in pairwise(line))
        for other in records(panel.chart):
            assert any(r["x"] <= other["x"] and r["y"] <= other["y"] for r in marks)


class TestLabels:
    def test_leave_out_family_and_task(self):
        assert model_labels(["torchvision/resnet50", "hf/bert-base-uncased#masked-lm"]) == {
            "torchvision/resnet50": "resnet50",
            "hf/bert-base-uncased#masked-lm": "bert-base-uncased",
        }

    def test_stay_whole_where_two_would_be_one(self):
        names = ["torchvision/resnet50", "timm/resnet50"]
        assert model_labels(names) == {name: name for name in names}


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0.5, 2000.0, [1.0, 10.0, 100.0, 1000.0]),
        (3.0, 40.0, [5.0, 10.0, 20.0]),
        (0.09, 11, [0.1, 0.3, 1, 3, 10]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_round(low, high, values):
    assert round_values(low, high) == pytest.approx(values)


class TestAgainstAMeter:
    rows = (
        {"x": 1.0, "y": 1.1, "series": "a", "shown": "one"},
        {"x": 100.0, "y": 80.0, "series": "b", "shown": "two"},
    )

    def drawn(self, chart, tmp_path):
        figure = Figure(name="f", title="t", caption="c", panels=(Panel(title="", chart=chart),))
        return save_svg(figure, tmp_path).read_text()

    def test_the_scatter_has_one_scale_for_both(self, tmp_path):
        chart = predicted_against_measured(self.rows, unit="ms", series=("a", "b"))
        document = chart.to_dict()
        domains = {
            tuple(layer["encoding"][axis]["scale"]["domain"]) for layer in document["layer"] for axis in "xy"
        }
        assert domains == {(1.0 / 1.2, 120.0)}
        assert "Measured (ms)" in self.drawn(chart, tmp_path)

    def test_errors_have_a_line_at_none(self, tmp_path):
        rows = [{"label": "t4", "x": 5.0, "low": -3.0, "high": 9.0, "shown": "s"}]
        assert "t4" in self.drawn(error_by_group(rows, x_title="Error (%)", labels=["t4"]), tmp_path)

    def test_measured_points_lie_over_the_curve(self, tmp_path):
        line = [
            {"x": x, "y": 2.0 * x, "low": x, "high": 3.0 * x, "series": "a", "shown": "s"} for x in (1.0, 2.0)
        ]
        chart = curve_with_measured(
            line, [{"x": 1.5, "y": 2.9, "series": "a", "shown": "m"}], x_title="x", y_title="y", series=("a",)
        )
        assert "y" in self.drawn(chart, tmp_path)
