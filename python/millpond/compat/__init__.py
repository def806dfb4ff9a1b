"""The interfaces of other libraries over millpond: `millpond.compat.rmm` is RMM's for Python."""
