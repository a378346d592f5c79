"""The fit of memory recovers the fragmentation that made its data."""

import numpy as np
import pytest

from joulecast.calibrate.memory import MemoryRecord, fit_memory, log_ratios, memory_residuals
from joulecast.model.memory import memory_use
from joulecast.model.parameters import initial_parameters
from joulecast.workload.table import OpTable, ParameterCount, Workload

VALUES = dict(initial_parameters().values)


def load(gigabytes, empty_table):
    return Workload(
        table=empty_table,
        batch_size=1,
        seq_len=0,
        precision="fp32",
        mode="train",
        parameters=ParameterCount(
            n_parameters=1, n_trainable=1, n_tensors=1, parameter_bytes=4, trainable_bytes=4, buffer_bytes=0
        ),
        gradient_bytes=4.0,
        persistent_bytes=0.0,
        peak_live_bytes=gigabytes * 1e9,
    )


@pytest.fixture
def records(toy_trace):
    table: OpTable = toy_trace.table(1)
    truth = {**VALUES, "memory.fragmentation": 0.12}
    made = []
    for i, gigabytes in enumerate(np.linspace(1, 40, 40)):
        workload = load(gigabytes, table)
        peak = memory_use(workload, truth).process_bytes
        made.append(
            MemoryRecord(
                run_id=f"r{i}",
                source=f"s{i % 2}",
                model="m",
                gpu="a100-sxm4-80gb",
                workload=workload,
                data_parallel=False,
                peak_bytes=peak,
            )
        )
    return made


def test_the_fit_recovers_the_fragmentation(records):
    found = fit_memory(records, VALUES)

    assert found["memory.fragmentation"] == pytest.approx(0.12, abs=0.003)
    assert np.abs(log_ratios(records, {**VALUES, **found})).max() < 0.005


def test_residuals_of_an_exact_fit_are_small_in_and_out_of_sample(records):
    fitted = {**VALUES, **fit_memory(records, VALUES)}

    found = memory_residuals(records, fitted)

    assert found["process.seen"].n_rows == found["process.unseen"].n_rows == 40
    assert abs(found["process.unseen"].high) < 0.01


def test_too_few_records_change_nothing(records):
    assert fit_memory(records[:5], VALUES) == {}
    assert memory_residuals(records[:5], VALUES) == {}
