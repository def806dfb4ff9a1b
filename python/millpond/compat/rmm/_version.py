"""RMM's module `rmm._version`, with the RMM version whose interface this package offers."""

__version__ = "26.10.00"
__git_commit__ = ""

__all__ = ["__git_commit__", "__version__"]
