"""RMM's module `rmm._version`, with the version of RMM whose interface is served."""

__version__ = "26.10.00"
__git_commit__ = ""

__all__ = ["__git_commit__", "__version__"]
