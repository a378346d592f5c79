"""Write a file whole or not at all: what stood there before stays until the new one is complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield an empty file beside another to write into, and put it in the other's place at the end.

    An error leaves the other as it was, and nothing beside it.

    Raises
    ------
    OSError
        The folder is not there or cannot be written, or the other is a folder.
    """
    target = Path(path)
    with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as made:
        partial = Path(made.name)
    try:
        yield partial
        partial.chmod(0o666 & ~_umask())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
