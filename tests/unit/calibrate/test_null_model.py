from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.null_model import (
    LIMIT_SHARE,
    OPERATOR_ROOFLINE_SHARE,
    STEP_PEAK_SHARE,
    null_latency_s,
    null_memory_bytes,
    null_power_w,
    null_step_time_s,
)
from joulecast.calibrate.op_power import op_power_records
from joulecast.hardware.catalogue import load_gpu
from joulecast.scenario import Scenario, settle_step, workload_of


def test_time_and_power_by_hand():
    assert null_step_time_s(2e12, 1e14) == pytest.approx(0.02 / STEP_PEAK_SHARE)
    assert np.isnan(null_step_time_s(1.0, 0.0))
    assert null_power_w(400.0) == pytest.approx(400.0 * LIMIT_SHARE)


def test_memory_has_no_activations():
    load = workload_of(settle_step(Scenario(model="bert-base", gpu="t4", batch_size=8)))
    twice = workload_of(settle_step(Scenario(model="bert-base", gpu="t4", batch_size=16)))
    assert null_memory_bytes(load) == null_memory_bytes(twice)
    assert null_memory_bytes(load) == pytest.approx(4 * 4 * load.parameters.n_trainable, rel=0.02)
    forward = replace(load, mode="forward")
    assert null_memory_bytes(forward) == load.persistent_bytes


def test_an_operator_is_its_roofline():
    columns = {"op": ["mm", "abs"], "gpu": ["a100-sxm4-40gb"] * 2, "dtype": ["bf16"] * 2}
    columns["case"] = ["M=4096;N=4096;K=4096", "Melements=1024"]
    records = op_power_records(columns, np.ones(2), np.ones(2)).records
    gpu = load_gpu("a100-sxm4-40gb")
    product_s, stream_s = null_latency_s(records.table, "bf16-pure", gpu).tolist()
    assert product_s == pytest.approx(2 * 4096**3 / 312e12 / OPERATOR_ROOFLINE_SHARE, rel=0.01)
    assert stream_s == pytest.approx(4 * 2**30 / 1555e9 / OPERATOR_ROOFLINE_SHARE, rel=0.01)
