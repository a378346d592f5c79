"""A sweep on a real Dask cluster of processes, one of which is killed on the way."""

import os
import signal
import time

import numpy as np
import pytest

from joulecast.errors import ClusterError
from joulecast.explore import sweep as sweeping
from joulecast.explore.dask import on_cluster
from joulecast.explore.sweep import save_sweep, sweep
from joulecast.explore.table import COLUMNS, load_sweep

distributed = pytest.importorskip("distributed")

VALUES = {
    "model": ["bert-base", "resnet50"],
    "gpu": ["a100-sxm4-40gb", "t4"],
    "precision": ["fp32", "bf16"],
    "batch_per_gpu": "1:60:1",
    "power_limit_frac": "0.3:1:0.01",
    "n_gpus": [1, 2, 4, 8],
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # distributed warns of what dies, as it is made to here
def test_a_killed_worker_costs_no_block(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "BLOCK_SIZE", 8_192)
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=None
    )
    workers = [worker.pid for worker in cluster.workers.values()]
    killed = []
    done = []

    def progress(n: int) -> None:
        done.append(n)
        if n and not killed:
            os.kill(workers[0], signal.SIGKILL)
            killed.append(workers[0])

    try:
        with cluster:
            path = tmp_path / "r.parquet"
            n = save_sweep(VALUES, path, spread=on_cluster(cluster.scheduler_address), progress=progress)
            deadline = time.monotonic() + 30
            while not any(w.pid not in workers for w in cluster.workers.values()):
                assert time.monotonic() < deadline, "no worker was killed"
                time.sleep(0.1)
    finally:
        cluster.close()

    assert killed
    assert sum(done) == n
    kept, found = load_sweep(path), sweep(VALUES)
    assert len(kept) == len(found) == n
    for name in COLUMNS:
        np.testing.assert_array_equal(kept[name], found[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_scheduler_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.explore.dask._PATIENCE_S", "1s")
    with pytest.raises(ClusterError, match="no Dask scheduler answers"):
        save_sweep(VALUES, tmp_path / "r.parquet", spread=on_cluster("tcp://127.0.0.1:9"))
