"""The processes of a job: one alone, or the ranks that ``torchrun`` started. Needs torch."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed

#: A rank that does not answer for so long is gone.
_TIMEOUT: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Where this process is among those of its job.

    Attributes
    ----------
    rank, n_ranks : int
        In the job.
    local_rank, n_local : int
        On this node.
    job_id : str or None
        What all of them share.
    """

    rank: int = 0
    n_ranks: int = 1
    local_rank: int = 0
    n_local: int = 1
    job_id: str | None = None

    @property
    def is_writer(self) -> bool:
        """Whether this process measures and writes for its node: one does."""
        return self.local_rank == 0

    def agree(self, number: float) -> float:
        """Return rank 0's number, on every rank."""
        if self.n_ranks == 1:
            return number
        agreed = torch.tensor([number], dtype=torch.float64, device=_group_device())
        distributed.broadcast(agreed, src=0)
        return float(agreed.item())

    def gather(self, record: Any) -> list[Any]:
        """Return what every rank has, by rank, on every rank."""
        if self.n_ranks == 1:
            return [record]
        records: list[Any] = [None] * self.n_ranks
        distributed.all_gather_object(records, record)
        return records


def _group_device() -> torch.device:
    return torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")


def ranks_around() -> Group:
    """Return what the environment says: the ranks that ``torchrun`` set, or one process alone."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Group()
    return Group(
        rank=int(os.environ["RANK"]),
        n_ranks=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        n_local=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        job_id=os.environ.get("TORCHELASTIC_RUN_ID"),
    )


@contextmanager
def joined(group: Group, *, is_cuda: bool) -> Iterator[Group]:
    """Join the ranks of a group, unless they are already; leave afterwards."""
    if group.n_ranks == 1 or distributed.is_initialized():
        yield group
        return
    if is_cuda:
        torch.cuda.set_device(group.local_rank)
    distributed.init_process_group("nccl" if is_cuda else "gloo", timeout=_TIMEOUT)
    try:
        yield group
    finally:
        distributed.destroy_process_group()


def hostname() -> str:
    """Return the name of this node."""
    return socket.gethostname()
