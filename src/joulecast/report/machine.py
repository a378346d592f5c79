"""Results for programs: JSON and CSV text of plain rows."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any


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
