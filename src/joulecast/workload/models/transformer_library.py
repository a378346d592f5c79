"""Transformers by their sizes, from the transformers library but never its hub. Needs torch."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import torch
import transformers
from torch import nn

from joulecast.workload.models.names import ENCODERS, ModelName, architectures
from joulecast.workload.models.networks import balance_experts

#: Our size -> the library's argument, by architecture type.
_COMMON: Final = MappingProxyType(
    {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "ffn": "intermediate_size",
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
        "activation": "hidden_act",
        "kv_heads": "num_key_value_heads",
        "tied_head": "tie_word_embeddings",
        "image_size": "image_size",
        "patch": "patch_size",
        "embedding": "embedding_size",
        "hidden_groups": "num_hidden_groups",
    }
)
_SPECIAL: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "distilbert": {
            "layers": "n_layers",
            "hidden": "dim",
            "heads": "n_heads",
            "ffn": "hidden_dim",
            "activation": "activation",
        },
        "gpt2": {
            "layers": "n_layer",
            "hidden": "n_embd",
            "heads": "n_head",
            "positions": "n_positions",
            "activation": "activation_function",
        },
        "opt": {
            "ffn": "ffn_dim",
            "word_embedding": "word_embed_proj_dim",
            "layer_norm_before": "do_layer_norm_before",
            "activation": "activation_function",
        },
        "switch_transformers": {
            "encoder_layers": "num_layers",
            "decoder_layers": "num_decoder_layers",
            "d_model": "d_model",
            "d_kv": "d_kv",
            "d_ff": "d_ff",
            "heads": "num_heads",
            "experts": "num_experts",
            "expert_capacity": "expert_capacity",
        },
    }
)
_DROPOUT: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        "roberta": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        "albert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        "distilbert": ("dropout", "attention_dropout"),
        "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    }
)
_CONFIG_CLASS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bert": "BertConfig",
        "roberta": "RobertaConfig",
        "distilbert": "DistilBertConfig",
        "albert": "AlbertConfig",
        "gpt2": "GPT2Config",
        "opt": "OPTConfig",
        "qwen2": "Qwen2Config",
        "llama": "LlamaConfig",
        "mistral": "MistralConfig",
        "vit": "ViTConfig",
        "mobilevit": "MobileViTConfig",
        "switch_transformers": "SwitchTransformersConfig",
    }
)
_AUTO_CLASS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "body": "AutoModel",
        "sequence-classification": "AutoModelForSequenceClassification",
        "question-answering": "AutoModelForQuestionAnswering",
        "masked-lm": "AutoModelForMaskedLM",
        "causal-lm": "AutoModelForCausalLM",
        "image-classification": "AutoModelForImageClassification",
    }
)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's advice on configurations while one is built."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def config_options(name: ModelName, *, image_size: int | None, positions: int | None) -> dict[str, Any]:
    """Return the arguments of the library's configuration class for a named model.

    Parameters
    ----------
    name : ModelName
        Of family ``hf`` or ``config``.
    image_size : int, optional
        Pixels along an edge, instead of the published size.
    positions : int, optional
        Longest sequence wanted; the position embedding is made longer if needed, never shorter.
    """
    entry = dict(architectures()[name.family][name.name])
    kind = entry["type"]
    if image_size is not None and "image_size" in entry:
        entry["image_size"] = image_size
    if positions is not None and "positions" in entry:
        entry["positions"] = max(entry["positions"], positions)
    names = {**_COMMON, **_SPECIAL.get(kind, {})}
    options = {names[size]: value for size, value in entry.items() if size in names}
    options.update(dict.fromkeys(_DROPOUT.get(kind, ()), entry.get("dropout", 0.1)))
    return options | _peculiarities(kind, entry)


def _peculiarities(kind: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a type needs besides sizes."""
    if kind in {"vit", "mobilevit"}:
        return {"num_labels": 1000}
    if kind == "roberta":
        # positions start after the padding index
        return {"max_position_embeddings": entry["positions"] + 2, "type_vocab_size": 1}
    if kind in ENCODERS:
        return {}
    if kind == "switch_transformers":
        sparse = entry["sparse_step"]
        return {
            "num_sparse_encoder_layers": entry["encoder_layers"] // sparse,
            "num_sparse_decoder_layers": entry["decoder_layers"] // sparse,
            "use_cache": False,
        }
    # no key-value cache in a training step; a padding token is needed to classify sequences
    return {"use_cache": False, "pad_token_id": 0}


def build_transformer(
    name: ModelName, *, attention: str, image_size: int | None, positions: int | None
) -> nn.Module:
    """Return a transformer of the named sizes on the ``meta`` device.

    Parameters
    ----------
    name : ModelName
        Of family ``hf`` or ``config``.
    attention : str
        ``sdpa`` or ``eager``, as the architecture supports.
    image_size, positions : int, optional
        See `config_options`.
    """
    kind = architectures()[name.family][name.name]["type"]
    options = config_options(name, image_size=image_size, positions=positions)
    auto = _AUTO_CLASS[name.task]
    if kind == "switch_transformers" and name.task == "causal-lm":
        auto = "AutoModelForSeq2SeqLM"
    with _quiet(), torch.device("meta"):
        config = getattr(transformers, _CONFIG_CLASS[kind])(**options)
        module: Any = getattr(transformers, auto).from_config(config, attn_implementation=attention)
    if name.task == "causal-lm":
        module.loss_type = "ForCausalLM"  # not to be seen in BertLMHeadModel's name
    if kind == "switch_transformers":
        from transformers.models.switch_transformers import modeling_switch_transformers as switch

        balance_experts(module, switch.SwitchTransformersSparseMLP)
    return module  # type: ignore[no-any-return]


def token_inputs(kind: str, task: str, *, train: bool, padding_mask: bool) -> Any:
    """Return ``make_inputs(batch_size, seq_len)`` for a network that reads tokens.

    Every token is 1 and every position is valid. ``padding_mask`` says whether the mask is passed: the
    library then reads its values on a GPU and drops it if nothing is padded, but keeps it where values
    cannot be read, as in a trace; so a mask in the inputs means a batch with padding in it.
    """

    def make_inputs(batch_size: int, seq_len: int) -> dict[str, torch.Tensor]:
        ids = torch.ones(batch_size, seq_len, dtype=torch.int64)
        inputs = {"input_ids": ids}
        if padding_mask:
            inputs["attention_mask"] = torch.ones(batch_size, seq_len, dtype=torch.int64)
        if kind == "switch_transformers":
            # with labels the library shifts them into the decoder's input itself, reading their values
            inputs["decoder_input_ids"] = torch.ones(batch_size, seq_len, dtype=torch.int64)
        if train:
            inputs |= _labels(task, batch_size, seq_len)
        return inputs

    return make_inputs


def _labels(task: str, batch_size: int, seq_len: int) -> dict[str, torch.Tensor]:
    if task == "body":
        return {}
    if task == "question-answering":
        ends = ("start_positions", "end_positions")
        return {key: torch.ones(batch_size, dtype=torch.int64) for key in ends}
    shape = (batch_size,) if task.endswith("classification") else (batch_size, seq_len)
    return {"labels": torch.ones(shape, dtype=torch.int64)}


def pixel_inputs(task: str, image_size: int, *, train: bool) -> Any:
    """Return ``make_inputs(batch_size, seq_len)`` for a library network that reads images."""

    def make_inputs(batch_size: int, seq_len: int) -> dict[str, torch.Tensor]:
        inputs = {"pixel_values": torch.zeros(batch_size, 3, image_size, image_size)}
        return inputs | (_labels(task, batch_size, seq_len) if train else {})

    return make_inputs
