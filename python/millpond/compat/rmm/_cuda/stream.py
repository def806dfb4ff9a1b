"""RMM's module `rmm._cuda.stream`, which holds the streams in versions up to 25.02."""

from ..pylibrmm.stream import Stream

__all__ = ["Stream"]
