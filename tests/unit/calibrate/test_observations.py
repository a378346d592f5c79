import numpy as np
import pytest

from joulecast.calibrate.observations import GROUPS, MEMORY_GROUP, STAGE_NAMES, planned_stages
from joulecast.calibrate.ops import operator_records
from joulecast.calibrate.own import OwnOptions, calibrate_own
from joulecast.errors import RunsError
from joulecast.hardware.catalogue import load_gpu
from joulecast.model.definitions import PARAMETERS
from joulecast.model.parameters import load_parameters


def test_every_candidate_is_a_parameter_of_the_model_and_of_one_group():
    candidates = [name for _, names in (*GROUPS.values(), MEMORY_GROUP) for name in names]
    assert len(set(candidates)) == len(candidates)
    assert set(candidates) <= {p.name for p in PARAMETERS}
    assert set(GROUPS) < set(STAGE_NAMES)


def test_nothing_measured_is_an_error_that_names_the_stages():
    with pytest.raises(RunsError, match="hold nothing for the stages memory, power"):
        planned_stages((), (), None, ("power", "memory"), 0)


def products(gpu, latency_of):
    """Return square products on a card, with latencies by a function of the work."""
    edges = np.array([2048.0, 3072.0, 4096.0, 6144.0, 8192.0, 12288.0])
    n_rows = len(edges)
    nothing = {
        name: np.full(n_rows, np.nan)
        for name in "h c_in c_out kernel size stride pad seq heads kv_heads head_dim mean_power_w".split()
    }
    return {
        **nothing,
        "op": np.full(n_rows, "linear"),
        "phase": np.full(n_rows, "forward"),
        "gpu": np.full(n_rows, gpu),
        "dtype": np.full(n_rows, "bf16"),
        "source": np.full(n_rows, "own"),
        "b": np.ones(n_rows),
        "m": edges,
        "n": edges,
        "k": edges,
        "latency_s": latency_of(2 * edges**3),
        "power_limit_w": np.full(n_rows, load_gpu(gpu).power_limit_w),
    }


def test_operators_alone_calibrate_and_cover_their_card(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    start = load_parameters()
    path = tmp_path / "ops.parquet"
    columns = products("a100-sxm4-80gb", lambda flop: flop / (0.45 * 312e12))  # slower than the start says
    parquet.write_table(pa.table(columns), path)
    own = calibrate_own(None, start, OwnOptions(), operators_path=path)

    (stage,) = own.parameters.stages
    assert stage.name == "operators: products"
    assert stage.kept
    assert stage.held_out_after < stage.held_out_before / 2
    efficiency = "product.tensor16.efficiency"
    assert own.parameters.values[efficiency] < start.values[efficiency]
    assert own.parameters.covered_gpus == ("a100-sxm4-80gb",)
    assert len(operator_records(columns)) == 6
