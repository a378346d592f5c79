"""Model names: what a name means, and the sizes that bound a request.

Enters: a name as a person types it and a mode. Leaves: `ModelName` (which network, which task) and
`ModelCard` (its default sizes and limits), read from ``data/models.toml`` and ``data/image_models.txt``.
Must not know torch: names and limits are checked on a machine without it.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from joulecast.errors import DoesNotFitError, UnknownModelError, UsageError

FORMAT: Final = 1

#: Tasks that every architecture type can be built for; the first is never the default.
TASKS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "bert": ("body", "sequence-classification", "question-answering", "masked-lm", "causal-lm"),
        "roberta": ("body", "sequence-classification", "question-answering", "masked-lm", "causal-lm"),
        "distilbert": ("body", "sequence-classification", "question-answering", "masked-lm"),
        "albert": ("body", "sequence-classification", "question-answering", "masked-lm"),
        "gpt2": ("body", "sequence-classification", "question-answering", "causal-lm"),
        "opt": ("body", "sequence-classification", "question-answering", "causal-lm"),
        "qwen2": ("body", "sequence-classification", "question-answering", "causal-lm"),
        "llama": ("body", "sequence-classification", "question-answering", "causal-lm"),
        "mistral": ("body", "sequence-classification", "question-answering", "causal-lm"),
        "switch_transformers": ("body", "causal-lm"),
        "mpt": ("causal-lm",),
        "vit": ("body", "image-classification"),
        "mobilevit": ("body", "image-classification"),
        "image": ("image-classification",),
        "file": ("own",),
    }
)
ALL_TASKS: Final = tuple(sorted({task for tasks in TASKS.values() for task in tasks} - {"own"}))

#: Types whose learned position embeddings bound the sequence; rotary and relative ones do not.
LEARNED_POSITIONS: Final = frozenset({"bert", "roberta", "distilbert", "albert", "gpt2", "opt"})

#: Types that see their whole input at once and are fed padded batches with a mask.
ENCODERS: Final = frozenset({"bert", "roberta", "distilbert", "albert"})

_MODES: Final = ("train", "train-no-optimizer", "forward")
_EXAMPLES: Final = "(forms: torchvision/NAME, timm/NAME, hf/NAME#TASK, path/to/file.py:function)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """One network and what it is used for.

    Attributes
    ----------
    family : str
        ``torchvision``, ``timm``, ``hf``, ``config``, ``mpt``, ``shufflenet`` or ``file``.
    name : str
        The name inside the family; for ``file``, ``path/to/file.py:function``.
    task : str
        A value of `ALL_TASKS`, or ``own`` for ``file``.
    """

    family: str
    name: str
    task: str

    @property
    def canonical(self) -> str:
        """The spelling that names this network and task and nothing else."""
        if self.family in {"shufflenet", "file"}:
            return self.name
        head = f"{self.family}/{self.name}"
        return head if self.family in {"torchvision", "timm"} else f"{head}#{self.task}"

    def __str__(self) -> str:
        """Return the canonical spelling."""
        return self.canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Default sizes and limits of a named model.

    Attributes
    ----------
    type : str
        Architecture type, a key of `TASKS`.
    tasks : tuple of str
        What it can be built for.
    is_sequence : bool
        Whether its input is tokens; False for images and, until it is loaded, for a file of one's own.
    default_seq_len, max_seq_len : int or None
        Tokens per sample when none are asked for: 128 for encoders; the trained context, at most 2048, for
        decoders; 512 for the encoder-decoder. The maximum is that of *learned* position embeddings; None
        where nothing bounds it.
    default_image_size : int or None
        Pixels along an edge when none are asked for.
    vocab : int or None
        Rows of the token embedding.
    supports_attention : tuple of str
        Attention kinds that can be chosen: of ``sdpa``, ``eager``; empty where there is no choice.
    default_attention : str or None
        What is built when the asked kind is not supported; None without a choice.
    """

    type: str
    tasks: tuple[str, ...]
    is_sequence: bool
    default_seq_len: int | None = None
    max_seq_len: int | None = None
    default_image_size: int | None = None
    vocab: int | None = None
    supports_attention: tuple[str, ...] = ()

    @property
    def default_attention(self) -> str | None:
        """The first supported kind, or None."""
        return self.supports_attention[0] if self.supports_attention else None

    def attention_or_default(self, attention: str) -> str | None:
        """Return the asked kind where the network has it, else the kind it has."""
        return attention if attention in self.supports_attention else self.default_attention


@cache
def architectures() -> Mapping[str, Any]:
    """Return the content of ``models.toml``; ``like`` entries are filled in."""
    text = (resources.files("joulecast.workload") / "data" / "models.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    if tables.get("format") != FORMAT:
        raise ValueError(f"models.toml has format {tables.get('format')}, this version reads {FORMAT}")
    for entries in (tables["hf"], tables["config"]):
        for name, entry in entries.items():
            if "like" in entry:
                family, _, original = entry["like"].partition("/")
                entries[name] = tables[family][original]
    return MappingProxyType(tables)


@cache
def image_sizes() -> Mapping[str, int]:
    """Return the known ``torchvision/`` and ``timm/`` names and their input edge in pixels."""
    text = (resources.files("joulecast.workload") / "data" / "image_models.txt").read_text(encoding="utf-8")
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    sizes = {name: int(size) for name, size in rows}
    renamed = architectures()["timm"]["renamed"]
    sizes.update({f"timm/{name}": entry["image_size"] for name, entry in renamed.items()})
    return MappingProxyType(sizes)


def _key(text: str) -> str:
    """Return the spelling without case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


@cache
def _bare_names() -> Mapping[str, str]:
    """Return lower-case short name -> family/name; explicit aliases win, then the order below."""
    tables = architectures()
    table = dict(tables["aliases"])
    for family in ("hf", "config", "mpt"):
        for name in tables[family]:
            table.setdefault(name, f"{family}/{name}")
    for full in image_sizes():
        if full.startswith("torchvision/"):
            table.setdefault(full.partition("/")[2], full)
    for name in tables["shufflenet"]:
        table.setdefault(name, name)
    return MappingProxyType(table)


def _loosely(text: str, table: Mapping[str, str]) -> str | None:
    """Return the target of a spelling: exact first, then without punctuation if that means one thing.

    ``regnet_x_16gf`` and ``regnet_x_1_6gf`` differ in punctuation only.
    """
    if text.lower() in table:
        return table[text.lower()]
    targets = {target for name, target in table.items() if _key(name) == _key(text)}
    return targets.pop() if len(targets) == 1 else None


def known_models() -> tuple[str, ...]:
    """Return every model that can be named without a file, as ``family/name``, sorted."""
    tables = architectures()
    own = [f"{family}/{name}" for family in ("hf", "config", "mpt") for name in tables[family]]
    return tuple(sorted([*own, *tables["shufflenet"], *image_sizes()]))


def short_names() -> tuple[str, ...]:
    """Return the short aliases as people type them, sorted."""
    return tuple(sorted(architectures()["aliases"]))


def renamed_timm(name: str) -> Mapping[str, Any] | None:
    """Return the present name, options and reason of a name that timm has dropped, or None."""
    entry: Mapping[str, Any] | None = architectures()["timm"]["renamed"].get(name)
    return entry


def _unknown(name: str) -> UnknownModelError:
    return UnknownModelError("model", name, [*known_models(), *short_names()], _EXAMPLES)


def _in_family(family: str, name: str) -> str | None:
    """Return the exact name inside a family for a loose spelling, or None."""
    names: Iterable[str]
    if family in {"torchvision", "timm"}:
        # weights tags of timm (name.tag) do not change the network
        name = name.partition(".")[0] if family == "timm" else name
        names = [full.partition("/")[2] for full in image_sizes() if full.startswith(f"{family}/")]
    else:
        names = architectures()[family]
        name = name.rpartition("/")[2]  # an organisation in front, as on the hub
    found = _loosely(name, {known: known for known in names})
    if found is not None:
        return found
    target = _loosely(name, _bare_names()) or ""
    return target.partition("/")[2] if target.startswith(f"{family}/") else None


def _looked_up(text: str) -> tuple[str, str]:
    """Return family and name of a spelling without a task."""
    family, slash, rest = text.partition("/")
    family = family.lower()
    if slash and family in {"torchvision", "timm", "hf", "config", "mpt"}:
        found = _in_family(family, rest)
        if found is None:
            raise _unknown(text)
        return family, found
    target = _loosely(text, _bare_names())
    if target is None:
        raise _unknown(text)
    if target in architectures()["shufflenet"]:
        return "shufflenet", target
    family, _, name = target.partition("/")
    return family, name


def _file_name(text: str) -> ModelName:
    path, _, function = text.rpartition(":")
    if not path or not function.isidentifier():
        raise UsageError(f"model {text!r}: name the function too, as in path/to/file.py:make_model")
    return ModelName(family="file", name=text, task="own")


def _type_of(family: str, name: str) -> str:
    if family in {"torchvision", "timm", "shufflenet"}:
        return "image"
    return "file" if family == "file" else str(architectures()[family][name]["type"])


def resolve_model(name: str, mode: str = "train") -> ModelName:
    """Return the network and task that a name means; needs no torch.

    Parameters
    ----------
    name : str
        ``torchvision/NAME``, ``timm/NAME``, ``hf/NAME[#TASK]``, ``config/NAME[#TASK]``, ``mpt/NAME``,
        ``shufflenet-v2-cifar``, ``path/to/file.py:function``, or a short name such as ``bert``,
        ``resnet-50``, ``llama-3.1-8b``. Case and punctuation do not matter, nor does an organisation
        inside ``hf/`` or a weights tag inside ``timm/``.
    mode : str
        ``train`` and ``train-no-optimizer`` take the network's default task where none is named;
        ``forward`` takes the bare body.

    Raises
    ------
    UnknownModelError
        No such model; carries near misses.
    UsageError
        The model has no such task, or the mode does not exist.
    """
    if mode not in _MODES:
        raise UsageError(f"unknown mode {mode!r}: choose from {', '.join(_MODES)}")
    text = name.strip()
    if ".py:" in text or text.endswith(".py"):
        return _file_name(text)
    head, hash_, task = text.partition("#")
    family, found = _looked_up(head.strip())
    kind = _type_of(family, found)
    if not hash_:
        task = _default_task(family, found, kind, mode)
    elif task not in TASKS[kind]:
        raise UsageError(f"{family}/{found} has no task {task!r}: choose from {', '.join(TASKS[kind])}")
    return ModelName(family=family, name=found, task=task)


def _default_task(family: str, name: str, kind: str, mode: str) -> str:
    if kind == "image":
        return "image-classification"
    if mode == "forward" and "body" in TASKS[kind]:
        return "body"
    return str(architectures()[family][name]["default_task"])


def model_card(name: ModelName) -> ModelCard:
    """Return the default sizes and limits of a model; needs no torch."""
    kind = _type_of(name.family, name.name)
    if kind == "file":
        return ModelCard(type=kind, tasks=TASKS[kind], is_sequence=False)
    if kind == "image":
        return _image_card(name)
    entry = architectures()[name.family][name.name]
    bounded = kind in LEARNED_POSITIONS
    return ModelCard(
        type=kind,
        tasks=TASKS[kind],
        is_sequence="vocab" in entry,
        default_seq_len=entry.get("default_seq_len"),
        max_seq_len=entry["positions"] if bounded else None,
        default_image_size=entry.get("image_size"),
        vocab=entry.get("vocab"),
        supports_attention=_attention_of(kind),
    )


def _attention_of(kind: str) -> tuple[str, ...]:
    """Return the kinds that transformers has for a type; the first is its default."""
    if kind in {"mobilevit", "switch_transformers"}:
        return ("eager",)
    return ("sdpa", "eager")


def _image_card(name: ModelName) -> ModelCard:
    size = image_sizes().get(f"{name.family}/{name.name}", 32)
    # torchvision's ViT calls nn.MultiheadAttention; its Swin and MaxViT multiply by hand
    attention = ("sdpa", "eager") if name.family == "timm" or name.name.startswith("vit_") else ()
    return ModelCard(
        type="image",
        tasks=TASKS["image"],
        is_sequence=False,
        default_image_size=size,
        supports_attention=attention,
    )


def check_seq_len(name: ModelName, seq_len: int, *, raise_positions: bool = False) -> None:
    """Raise `DoesNotFitError` if a sequence exceeds the learned positions.

    Parameters
    ----------
    name : ModelName
        The model.
    seq_len : int
        Tokens per sample.
    raise_positions : bool
        Allow it: the embedding is then built longer, as for a network trained from scratch.
    """
    if seq_len < 1:
        raise UsageError(f"sequence length {seq_len}: it must be at least 1")
    limit = model_card(name).max_seq_len
    if limit is not None and seq_len > limit and not raise_positions:
        raise DoesNotFitError(
            f"{name} has {limit} positions, not {seq_len}: use a sequence length of {limit} or less"
        )
