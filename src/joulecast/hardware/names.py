"""The card that a name means: what drivers report, tools use and people type.

Enters: a name. Leaves: a slug, or `UnknownGpuError` naming the candidates or the near misses; never a
default. Three rules, the first that decides wins, all without regard to case and punctuation:

1. the name is a slug, a driver's name or a listed alias, or the type of a cloud machine;
2. its words, which must include the model (``a100``, ``4090``, ``t4``), are all words of exactly one card;
3. it is refused. Words match whole, so ``a10`` is never ``a100``, and ``rtx 3080 ti`` never ``rtx-3080``.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

from joulecast.errors import UnknownGpuError

_DATA: Final = Path(__file__).parent / "data"
_REMEDY: Final = "`joulecast gpus` lists all, and a TOML file describes any other"
_N_NEAR: Final = 5
_NEAR_ENOUGH: Final = 0.55

#: Words at the start of a name that tell no two cards apart (``quadro`` does: ``rtx 6000`` is three cards).
_VENDOR_WORDS: Final = frozenset({"nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "gpu"})
#: Words that people run together with their neighbours: h100sxm, rtx4090, a100pcie.
_JOINED = re.compile(
    r"(nvidia|geforce|tesla|quadro|instinct|radeon|titan|rtx|gtx|sxm\d?|pcie|nvl(?!ink)|hbm\d?e?)"
)
_SUFFIX = re.compile(r"\b(\d{4})(ti|super|d)\b")
_MEMORY = re.compile(r"\b(\d+) ?(?:gib|gb|g)\b")
_NOT_A_MODEL = re.compile(r"\d+gb|sxm\d?|hbm\d?e?|\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """Names and words of every card.

    Attributes
    ----------
    shared : mapping of str to tuple of str
        Driver's name that several cards report, squeezed whole -> their slugs.
    exact : mapping of str to str
        Squeezed name -> slug.
    words : mapping of str to frozenset of str
        Slug -> all words that may describe the card.
    models : mapping of str to str
        Slug -> the word without which a name cannot mean it.
    cloud : mapping of str to str
        Pattern of machine types -> slug.
    """

    shared: Mapping[str, tuple[str, ...]]
    exact: Mapping[str, str]
    words: Mapping[str, frozenset[str]]
    models: Mapping[str, str]
    cloud: Mapping[str, str]


def squeeze(name: str, *, keep_vendor: bool = False) -> str:
    """Return a name without case, punctuation and, unless asked, vendor words at its start."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    while len(words) > 1 and words[0] in _VENDOR_WORDS and not keep_vendor:
        words = words[1:]
    return "".join(words)


def words_of(name: str) -> frozenset[str]:
    """Return the words of a name, memory sizes as ``80gb``, run-together words apart."""
    text = re.sub(r"[^a-z0-9]+", " ", name.lower())
    text = _SUFFIX.sub(r"\1 \2", _JOINED.sub(r" \1 ", text))
    return frozenset(_MEMORY.sub(r"\1gb", " ".join(text.split())).split()) - {"gpu"}


def model_of(slug: str) -> str:
    """Return the word of a slug without which a name cannot mean that card."""
    parts = slug.split("-")
    models = [part for part in parts if re.search(r"\d", part) and not _NOT_A_MODEL.fullmatch(part)]
    return models[0] if models else parts[0]


@cache
def _index() -> _Index:
    with (_DATA / "index.toml").open("rb") as stream:
        cards = tomllib.load(stream)["gpus"]
    with (_DATA / "aliases.toml").open("rb") as stream:
        aliases = tomllib.load(stream)
    models = {slug: model_of(slug) for slug in cards}
    reported: dict[str, list[str]] = {}
    for slug, card in cards.items():
        reported.setdefault(squeeze(card["name"], keep_vendor=True), []).append(slug)
    exact: dict[str, str] = {}
    for slug, card in cards.items():
        exact[squeeze(card["name"], keep_vendor=True)] = slug
        if squeeze(card["name"]) not in models.values():  # "NVIDIA H200" is one card, "h200" two
            exact[squeeze(card["name"])] = slug
    exact |= {squeeze(alias): slug for slug, listed in aliases["aliases"].items() for alias in listed}
    exact |= {squeeze(slug): slug for slug in cards}
    return _Index(
        shared={name: tuple(slugs) for name, slugs in reported.items() if len(slugs) > 1},
        exact=exact,
        words={slug: words_of(f"{slug} {card['name']} {card['words']}") for slug, card in cards.items()},
        models=models,
        cloud=aliases["cloud"],
    )


def resolve(name: str) -> str:
    """Return the slug of the one card that a name means.

    Raises
    ------
    UnknownGpuError
        None, or several; `near` holds the candidates.
    """
    if re.fullmatch(r"[a-z0-9-]{1,60}", name) and (_DATA / "gpus" / f"{name}.toml").is_file():
        return name
    index = _index()
    typed = name.strip().lower()
    for pattern, slug in index.cloud.items():
        if fnmatchcase(typed, pattern):
            return slug
    whole = squeeze(name, keep_vendor=True)
    if whole in index.shared:
        raise _error(name, index.shared[whole], "ambiguous, one of")
    for squeezed in (whole, squeeze(name)):
        if squeezed in index.exact:
            return index.exact[squeezed]
    words = words_of(name)
    candidates = [
        slug for slug, known in index.words.items() if index.models[slug] in words and words <= known
    ]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise _error(name, tuple(candidates), "ambiguous, one of")
    raise _error(name, _near(name, index), "nearest")


def _near(name: str, index: _Index) -> tuple[str, ...]:
    """Return the slugs most like a name, the best first: the model's word counts most."""
    typed_models = [
        word for word in words_of(name) if re.search(r"\d", word) and not _NOT_A_MODEL.fullmatch(word)
    ] or [squeeze(name) or "?"]

    def likeness(slug: str) -> float:
        known = index.models[slug]
        model = max(0.85 * _ratio(word, known) + 0.15 * (word[0] == known[0]) for word in typed_models)
        return 0.8 * model + 0.2 * _ratio(squeeze(name), squeeze(slug))

    ranked = sorted(index.models, key=lambda slug: (-likeness(slug), slug))
    return tuple(slug for slug in ranked[:_N_NEAR] if likeness(slug) >= _NEAR_ENOUGH)


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _error(name: str, candidates: tuple[str, ...], verdict: str) -> UnknownGpuError:
    listed = f"({verdict}: {', '.join(candidates)}); " if candidates else "(nothing like it); "
    error = UnknownGpuError("GPU name", name, (), listed + _REMEDY)
    error.near = candidates
    return error
