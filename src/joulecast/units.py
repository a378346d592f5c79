"""Unit factors: the only place where 1e9, 1024**3 or 3600 may appear.

Multiply by a factor to come from the named unit to SI; divide to go back. Inside the package every
number is in SI base units, so these appear only where a value crosses the border: file formats,
command-line options and text for people.
"""

from typing import Final

KILO: Final = 1e3
MEGA: Final = 1e6
GIGA: Final = 1e9
TERA: Final = 1e12
MILLI: Final = 1e-3
MICRO: Final = 1e-6
PICO: Final = 1e-12

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

SECONDS_PER_MINUTE: Final = 60.0
SECONDS_PER_HOUR: Final = 3600.0
J_PER_KWH: Final = 3.6e6
PERCENT: Final = 1e-2
