"""Interfaces of other libraries, implemented by millpond. `millpond.compat.rmm` is RMM's Python interface."""
