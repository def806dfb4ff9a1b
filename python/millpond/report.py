"""Reports the use of a stack's memory as text, as a dict, and as a table in a notebook."""

import html
import json
from typing import Any

from . import mr as _mr
from ._native import Resource


class MemoryReport:
    """The use of a stack's memory at one moment. A notebook shows it as a table.

    `memory_report` makes this object.

    Args:
        text: The report as text.
        data: The same report as a dict, with sizes in bytes.

    Attributes:
        text: The report as text; `str(report)` is the same.
        data: The same report as a dict, with sizes in bytes.

    Example:
        >>> import millpond
        >>> report = millpond.memory_report(millpond.stack("cuda+pool:initial=1MiB"))
        >>> print(str(report) == report.text, report.data["stack"].startswith("cuda+pool"))
        True True
    """

    def __init__(self, text: str, data: dict[str, Any]) -> None:
        #: The report as text.
        self.text = text
        #: The same report as a dict.
        self.data = data

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<MemoryReport of `{self.data.get('stack', '')}`>"

    def _repr_html_(self) -> str:
        return f"<table>{_rows(self.data)}</table>"


def _rows(data: dict[str, Any]) -> str:
    rows = []
    for name, value in data.items():
        if isinstance(value, dict):
            cell = f"<table>{_rows(value)}</table>"
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            cell = "".join(f"<table>{_rows(item)}</table>" for item in value)
        else:
            cell = html.escape(str(value))
        rows.append(f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{cell}</td></tr>")
    return "".join(rows)


def memory_report(resource: Resource | None = None) -> MemoryReport:
    """Report the use of a stack's memory, layer by layer.

    Args:
        resource: The stack; None means the current device's default resource.

    Returns:
        The report, with sizes in bytes.

    Raises:
        TypeError: `resource` is not a resource.

    Example:
        >>> import millpond
        >>> resource = millpond.stack("cuda+pool:initial=1MiB")
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=resource)
        >>> "in use" in str(millpond.memory_report(resource))
        True
    """
    if resource is None:
        resource = _mr.get_current_device_resource()
    _mr._checked(resource, "resource")
    text, data = resource._report()
    return MemoryReport(text, json.loads(data))
