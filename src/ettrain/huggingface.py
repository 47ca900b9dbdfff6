"""For transformers' `Trainer`: `from ettrain.huggingface import Checkpoint`."""

from ettrain.boost.frameworks.transformers import Checkpoint

__all__ = ["Checkpoint"]
