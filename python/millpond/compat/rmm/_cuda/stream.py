"""RMM's module `rmm._cuda.stream`, where its versions up to 25.02 have the streams."""

from ..pylibrmm.stream import Stream

__all__ = ["Stream"]
