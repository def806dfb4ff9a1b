"""Every public name has a complete docstring, and its examples run."""

import doctest
import inspect
import re
import statistics

import documented
import pytest

import millpond

PUBLIC = documented.public()


def test_the_public_names_are_found():
    for name in (
        "millpond.DeviceBuffer.copy_to_host",
        "millpond.Stream.ptr",
        "millpond._native.Resource.allocate",
        "millpond.mr.PoolMemoryResource",
        "millpond.mr.BinningMemoryResource.bin_mrs",
        "millpond.torch.use",
        "millpond.typing.CudaStream",
    ):
        assert name in PUBLIC
    assert len(PUBLIC) > 170


def test_each_public_name_is_documented():
    assert [lack for name, value in PUBLIC.items() for lack in documented.lacks(name, value)] == []


def test_each_module_is_documented():
    for name, module in documented.modules().items():
        assert module.__doc__ and module.__doc__.split("\n")[0].endswith((".", "`.", ":")), name


def test_what_a_docstring_lacks_is_found():
    """The canary of the test above."""

    def bare(size):
        pass

    def named(size):
        """Allocate."""

    def explained(size):
        """Allocate.

        Args:
            size: The size in bytes.
        """

    assert documented.lacks("bare", bare) == ["bare: has no docstring"]
    expected = ["named: does not say what size is", "named: has no example"]
    assert documented.lacks("named", named) == expected
    assert documented.lacks("explained", explained) == ["explained: has no example"]


def test_docstrings_say_more_than_a_name():
    words = [len((value.__doc__ or "").split()) for value in PUBLIC.values()]
    # The median was 12 when no docstring had an example.
    assert statistics.median(words) >= 30


def test_sizes_and_times_have_units():
    """The docstring of a size or a time names its unit."""
    sizes = re.compile(r"^(size|nbytes|.*_size|.*_bytes|allocation_limit|headroom|timeout)$")
    for name, value in PUBLIC.items():
        text = inspect.getdoc(value) or ""
        for parameter in documented.parameters(value):
            if not sizes.match(parameter) or parameter in ("pool_size", "parse_size"):
                continue
            described = re.search(rf"(?ms)^ +{parameter}: (.*?)(?=^ +\w+: |\n\n|\Z)", text)
            unit = described and re.search(r"bytes?\b|second|in the same forms", described[1])
            assert unit, (name, parameter)


def examples():
    """Return the examples of all docstrings, grouped by module, with the docstrings of the modules."""
    parser, found = doctest.DocTestParser(), {}
    for name, value in (documented.modules() | PUBLIC).items():
        text = inspect.getdoc(value) if value.__doc__ else ""
        if ">>>" in (text or ""):
            module = next(it for it in sorted(documented.modules(), reverse=True) if name.startswith(it))
            found.setdefault(module, []).append(parser.get_doctest(text, {}, name, None, None))
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("module", EXAMPLES)
def test_each_example_does_what_it_says(module, tmp_path, monkeypatch):
    if not millpond.Device().is_simulated:
        pytest.skip("the examples are for the simulated device")
    monkeypatch.chdir(tmp_path)
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for example in EXAMPLES[module]:
        # Each example begins with the initial default resource, as in a new program.
        millpond.mr.reset_per_device_resource(None)
        runner.run(example, out=said.append)
    assert said == [], "".join(said)


def test_the_examples_are_found_and_run():
    all_of_them = [step for module in EXAMPLES.values() for each in module for step in each.examples]
    run = [step for step in all_of_them if doctest.SKIP not in step.options]
    assert len(run) > 300, "most examples need no GPU and no framework"


def test_an_example_that_is_wrong_is_found():
    """The canary of the tests above."""
    said = []
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    doctest.DocTestRunner().run(wrong, out=said.append)
    assert "Expected:\n    3" in "".join(said)
