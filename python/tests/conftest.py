"""Set-up for all tests: each begins and ends with the initial default resource."""

import gc

import pytest

import millpond


@pytest.fixture(autouse=True)
def _initial_default():
    millpond.mr.reset_per_device_resource(None)
    yield
    millpond.disable_logging()
    millpond.mr.reset_per_device_resource(None)
    gc.collect()


def needs(text):
    """Build a stack, or skip the test if the device does not support it."""
    try:
        return millpond.stack(text)
    except millpond.UnsupportedError as error:
        pytest.skip(f"{text}: {error}")
