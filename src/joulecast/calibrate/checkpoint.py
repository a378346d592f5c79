"""Where an interrupted calibration stood, in a file beside its result.

In: the state after each stage. Out: the same state again, for the same measurements and options alone.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import joulecast
from joulecast.calibrate.stages import Values
from joulecast.model.definitions import PARAMETERS
from joulecast.model.parameters import StageRecord
from joulecast.whole_file import whole_file


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a calibration stands; what a checkpoint holds.

    Attributes
    ----------
    values : dict
        After the stages kept so far.
    fold_values : list of dict
        The same of a calibration without each fold.
    stages : list of StageRecord
    left : dict
    """

    values: dict[str, float]
    fold_values: list[dict[str, float]]
    stages: list[StageRecord] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def checkpoint_key(paths: Sequence[str | Path | None], start: Values, options: Mapping[str, object]) -> str:
    """Return a hash of everything that a calibration depends on: files, start, options, code."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(b"-" if path is None else hashlib.sha256(Path(path).read_bytes()).digest())
    digest.update(repr(sorted(start.items())).encode())
    digest.update(
        repr(([p.name for p in PARAMETERS], joulecast.__version__, sorted(options.items()))).encode()
    )
    return digest.hexdigest()


def save_checkpoint(path: Path, key: str, state: Progress) -> None:
    """Save the state; the old file stays whole until then."""
    document = {
        "key": key,
        "values": state.values,
        "fold_values": state.fold_values,
        "stages": [asdict(record) for record in state.stages],
        "left": state.left,
    }
    with whole_file(path) as partial:
        partial.write_text(json.dumps(document), encoding="utf-8")


def resumed(path: Path, key: str, fresh: Progress, tell: Callable[[str], None]) -> Progress:
    """Return where an interrupted calibration with the same inputs stood, else the fresh state."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return fresh
    except (OSError, ValueError):
        tell(f"{path.name} cannot be read: starting anew")
        return fresh
    if document.get("key") != key:
        tell(f"{path.name} is of other measurements or options: starting anew")
        return fresh
    stages = [StageRecord(**{**s, "parameters": tuple(s["parameters"])}) for s in document["stages"]]
    tell(f"going on from {path.name} after {', '.join(record.name for record in stages)}")
    return Progress(
        values=document["values"],
        fold_values=document["fold_values"],
        stages=stages,
        left=document["left"],
    )
