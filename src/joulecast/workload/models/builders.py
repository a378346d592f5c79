"""From a model name to a module without weights, its inputs and its loss. Needs torch on use, not on import.

Modules are made on the ``meta`` device: no memory, no random numbers, no download. Whoever runs them
replaces parameters and buffers; every buffer a network computes when it is made (position ids, rotary
frequencies) exists there, and no forward pass below branches on their values.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from joulecast.errors import DoesNotFitError, MissingExtraError, UsageError
from joulecast.workload.models.names import (
    ENCODERS,
    ModelName,
    architectures,
    check_seq_len,
    model_card,
    renamed_timm,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

ATTENTION_KINDS = ("sdpa", "eager")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A module on ``meta`` and what it takes to run a step of it.

    Attributes
    ----------
    name : ModelName
        What was built.
    module : torch.nn.Module
        In training mode if built for training, else in evaluation mode.
    make_inputs : callable
        ``make_inputs(batch_size, seq_len)`` -> keyword arguments (dict), or a tuple whose first tensor goes
        to ``forward`` and whose rest only the loss takes. Floating tensors are FP32; a 16-bit network needs
        them cast. Networks of images ignore ``seq_len``.
    loss : callable or None
        ``loss(output, inputs)`` -> scalar; None where the output carries ``.loss`` or is the scalar.
    is_sequence : bool
        Whether ``seq_len`` matters.
    default_seq_len, image_size : int or None
        Tokens per sample when none are asked for; pixels along an edge as built.
    attention : str or None
        What was built: ``sdpa``, ``eager``, or None where the network leaves no choice. The kind asked for
        is used where the network has it.
    notes : tuple of str
        What the module stands in for, to be shown with results.
    """

    name: ModelName
    module: "nn.Module"
    make_inputs: Callable[[int, int], Any]
    loss: "Callable[[Any, Any], Tensor] | None"
    is_sequence: bool
    default_seq_len: int | None = None
    image_size: int | None = None
    attention: str | None = None
    notes: tuple[str, ...] = ()


def _require(package: str, name: ModelName) -> ModuleType:
    """Import an optional package, or say how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"{package} is needed to trace {name} ({error}): pip install 'joulecast[torch]'"
        ) from error


def build_model(
    name: ModelName,
    *,
    attention: str = "sdpa",
    image_size: int | None = None,
    seq_len: int | None = None,
    train: bool = True,
    raise_positions: bool = False,
    padding_mask: bool | None = None,
) -> BuiltModel:
    """Return a named model's module on the ``meta`` device, its inputs and its loss.

    Parameters
    ----------
    name : ModelName
        From `resolve_model`.
    attention : str
        ``sdpa`` or ``eager``; networks with one kind only are built with that.
    image_size : int, optional
        Pixels along an edge; the model's own size by default.
    seq_len : int, optional
        Longest sequence that will be run: checked against the positions.
    train : bool
        Whether inputs carry labels and the module is in training mode.
    raise_positions : bool
        Build the position embedding as long as ``seq_len`` asks, instead of refusing.
    padding_mask : bool, optional
        Whether batches of tokens come with a padding mask. By default encoders do (their batches are padded,
        so the mask reaches the attention kernel) and decoders do not (their sequences are packed, so the
        causal kernel runs without one). False for an encoder is a benchmark on full sequences.

    Raises
    ------
    MissingExtraError, UnknownModelError, UsageError, DoesNotFitError, TraceError
    """
    if attention not in ATTENTION_KINDS:
        raise UsageError(f"unknown attention {attention!r}: choose from {', '.join(ATTENTION_KINDS)}")
    if image_size is not None and image_size < 1:
        raise UsageError(f"image size {image_size}: it must be at least 1")
    if seq_len is not None:
        check_seq_len(name, seq_len, raise_positions=raise_positions)
    _require("torch", name)
    if name.family == "file":
        return _own(name, train)
    card = model_card(name)
    attention = card.attention_or_default(attention) or ""
    if card.type == "image":
        return _image(name, attention, image_size or card.default_image_size or 224, train)
    if card.type == "mpt":
        return _mpt(name, attention, seq_len, train)
    _require("transformers", name)
    if card.is_sequence:
        padded = card.type in ENCODERS and name.task != "causal-lm" if padding_mask is None else padding_mask
        return _tokens(name, attention, seq_len if raise_positions else None, train, padded)
    return _library_image(name, attention, image_size or card.default_image_size or 224, train)


def on_meta(make: "Callable[[], nn.Module]") -> "nn.Module":
    """Return the module that ``make`` builds, on the ``meta`` device.

    Some constructors read values that they compute (RegNet's widths), which ``meta`` does not have: for those
    ranges and constants are real, and what came of them moves to ``meta`` afterwards.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class RealConstants(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            if func in {torch.arange, torch.linspace, torch.tensor}:
                options["device"] = "cpu"
            return func(*args, **options)

    try:
        with torch.device("meta"):
            return make()
    except (NotImplementedError, RuntimeError) as error:
        if "meta tensor" not in str(error):
            raise
    with torch.device("meta"), RealConstants():
        return make().to("meta")


def _finished(module: "nn.Module", train: bool) -> "nn.Module":
    return module.train() if train else module.eval()


def _own(name: ModelName, train: bool) -> BuiltModel:
    from joulecast.workload.models.own import load_own_model

    own = load_own_model(name)
    return BuiltModel(
        name=name,
        module=_finished(own.module, train),
        make_inputs=own.make_inputs,
        loss=own.loss,
        is_sequence=own.is_sequence,
        default_seq_len=own.default_seq_len,
    )


def _mpt(name: ModelName, attention: str, seq_len: int | None, train: bool) -> BuiltModel:
    import torch

    from joulecast.workload.models.networks import Mpt
    from joulecast.workload.models.transformer_library import token_inputs

    entry = architectures()["mpt"][name.name]
    sizes = {key: entry[key] for key in ("layers", "hidden", "heads", "ffn", "vocab")}
    with torch.device("meta"):
        module = Mpt(**sizes, positions=seq_len or entry["default_seq_len"], fused=attention == "sdpa")
    return BuiltModel(
        name=name,
        module=_finished(module, train),
        make_inputs=token_inputs("mpt", name.task, train=train, padding_mask=False),
        loss=None,
        is_sequence=True,
        default_seq_len=entry["default_seq_len"],
        attention=attention,
        notes=("the position embedding has as many rows as the longest sequence asked for",),
    )


def _body_loss(output: Any, _: Any) -> "Tensor":
    """Return the mean of a bare body's output: it has no loss of its own."""
    mean: Tensor = output.last_hidden_state.mean()
    return mean


def _tokens(name: ModelName, attention: str, positions: int | None, train: bool, padded: bool) -> BuiltModel:
    from joulecast.workload.models.transformer_library import build_transformer, token_inputs

    card = model_card(name)
    module = build_transformer(name, attention=attention, image_size=None, positions=positions)
    balanced = "experts get equal shares of the tokens: routing by value depends on trained weights"
    return BuiltModel(
        name=name,
        module=_finished(module, train),
        make_inputs=token_inputs(card.type, name.task, train=train, padding_mask=padded),
        loss=_body_loss if name.task == "body" else None,
        is_sequence=True,
        default_seq_len=card.default_seq_len,
        attention=attention,
        notes=(balanced,) if card.type == "switch_transformers" else (),
    )


def _library_image(name: ModelName, attention: str, image_size: int, train: bool) -> BuiltModel:
    from joulecast.workload.models.transformer_library import build_transformer, pixel_inputs

    module = build_transformer(name, attention=attention, image_size=image_size, positions=None)
    return BuiltModel(
        name=name,
        module=_finished(module, train),
        make_inputs=pixel_inputs(name.task, image_size, train=train),
        loss=_body_loss if name.task == "body" else None,
        is_sequence=False,
        image_size=image_size,
        attention=attention,
    )


def _class_loss(output: Any, inputs: Any) -> "Tensor":
    """Return cross-entropy, with the weights the two Inception papers give their auxiliary heads.

    Inception v3 returns (logits, aux) and adds 0.4 of the second's loss [torchvision's fine-tuning tutorial];
    GoogLeNet returns (logits, aux2, aux1) and adds 0.3 of each (Szegedy et al., CVPR 2015, section 5).
    """
    from torch.nn.functional import cross_entropy

    labels = inputs[1]
    if not isinstance(output, tuple):
        return cross_entropy(output, labels)
    main, *auxiliary = (cross_entropy(part, labels) for part in output if part is not None)
    weight = 0.4 if len(auxiliary) == 1 else 0.3
    return sum((weight * part for part in auxiliary), start=main)


def _image_inputs(image_size: int) -> Callable[[int, int], Any]:
    import torch

    def make_inputs(batch_size: int, seq_len: int) -> "tuple[Tensor, Tensor]":
        images = torch.zeros(batch_size, 3, image_size, image_size)
        return images, torch.zeros(batch_size, dtype=torch.int64)

    return make_inputs


def _image(name: ModelName, attention: str, image_size: int, train: bool) -> BuiltModel:
    notes: tuple[str, ...] = ()
    if name.family == "torchvision":
        module = on_meta(lambda: _torchvision(name, attention, image_size))
    elif name.family == "timm":
        module, notes = _timm(name, attention, image_size)
    else:
        module = on_meta(lambda: _shufflenet(name))
    return BuiltModel(
        name=name,
        module=_finished(module, train),
        make_inputs=_image_inputs(image_size),
        loss=_class_loss,
        is_sequence=False,
        image_size=image_size,
        attention=attention or None,
        notes=notes,
    )


def _shufflenet(name: ModelName) -> "nn.Module":
    from joulecast.workload.models.networks import ShuffleNetV2Cifar

    entry = architectures()["shufflenet"][name.name]
    return ShuffleNetV2Cifar(entry["stem"], entry["stages"], entry["head"], entry["classes"])


def _torchvision(name: ModelName, attention: str, image_size: int) -> "nn.Module":
    library = _require("torchvision", name)
    options: dict[str, Any] = {}
    if name.name in {"inception_v3", "googlenet"}:
        options["init_weights"] = False  # their initialiser is slow and warns
    if name.name.startswith("vit_"):
        options["image_size"] = image_size
        patch = int(name.name.rpartition("_")[2])
        if image_size % patch:
            raise DoesNotFitError(f"{name}: image size {image_size} is no multiple of its patch size {patch}")
    module: nn.Module = library.models.get_model(name.name, weights=None, **options)
    if attention == "eager":
        from joulecast.workload.models.networks import use_eager_attention

        use_eager_attention(module)
    return module


@contextmanager
def _timm_attention(fused: bool) -> Iterator[None]:
    """Make timm's networks with or without fused attention; its switch is global, so set it back."""
    layers = importlib.import_module("timm.layers")
    before, experimental = layers.use_fused_attn(), layers.use_fused_attn(experimental=True)
    layers.set_fused_attn(fused, experimental=fused and experimental)
    try:
        yield
    finally:
        layers.set_fused_attn(before, experimental=experimental)


def _timm(name: ModelName, attention: str, image_size: int) -> tuple["nn.Module", tuple[str, ...]]:
    library = _require("timm", name)
    renamed = renamed_timm(name.name)
    present = name.name
    options: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if renamed is not None:
        present = renamed["present"]
        options.update(renamed.get("options", {}))
        notes = (f"{name.name} is built as {present}: {renamed['reason']}",)
    if not library.is_model(present):
        raise UsageError(f"timm {library.__version__} no longer has {present!r}; joulecast knows timm 1.0.31")
    settings = library.get_pretrained_cfg(present)
    if settings is not None and settings.fixed_input_size and settings.input_size[-1] != image_size:
        options["img_size"] = image_size
    with _timm_attention(fused=attention == "sdpa"):
        try:
            module = on_meta(lambda: library.create_model(present, pretrained=False, **options))
        except (TypeError, AssertionError, ValueError, ArithmeticError, RuntimeError) as error:
            if "img_size" not in options:
                raise
            raise DoesNotFitError(f"{name} does not take images of {image_size} pixels: {error}") from error
    return module, notes
