import json
from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.explain import elasticities, explain, mix
from joulecast.model.definitions import PARAMETERS
from joulecast.model.parameters import Scalars, StageRecord, load_parameters
from joulecast.report.calibrations import explanation_page
from joulecast.report.machine import json_text

SHIPPED = load_parameters()


@pytest.fixture(scope="module")
def batch():
    return mix(("a100-sxm4-80gb",))


def test_a_step_of_one_kernel_kind_scales_with_its_parameter(batch):
    time, power = elasticities("comm.latency_s", SHIPPED, batch)
    alone = batch.ring.n_gpus == 1
    assert np.all(time[alone] == 0)
    assert np.all(power[alone] == 0)
    time, _ = elasticities("host.data_parallel_ratio", SHIPPED, batch)
    assert np.all(time[alone] == 0)
    assert 0 <= time.min() <= time.max() <= 1 + 1e-6


def test_slower_hosts_are_slower_and_hungrier_products_hungrier(batch):
    slower, _ = elasticities("host.backward_kernel_s", SHIPPED, batch)
    assert slower.min() >= 0
    assert slower.max() > 0
    _, hungrier = elasticities("power.tensor16_j_per_flop", SHIPPED, batch)
    assert hungrier.max() > 0.05


def test_a_parameter_of_zero_has_no_elasticity(batch):
    nothing = SHIPPED.with_values({"attention.score_cycles": 0.0})
    time, power = elasticities("attention.score_cycles", nothing, batch)
    assert not time.any()
    assert not power.any()


@pytest.fixture(scope="module")
def explanation():
    return explain(
        replace(
            SHIPPED.with_values({"bandwidth.copy": 0.95}),
            model_scalars={"hf/gpt2": Scalars(time=1.1, power=0.9, n_rows=3)},
            stages=(StageRecord(name="host", parameters=("host.step_s",), n_rows=4),),
        )
    )


def test_every_parameter_is_explained_with_unit_bounds_and_meaning(explanation):
    assert [line.name for line in explanation.parameters] == [p.name for p in PARAMETERS]
    by_name = {line.name: line for line in explanation.parameters}
    assert by_name["bandwidth.copy"].at_bound
    assert not by_name["host.forward_kernel_s"].at_bound
    for line in explanation.parameters:
        assert line.largest >= max(abs(line.time_elasticity), abs(line.power_elasticity)) - 1e-12


def test_the_document_is_json_without_nan(explanation):
    document = json.loads(json_text(explanation.to_dict()), parse_constant=pytest.fail)
    assert document["schema"] == "joulecast/parameters/1"
    assert document["stages"][0]["held_out_after"] is None
    assert document["scalars"] == {"model hf/gpt2: time": 1.1, "model hf/gpt2: power": 0.9}


def test_the_page_names_bounds_scalars_stages_and_the_mix(explanation):
    page = explanation_page(explanation)
    text = "\n".join(item for item in page if isinstance(item, str))
    assert "bandwidth.copy" in text.split("at a bound: ")[1]
    assert "resnet50 fp32 batch 64 on 1" in text
    titles = [item.title for item in page if not isinstance(item, str)]
    assert {"provenance", "coverage", "stages", "scalars", "parameters"} <= set(titles)
