"""RMM's module `rmm._version`. `__version__` is the RMM version whose interface this package has."""

__version__ = "26.10.00"
__git_commit__ = ""

__all__ = ["__git_commit__", "__version__"]
