"""Interfaces of other libraries on top of millpond. `millpond.compat.rmm` is RMM's Python interface."""
