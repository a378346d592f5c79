"""Results for programs: JSON and CSV text of plain rows."""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecast.errors import UsageError
from joulecast.whole_file import whole_file


def json_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON; NaN and infinities are refused, because JSON has none."""
    return json.dumps(document, indent=2, allow_nan=False)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return flat rows as CSV under the union of their columns; None is an empty cell."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def save_output(path: str | Path, content: str | bytes) -> None:
    """Write a file whole: what stood there before stays until then.

    Raises
    ------
    UsageError
        It cannot be written.
    """
    target = Path(path)
    raw = content.encode() if isinstance(content, str) else content
    try:
        with whole_file(target) as partial, partial.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
