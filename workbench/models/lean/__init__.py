"""A Llama- or Gemma-3-shaped Hugging Face model comes in; the same model with a short way through it goes out."""

from .model import LeanModel
from .packed import BlockFile
from .rows import LeanRows

__all__ = ["BlockFile", "LeanModel", "LeanRows"]
