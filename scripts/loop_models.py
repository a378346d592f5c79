"""Small networks of the loop's families: so small that a step takes a tenth of a second on one core.

Each function returns what `joulecast predict scripts/loop_models.py:NAME` takes: a module and its inputs.
"""

import torch
import transformers

_VOCAB = 8192
_WIDTH, _LAYERS, _HEADS = 256, 4, 4


def _classified(batch_size, seq_len=64):
    tokens = torch.randint(_VOCAB, (batch_size, seq_len))
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": torch.zeros(batch_size, dtype=torch.long),
    }


def _continued(batch_size, seq_len=64):
    tokens = torch.randint(_VOCAB, (batch_size, seq_len))
    return {"input_ids": tokens, "labels": tokens}


def bert():
    """Return a BERT of 4 layers that classifies."""
    config = transformers.BertConfig(
        vocab_size=_VOCAB,
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
    )
    return transformers.BertForSequenceClassification(config), _classified


def distilbert():
    """Return a DistilBERT of 3 layers that classifies."""
    config = transformers.DistilBertConfig(
        vocab_size=_VOCAB, dim=_WIDTH, n_layers=_LAYERS - 1, n_heads=_HEADS, hidden_dim=4 * _WIDTH
    )
    return transformers.DistilBertForSequenceClassification(config), _classified


def albert():
    """Return an ALBERT whose one layer runs 4 times."""
    config = transformers.AlbertConfig(
        vocab_size=_VOCAB,
        embedding_size=_WIDTH // 2,
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
    )
    return transformers.AlbertForSequenceClassification(config), _classified


def llama():
    """Return a Llama of 4 layers that continues text."""
    config = transformers.LlamaConfig(
        vocab_size=_VOCAB,
        hidden_size=_WIDTH,
        intermediate_size=704,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
    )
    return transformers.LlamaForCausalLM(config), _continued


def vit():
    """Return a ViT of 6 layers on 64 x 64 pixels that classifies."""
    config = transformers.ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=64,
        patch_size=8,
    )

    def make_inputs(batch_size):
        return {
            "pixel_values": torch.randn(batch_size, 3, 64, 64),
            "labels": torch.zeros(batch_size, dtype=torch.long),
        }

    return transformers.ViTForImageClassification(config), make_inputs
