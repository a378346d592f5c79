import csv

import numpy as np
import pytest

from joulecast.calibrate import as_published
from joulecast.calibrate.as_published import fit_as_published, in_sample_errors
from joulecast.model.parameters import load_parameters
from joulecast.prediction import predict

START = load_parameters()
TRUTH = START.with_values(
    {
        "product.tensor16.efficiency": 0.8 * START.values["product.tensor16.efficiency"],
        "power.j_per_byte": 1.5 * START.values["power.j_per_byte"],
    }
)


def test_errors_by_hand():
    time, power = np.log([1.1, 1.0]), np.log([0.8, np.nan])
    found = in_sample_errors(time, power)
    assert found["time"] == pytest.approx((1 - 1 / 1.1) / 2)
    assert found["power"] == pytest.approx(0.25)
    assert found["energy"] == pytest.approx(abs(1 / 0.88 - 1))
    assert found["overall"] == pytest.approx((2 * found["time"] + 0.25) / 3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "gpu", "precision", "batch_per_gpu", "step_time_s", "mean_power_w"])
        for model, slow in (("distilbert", 1.0), ("albert", 1.3)):  # one model that the base cannot explain
            for batch_size in (8, 32, 64):
                (p,) = predict(
                    model, gpu="a100-sxm4-40gb", precision="bf16", batch_size=batch_size, parameters=TRUTH
                )
                cells = [p.step_time_s.value * slow, p.mean_power_w.value]
                writer.writerow([model, "a100-sxm4-40gb", "bf16", batch_size, *cells])
    return path


def test_each_stage_of_the_papers_method_lowers_the_error_in_sample(runs, monkeypatch):
    monkeypatch.setattr(as_published, "_GENERATIONS", 3)
    lines = []
    found = fit_as_published(runs, START, seed=1, progress=lines.append)
    names = ["base model", "model-specific scalars", "precision-specific terms"]
    assert [stage.name for stage in found.parameters.stages] == names
    assert [line.split(":")[0] for line in lines] == names
    base, scalars, _ = found.parameters.stages
    assert base.error_after < base.error_before
    assert scalars.error_after < scalars.error_before
    factors = {name.split("#")[0]: s.time for name, s in found.parameters.model_scalars.items()}
    assert factors["hf/albert-base-v2"] > factors["hf/distilbert-base-uncased"]
    assert set(found.parameters.precision_scalars) == {"bf16"}
    assert found.errors["time"] < 0.05
    assert found.parameters.provenance["data"] == "6 runs, in sample"
    (albert,) = predict(
        "albert", gpu="a100-sxm4-40gb", precision="bf16", batch_size=32, parameters=found.parameters
    )
    assert sum("scalar of" in flag for flag in albert.flags) == 2


def test_the_same_seed_gives_the_same_set(runs, monkeypatch):
    monkeypatch.setattr(as_published, "_GENERATIONS", 1)
    one, other = (fit_as_published(runs, START, seed=5) for _ in range(2))
    assert one.parameters == other.parameters
