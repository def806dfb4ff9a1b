"""What all tests share: each begins and ends with the initial default resource."""

import gc

import pytest
from hypothesis import settings

import millpond

# The first call on a device takes as long as it takes; no test here fails because of time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _initial_default():
    millpond.mr.reset_per_device_resource(None)
    yield
    millpond.disable_logging()
    millpond.mr.reset_per_device_resource(None)
    gc.collect()


def needs(text):
    """Build a stack, or skip where the device cannot have it."""
    try:
        return millpond.stack(text)
    except millpond.UnsupportedError as error:
        pytest.skip(f"{text}: {error}")
