"""Metrics."""

from typing import assert_type

import millpond

millpond.metrics.register(millpond.stack("cuda+pool"), "train")
assert_type(millpond.metrics.render(), str)
assert_type(millpond.metrics.CONTENT_TYPE, str)
