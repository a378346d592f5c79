"""A model of one's own, from ``path/to/file.py:make_model``. Needs torch.

The function takes no arguments and returns ``(module, make_inputs)`` or ``(module, make_inputs, loss)``::

    def make_model():
        def make_inputs(batch_size, seq_len):        # or make_inputs(batch_size)
            return {"input_ids": torch.ones(batch_size, seq_len, dtype=torch.long)}
        return MyNetwork(), make_inputs

`make_inputs` returns a dict (keyword arguments of ``forward``), a tuple (positional ones) or one tensor,
made inside it. Without a loss the module must return a scalar or something with ``.loss``. With one,
``loss(output, inputs)`` returns the scalar, and of a tuple only the first tensor goes to ``forward``.
A default in the signature, ``seq_len=512``, is the length used when none is asked for.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from joulecast.errors import TraceError, UsageError
from joulecast.workload.models.names import ModelName

#: Lengths of the tuple that a function may return.
_FORMS: Final = (2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """What a file's function returned, checked; fields as in `builders.BuiltModel`."""

    module: nn.Module
    make_inputs: Callable[[int, int], Any]
    loss: Callable[[Any, Any], Any] | None
    is_sequence: bool
    default_seq_len: int | None


def _raised(what: str, path: Path, error: BaseException) -> TraceError:
    """Return one line that says what raised, and on which line of the file."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    where = f" (line {lines[-1]})" if lines else ""
    text = str(error).strip().splitlines() or ["no message"]
    return TraceError(f"{what} raised {type(error).__name__}: {text[0]}{where}")


def _load_function(path: Path, function: str) -> Callable[[], Any]:
    if not path.is_file():
        raise UsageError(f"no file {str(path)!r}: the model is named path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(f"joulecast_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[spec.name] = loaded  # dataclasses look their module up
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:
        raise _raised(str(path), path, error) from error
    finally:
        sys.path.remove(str(path.parent))
    found = getattr(loaded, function, None)
    if not callable(found):
        here = [n for n, v in vars(loaded).items() if inspect.isfunction(v) and v.__module__ == spec.name]
        raise UsageError(f"{path} has no function {function!r}; it has: {', '.join(sorted(here)) or 'none'}")
    return found  # type: ignore[no-any-return]


def _keeps_meta_tensors(part: Any, *, is_model: bool) -> bool:
    """Whether a module keeps tensors on ``meta`` that nobody will replace.

    Parameters and buffers of the model are replaced when it is run; its other tensors, and all of a loss
    module's, are not.
    """
    if not isinstance(part, nn.Module):
        return False
    kept = [value for inner in part.modules() for value in vars(inner).values()]
    if not is_model:
        kept += [*part.parameters(), *part.buffers()]
    return any(isinstance(value, torch.Tensor) and value.is_meta for value in kept)


def _called(function: Callable[[], Any], what: str, path: Path) -> Any:
    """Return the function's result, made on ``meta`` (no memory) or, where it reads values, for real."""
    try:
        with torch.device("meta"):
            made = function()
        if not any(_keeps_meta_tensors(part, is_model=i == 0) for i, part in enumerate(_parts(made))):
            return made
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        # whatever it was: the second attempt succeeds, or reports it
    try:
        return function()
    except Exception as error:
        raise _raised(what, path, error) from error


def _parts(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _batch_only(make_inputs: Callable[..., Any]) -> tuple[bool, int | None]:
    """Return whether ``make_inputs`` takes the batch size alone, and its default sequence length."""
    try:
        parameters = list(inspect.signature(make_inputs).parameters.values())
    except (TypeError, ValueError):
        return False, None
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return False, None
    positional = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    if not positional[1:]:
        return True, None
    default = positional[1].default
    return False, default if isinstance(default, int) else None


def load_own_model(name: ModelName) -> OwnModel:
    """Return the module, inputs and loss that a file's function makes.

    Raises
    ------
    UsageError
        No such file or function, or a result of another form than the module docstring says.
    TraceError
        The file or the function raised; the message names the line.
    """
    text, _, function = name.name.rpartition(":")
    path = Path(text).resolve()
    made = _called(_load_function(path, function), name.name, path)
    parts = _parts(made)
    if not (len(parts) in _FORMS and isinstance(parts[0], nn.Module) and all(map(callable, parts[1:]))):
        got = ", ".join(type(part).__name__ for part in parts)
        raise UsageError(
            f"{name} returned ({got}): return (module, make_inputs) or (module, make_inputs, loss)"
        )
    module, make_inputs, loss = (*parts, None)[:3]
    batch_only, default = _batch_only(make_inputs)
    return OwnModel(
        module=module,
        make_inputs=_normalised(make_inputs, name, path, batch_only=batch_only),
        loss=loss,
        is_sequence=not batch_only,
        default_seq_len=default,
    )


def _normalised(
    make_inputs: Callable[..., Any], name: ModelName, path: Path, *, batch_only: bool
) -> Callable[[int, int], Any]:
    """Return ``make_inputs(batch_size, seq_len)`` with a dict or tuple as its result."""

    def make(batch_size: int, seq_len: int) -> Any:
        try:
            inputs = make_inputs(batch_size) if batch_only else make_inputs(batch_size, seq_len)
        except Exception as error:
            raise _raised(f"make_inputs of {name}", path, error) from error
        if isinstance(inputs, torch.Tensor):
            return (inputs,)
        if isinstance(inputs, dict | tuple):
            return inputs
        raise UsageError(
            f"make_inputs of {name} returned {type(inputs).__name__}: return dict, tuple or tensor"
        )

    return make
