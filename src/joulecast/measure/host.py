"""The machine and the software of a run, for its record."""

import os
import platform
import socket
from functools import cache
from importlib import metadata
from typing import Final

import joulecast
from joulecast.hardware.catalogue import load_gpu

#: Packages whose versions a record has, where they are installed.
_PACKAGES: Final = ("torch", "torchvision", "timm", "transformers", "numpy", "zeus")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, joulecast and the packages that matter."""
    found = {"python": platform.python_version(), "joulecast": joulecast.__version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def torch_versions() -> dict[str, str]:
    """Return the versions of what torch was built with, and the threads it uses. Needs torch."""
    import torch

    found = {"torch": torch.__version__, "torch_threads": str(torch.get_num_threads())}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


@cache
def host() -> dict[str, str]:
    """Return the name of this node, its system and its processor."""
    return {
        "hostname": socket.gethostname(),
        "os": platform.platform(),
        "cpu": load_gpu("cpu").name,
        "n_cpus": str(os.cpu_count() or 1),
    }


def driver() -> str | None:
    """Return the version of the GPU's driver, None where there is none. Needs torch."""
    import torch
    from torch.utils import collect_env

    if not torch.cuda.is_available():
        return None
    found = collect_env.get_nvidia_driver_version(collect_env.run)
    return str(found) if found else None
