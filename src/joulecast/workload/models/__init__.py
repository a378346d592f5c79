"""Named models: what a name means (no torch), and the modules behind the names (torch, imported on use).

Builders are in `builders`; import that module only where torch may be.
"""

from joulecast.workload.models.names import (
    ModelCard,
    ModelName,
    check_seq_len,
    known_models,
    model_card,
    resolve_model,
    short_names,
)

__all__ = [
    "ModelCard",
    "ModelName",
    "check_seq_len",
    "known_models",
    "model_card",
    "resolve_model",
    "short_names",
]
