"""What sensors said, written to a file as it comes; and a sensor that says it again.

A recording has one JSON document per line: the channels first, then one round of readings each. A line that
was cut off by the end of a machine is left out.
"""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Self, TextIO

from joulecast.errors import SensorUnavailableError
from joulecast.measure.sensors import Channel, Component, Reading

_SCHEMA: Final = "joulecast/recording/1"


def _plain(record: Channel | Reading) -> dict[str, Any]:
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: value for name, value in values.items() if value not in (None, "")}


class Recording:
    """Writes readings to a file, each round in one line, at once.

    Parameters
    ----------
    path : Path or str
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        self._file = self._path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def channels(self, channels: Sequence[Channel]) -> None:
        """Keep what is read."""
        self._write({"schema": _SCHEMA, "channels": [_plain(channel) for channel in channels]})

    def readings(self, readings: Sequence[Reading]) -> None:
        """Keep one round of readings."""
        self._write({"readings": [_plain(reading) for reading in readings]})

    def _write(self, document: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(document) + "\n")
            self._file.flush()


class ReplaySensor:
    """Says what a recording holds, one round per call of `read`, at the times recorded.

    Parameters
    ----------
    path : Path or str
        A file that `Recording` wrote.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._channels: tuple[Channel, ...] = ()
        self._rounds: list[tuple[Reading, ...]] = []
        self._i_round = 0

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self._rounds)

    def open(self) -> tuple[Channel, ...]:
        """Return the recorded channels."""
        documents = self._documents()
        if not documents or documents[0].get("schema") != _SCHEMA:
            raise SensorUnavailableError(f"{self._path} is no recording of sensors ({_SCHEMA})")
        self._channels = tuple(
            Channel(**(plain | {"component": Component(plain["component"])}))
            for plain in documents[0]["channels"]
        )
        self._rounds = [tuple(Reading(**plain) for plain in d["readings"]) for d in documents[1:]]
        self._i_round = 0
        return self._channels

    def _documents(self) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise SensorUnavailableError(f"cannot read {self._path}: {error.strerror}") from error
        documents = []
        for line in lines:
            try:
                documents.append(json.loads(line))
            except json.JSONDecodeError:  # cut off
                break
        return documents

    def read(self) -> tuple[Reading, ...]:
        """Return the next round; after the last one, that the recording has ended."""
        if self._i_round >= len(self._rounds):
            end_s = self._rounds[-1][0].time_s if self._rounds and self._rounds[-1] else 0.0
            after_s = end_s + self._i_round - len(self._rounds) + 1
            self._i_round += 1
            ended = "the recording has ended"
            return tuple(Reading(time_s=after_s, device=c.device, error=ended) for c in self._channels)
        self._i_round += 1
        return self._rounds[self._i_round - 1]

    def close(self) -> None:
        """Go back to the start."""
        self._i_round = 0
