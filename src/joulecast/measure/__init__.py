"""A real run -> `Measurement`: sensors, windows, protocol, run, store.

The package is called like the function it exports: ``joulecast.measure(...)`` is `session.measure`.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that can be called, since it and its main function have one name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from joulecast.measure.session import measure

        return measure(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
