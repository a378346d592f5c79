"""Where it runs: cards, their links and the files that describe them; knows no model."""

from joulecast.hardware.catalogue import gpu_slugs, load_gpu, load_gpu_file, load_links, load_sources
from joulecast.hardware.spec import PATHS, Fact, FactKind, Gpu, Link, LinkReach
from joulecast.hardware.toml_text import gpu_text

__all__ = [
    "PATHS",
    "Fact",
    "FactKind",
    "Gpu",
    "Link",
    "LinkReach",
    "gpu_slugs",
    "gpu_text",
    "load_gpu",
    "load_gpu_file",
    "load_links",
    "load_sources",
]
