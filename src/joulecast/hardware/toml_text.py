"""Writes facts as the TOML of the catalogue: SI values, the human value in a comment.

Enters: labels and facts by dotted key. Leaves: text. It is used by the importer and by anybody who
wants a card of the catalogue as a starting point for their own file.
"""

from collections.abc import Callable, Mapping
from typing import Final

from joulecast.hardware.spec import Fact, Gpu
from joulecast.units import GIB, GIGA, KIB, MEGA, MIB, TERA

FORMAT_VERSION: Final = 1


def _bytes_for_people(n_bytes: float) -> str:
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.4g} {unit}"
    return f"{n_bytes:g} bytes"


#: Suffix of a key -> the value as people write it; the longest suffix comes first.
_HUMAN: Final[tuple[tuple[str, Callable[[float], str]], ...]] = (
    ("_bytes_per_s", lambda value: f"{value / GIGA:.6g} GB/s"),
    ("_bit_per_s", lambda value: f"{value / GIGA:.6g} Gbit/s per pin"),
    ("_flop_per_s", lambda value: f"{value / TERA:.6g} TFLOP/s"),
    ("_bytes", _bytes_for_people),
    ("_hz", lambda value: f"{value / MEGA:.6g} MHz"),
    ("_w", lambda value: f"{value:.6g} W"),
)


def human(key: str, value: float) -> str:
    """Return a value as people write it, or an empty text where the plain number says it."""
    names = key.split(".")
    for suffix, form in _HUMAN:
        if any(name.endswith(suffix) or name == suffix[1:] for name in names):
            return form(value)
    return ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _line(key: str, fact: Fact) -> str:
    comment = human(key, fact.value)
    text = (
        f"{key.rpartition('.')[2]} = {{ value = {_number(fact.value)}, "
        f'source = {_quoted(fact.source)}, kind = "{fact.kind}" }}'
    )
    return f"{text}  # {comment}" if comment else text


def document(labels: Mapping[str, str], facts: Mapping[str, Fact], heading: str = "") -> str:
    """Return the TOML text of labels (strings) and facts.

    Parameters
    ----------
    labels : mapping of str to str
        By dotted key.
    facts : mapping of str to Fact
        By dotted key; keys without a dot come first.
    heading : str
        A comment for the top of the file.
    """
    sections: dict[str, list[str]] = {"": [f"format = {FORMAT_VERSION}"]}
    for key, label in labels.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {_quoted(label)}")
    for key, fact in facts.items():
        sections.setdefault(key.rpartition(".")[0], []).append(_line(key, fact))
    blocks = ["\n".join(f"# {line}" for line in heading.splitlines())] if heading else []
    for section, lines in sections.items():
        blocks.append("\n".join(([f"[{section}]"] if section else []) + lines))
    return "\n\n".join(blocks) + "\n"


def gpu_text(gpu: Gpu) -> str:
    """Return the file of a card, complete enough that reading it back gives an equal `Gpu`."""
    return document(gpu.labels, gpu.facts)
