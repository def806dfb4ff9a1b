"""RMM's module `rmm._cuda.stream`. RMM has its streams there in versions up to 25.02."""

from ..pylibrmm.stream import Stream

__all__ = ["Stream"]
