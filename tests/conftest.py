"""Fixtures that several folders of tests share."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from joulecast.results import (
    MEASURED_QUANTITIES,
    MeasuredQuantity,
    Measurement,
    MemoryVerdict,
    OpGroup,
    Origin,
    Prediction,
    Quantity,
    RunStatus,
)
from joulecast.workload.table import (
    FIXED_COLUMNS,
    LABEL_COLUMNS,
    MONOMIALS,
    SCALING_COLUMNS,
    OpTable,
    OptimizerTrace,
    ParameterCount,
    StepTrace,
)

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache of traces out of the tests; one folder serves the whole session."""
    if "JOULECAST_TEST_CACHE" not in os.environ:
        os.environ["JOULECAST_TEST_CACHE"] = str(tmp_path_factory.mktemp("traces"))
    monkeypatch.setenv("JOULECAST_CACHE", os.environ["JOULECAST_TEST_CACHE"])


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of public measurements, or skip."""
    folder = Path(os.environ.get("JOULECAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "runs.csv").is_file():
        pytest.skip(f"public measurements are not at {folder}: set JOULECAST_DATA")
    return folder


def quantity(value: float, width: float = 0.1, origin: Origin = Origin.CALIBRATED) -> Quantity:
    return Quantity(value=value, low=value * (1 - width), high=value * (1 + width), origin=origin)


@pytest.fixture
def make_prediction() -> Callable[..., Prediction]:
    """Return a maker of predictions: 64 samples in 0.1 s at 300 W on two cards, unless told otherwise."""

    def make(**changes: Any) -> Prediction:
        group = OpGroup(
            kind="gemm",
            phase="forward",
            time_s=0.06,
            energy_j=18.0,
            time_share_frac=1.0,
            energy_share_frac=1.0,
            n_kernels=12,
            flop=1e12,
            bytes_moved=1e9,
            bound_by="compute",
        )
        fields: dict[str, Any] = {
            "model": "hf/bert-base-uncased#sequence-classification",
            "gpu": "a100-sxm4-40gb",
            "gpu_name": "NVIDIA A100-SXM4-40GB",
            "n_gpus": 2,
            "parallel": "ddp",
            "precision": "bf16",
            "mode": "train",
            "batch_per_gpu": 32,
            "global_batch": 64,
            "seq_len": 128,
            "image_size": None,
            "optimizer": "adamw",
            "memory_format": "contiguous",
            "attention": "sdpa",
            "checkpointing": False,
            "accumulate": 1,
            "clip": False,
            "power_limit_w": 400.0,
            "locked_sm_clock_hz": None,
            "n_sms": 108,
            "step_time_s": quantity(0.1),
            "samples_per_s": quantity(640.0),
            "tokens_per_s": quantity(81920.0),
            "mean_power_w": quantity(300.0),
            "energy_per_step_j": quantity(60.0),
            "energy_per_sample_j": quantity(60 / 64),
            "samples_per_j": quantity(64 / 60),
            "mfu": quantity(0.4),
            "mfu_peak_flop_per_s": 312e12,
            "mfu_paths": {"bf16_tensor": 1.0},
            "model_flop": 1e12,
            "allocated_bytes": quantity(8e9),
            "reserved_bytes": quantity(9e9),
            "process_bytes": quantity(10e9),
            "capacity_bytes": 40e9,
            "memory_verdict": MemoryVerdict.FITS,
            "sm_clock_hz": quantity(1.4e9),
            "bound_by": "compute",
            "time_share_by_bound": {"compute": 0.7, "memory": 0.3},
            "coverage": quantity(1.0, width=0.0),
            "op_groups": (group,),
        }
        return Prediction(**{**fields, **changes})

    return make


@pytest.fixture
def make_run() -> Callable[..., Measurement]:
    """Return a maker of stored runs: ResNet-50 on one card, 0.25 s a step, nothing else measured."""

    def make(run_id: str = "r1", **changes: Any) -> Measurement:
        step_time = MeasuredQuantity(value=0.25, low=0.24, high=0.26, method="clock", scope="step")
        fields: dict[str, Any] = {
            **dict.fromkeys(MEASURED_QUANTITIES, MeasuredQuantity.absent("no sensor")),
            "run_id": run_id,
            "started_at": "2026-01-31T12:00:00+00:00",
            "duration_s": 12.5,
            "status": RunStatus.COMPLETE,
            "model": "torchvision/resnet50",
            "gpu": "a100-sxm4-40gb",
            "n_gpus": 1,
            "precision": "bf16",
            "batch_per_gpu": 32.0,
            "step_time_s": step_time,
        }
        return Measurement(**(fields | changes))

    return make


@pytest.fixture
def toy_trace() -> StepTrace:
    """Return one layer of 256 features: a product each way, and a kernel without a formula.

    Per sample: forward 2 x 256 x 256 FLOP, backward twice that.
    """
    n_features = 256
    rows = (
        ("gemm", "forward", "fp32", "aten.mm.default", 1.0),
        ("gemm", "dgrad", "fp32", "aten.mm.default", 1.0),
        ("gemm", "wgrad", "fp32", "aten.mm.default", 1.0),
        ("other", "forward", "fp32", "my.op.default", 0.0),
    )
    labels = {
        name: np.array(
            [
                dict(zip(("kind", "phase", "dtype", "operator"), row, strict=False)).get(name, "fc")
                for row in rows
            ]
        )
        for name in LABEL_COLUMNS
    }
    fixed = {name: np.ones(len(rows)) for name in FIXED_COLUMNS}
    for name in ("causal", "masked", "channels_last", "group_width"):
        fixed[name] = np.zeros(len(rows))
    fixed["counted"] = np.array([row[-1] for row in rows])
    polynomials = np.zeros((len(rows), len(SCALING_COLUMNS), len(MONOMIALS)))
    column = {name: i for i, name in enumerate(SCALING_COLUMNS)}
    polynomials[:, column["batch"], 0] = 1
    polynomials[:, column["m"], 1] = 1
    polynomials[:3, column["n"], 0] = polynomials[:3, column["k"], 0] = n_features
    polynomials[:3, column["flop"], 1] = polynomials[:3, column["model_flop"], 1] = 2 * n_features**2
    polynomials[:, column["read_bytes"], 1] = polynomials[:, column["written_bytes"], 1] = 4 * n_features
    live = np.zeros((1, len(MONOMIALS)))
    live[0, 1] = 8 * n_features
    parameter_bytes = 4 * n_features**2
    return StepTrace(
        labels=labels,
        fixed=fixed,
        polynomials=polynomials,
        live_bytes=live,
        parameters=ParameterCount(
            n_parameters=n_features**2,
            n_trainable=n_features**2,
            n_tensors=1,
            parameter_bytes=parameter_bytes,
            trainable_bytes=parameter_bytes,
            buffer_bytes=0,
        ),
        optimizers={name: _optimizer_step(name, parameter_bytes) for name in ("sgd-momentum", "adamw")},
        tokens_per_sample_is_seq_len=False,
        seq_len_range=(0.0, 0.0),
    )


def _optimizer_step(name: str, parameter_bytes: float) -> OptimizerTrace:
    n_states = {"sgd-momentum": 1, "adamw": 2}[name]
    values: dict[str, float] = dict.fromkeys((*SCALING_COLUMNS, *FIXED_COLUMNS), 0.0)
    values |= {"batch": 1, "m": parameter_bytes / 4, "n": 1, "n_calls": 1, "n_kernels": 1, "counted": 1}
    values |= {
        "read_bytes": (2 + n_states) * parameter_bytes,
        "written_bytes": (1 + n_states) * parameter_bytes,
    }
    labels = {
        "kind": "optimizer",
        "phase": "optimizer",
        "dtype": "fp32",
        "operator": f"{name}_step",
        "module": "",
    }
    return OptimizerTrace(
        table=OpTable(
            **{key: np.array([text]) for key, text in labels.items()},
            **{key: np.array([float(value)]) for key, value in values.items()},
        ),
        state_bytes=n_states * parameter_bytes,
        temporary_bytes=0.0,
    )
