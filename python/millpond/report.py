"""What a stack's memory is used for, as text, as a dict, and as a table in a notebook."""

import html
import json

from . import mr as _mr


class MemoryReport:
    """The memory of a stack at one time."""

    def __init__(self, text, data):
        #: The report as text.
        self.text = text
        #: The same as a dict.
        self.data = data

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"<MemoryReport of `{self.data.get('stack', '')}`>"

    def _repr_html_(self):
        return f"<table>{_rows(self.data)}</table>"


def _rows(data):
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


def memory_report(resource=None):
    """Return the report of a resource, else of the current one."""
    text, data = (resource or _mr.get_current_device_resource())._report()
    return MemoryReport(text, json.loads(data))
