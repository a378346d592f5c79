"""A fit to a device's own operators finds the parameters that made them."""

import json

import numpy as np
import pytest

from joulecast.calibrate.bench_fit import BENCH_STAGES, fit_bench
from joulecast.cli.main import run
from joulecast.errors import RunsError
from joulecast.hardware.catalogue import load_gpu
from joulecast.measure.bench.cases import all_cases
from joulecast.measure.bench.choice import expected_latency_s
from joulecast.measure.bench.records import OperatorFile
from joulecast.model.parameters import definition, load_parameters

#: A processor's: far from what any GPU shows.
TRUTH = {
    "product.vector.efficiency": 0.6,
    "convolution.vector.forward": 0.5,
    "convolution.vector.dgrad": 0.45,
    "convolution.vector.wgrad": 0.3,
    "attention.vector": 0.8,
    "bandwidth.elementwise": 0.3,
    "bandwidth.pool_forward": 0.05,
    "bandwidth.layer_norm_backward": 0.2,
    "bandwidth.optimizer": 0.25,
}


def written(path, values, gpu="cpu", every=3):
    """Write what a device of these parameters would show."""
    cases = [
        case for case in all_cases(("fp32",), channels_last=False) if case.phase not in ("launch", "dispatch")
    ]
    latency_s = expected_latency_s(cases, load_gpu(gpu), values)
    file = OperatorFile(path)
    for case, seconds in list(zip(cases, latency_s.tolist(), strict=True))[::every]:
        row = {name: getattr(case, name) for name in ("op", "phase", "dtype")}
        file.rows.append(
            {**row, **dict(case.sizes), "gpu": gpu, "latency_s": seconds, "source": "joulecast bench"}
        )
    file.rows.append(
        {
            "op": "launch",
            "phase": "launch",
            "dtype": "fp32",
            "gpu": gpu,
            "latency_s": 3e-6,
            "source": "joulecast bench",
        }
    )
    file.save()


def test_a_processor_s_parameters_are_found(tmp_path):
    start = load_parameters()
    truth = {**start.values, **TRUTH, "launch.kernel_s": 3e-6}
    written(tmp_path / "ops.parquet", truth)
    fitted = fit_bench(tmp_path / "ops.parquet", start)
    for stage in fitted.stages:
        assert stage.error_after < 0.1 < stage.error_before, stage.name
    found = fitted.parameters.values
    assert found["launch.kernel_s"] == pytest.approx(3e-6)
    for name in ("convolution.vector.wgrad", "bandwidth.pool_forward", "bandwidth.layer_norm_backward"):
        assert found[name] == pytest.approx(TRUTH[name], rel=0.3), name
    assert fitted.parameters.covered_gpus == ("cpu",)
    assert found["memory.workspace_bytes"] == 0.0


def test_what_no_record_determines_stays(tmp_path):
    start = load_parameters()
    written(tmp_path / "ops.parquet", start.values)
    found = fit_bench(tmp_path / "ops.parquet", start).parameters.values
    for name in (
        "product.tensor16.efficiency",
        "convolution.tf32.forward",
        "comm.link_ratio",
        "power.j_per_byte",
    ):
        assert found[name] == start.values[name], name


def test_a_file_of_two_devices_is_refused(tmp_path):
    start = load_parameters()
    written(tmp_path / "ops.parquet", start.values, every=200)
    written(tmp_path / "ops.parquet", start.values, gpu="t4", every=200)
    with pytest.raises(RunsError, match="one device"):
        fit_bench(tmp_path / "ops.parquet", start)


def test_stages_name_parameters_that_exist_and_no_parameter_twice():
    names = [name for _, parameters in BENCH_STAGES.values() for name in parameters]
    assert len(set(names)) == len(names)
    assert all(definition(name).low < definition(name).high for name in names)
    assert np.all([name.split(".")[0] != "power" for name in names])


def test_the_command_writes_a_set_for_the_device(tmp_path, capsys):
    start = load_parameters()
    written(tmp_path / "ops.parquet", {**start.values, **TRUTH})
    out = tmp_path / "cpu.toml"
    asked = ["calibrate", "--preset", "bench", "--ops", str(tmp_path / "ops.parquet"), "--out", str(out)]
    assert run([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["gpu"]) == ("joulecast/bench-fit/1", "cpu")
    assert all(stage["error_after"] <= stage["error_before"] for stage in document["stages"])
    assert load_parameters(out).covered_gpus == ("cpu",)
    assert run([*asked, "--only", "host"]) == 2
    assert "--preset bench takes --ops alone" in capsys.readouterr().err
