"""A small language model of its own package."""

from .model import TextModel

__all__ = ["TextModel"]
