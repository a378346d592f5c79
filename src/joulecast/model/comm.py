"""Gradient all-reduce of data parallelism: bucketed ring, overlapped with the backward pass.

In: bytes, `Ring`, parameters; floats or arrays [step]. Out: seconds, all of them and those that show. Knows
no workload.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from joulecast.hardware.spec import Link
from joulecast.workload.table import Floats

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The GPUs that reduce together, and what joins them; every array is [step].

    Attributes
    ----------
    n_gpus : ndarray
        [1]
    bus_bytes_per_s : ndarray
        Bus bandwidth of a large all-reduce, nccl-tests convention; infinite for one GPU. [bytes/s]
    over_pcie : ndarray
        1 where the ring runs over PCIe. [1]
    """

    n_gpus: Floats
    bus_bytes_per_s: Floats
    over_pcie: Floats


def ring_of(n_gpus: int, link: Link) -> Ring:
    """Return the ring of one job.

    Parameters
    ----------
    n_gpus : int
        [1]
    link : Link
        What joins them.
    """
    return Ring(
        n_gpus=np.array([float(n_gpus)]),
        bus_bytes_per_s=np.array([link.bytes_per_s * link.allreduce_busbw_frac]),
        over_pcie=np.array([float(link.kind == "pcie")]),
    )


def allreduce_time_s(size_bytes: Floats, ring: Ring, values: Values) -> Floats:
    """Return the time of one ring all-reduce. [s] [step].

    Parameters
    ----------
    size_bytes : ndarray [step]
        The buffer each GPU holds. [bytes]
    ring : Ring
        One GPU costs nothing.
    values : mapping
        Parameters.

    Notes
    -----
    ``latency + 2 (n - 1) hop + 2 (n - 1) / n x size / (bus bandwidth x ratio) x (1 + 2 h / (size + h))``:
    small messages go by protocols that reach a third of the rate. Latency, hop and h are fitted to
    `collectives.csv` (A100 and H100 SXM, 2-8 GPUs, 512 bytes to GBs: 9 % mean error).
    """
    ratio = np.where(ring.over_pcie > 0, values["comm.pcie_ratio"], values["comm.link_ratio"])
    hops = 2.0 * (ring.n_gpus - 1.0)
    latency_s = values["comm.latency_s"] + hops * values["comm.hop_s"]
    half_bytes = values["comm.half_bytes"]
    slower = 1.0 + 2.0 * half_bytes / np.maximum(size_bytes + half_bytes, 1.0)
    time_s = latency_s + hops / ring.n_gpus * size_bytes / (ring.bus_bytes_per_s * ratio) * slower
    return np.where((ring.n_gpus > 1) & (size_bytes > 0), time_s, 0.0)


def gradient_reduction_s(gradient_bytes: Floats, ring: Ring, values: Values) -> tuple[Floats, Floats]:
    """Return the time of all buckets' all-reduces and of the last one alone. [s], [s] [step].

    Parameters
    ----------
    gradient_bytes : ndarray [step]
        All gradients of one GPU; 0 where nothing is reduced. [bytes]
    ring : Ring
    values : mapping
        Parameters.
    """
    n_buckets = np.maximum(np.ceil(gradient_bytes / values["comm.bucket_bytes"]), 1.0)
    one_s = allreduce_time_s(gradient_bytes / n_buckets, ring, values)
    return n_buckets * one_s, one_s


def exposed_time_s(all_s: Floats, last_s: Floats, backward_s: Floats, values: Values) -> Floats:
    """Return the communication that the backward pass does not hide; at least the last bucket. [s] [step].

    Parameters
    ----------
    all_s, last_s : ndarray [step]
        All all-reduces, and the last, which starts when the backward pass has ended. [s]
    backward_s : ndarray [step]
        Kernels of the backward pass. [s]
    values : mapping
        Parameters.
    """
    return np.maximum(all_s - values["comm.overlap"] * backward_s, last_s)


def contention_s(all_s: Floats, backward_s: Floats, values: Values) -> Floats:
    """Return what the backward kernels lose while communication runs beside them. [s] [step].

    Parameters
    ----------
    all_s : ndarray [step]
        All all-reduces. [s]
    backward_s : ndarray [step]
        Kernels of the backward pass. [s]
    values : mapping
        Parameters.
    """
    return values["comm.contention"] * np.minimum(all_s, backward_s)
