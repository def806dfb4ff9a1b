"""States of a model, for all models: `values.py` and `prove.py` say what their fields are."""


class State:
    """A state: a function for each field."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def but(self, **changed):
        """Returns the state with other functions for some fields."""
        return State(**{**self.__dict__, **changed})


def put(logic, field, key, to):
    """Returns the field with another value at one place."""
    return lambda at: logic.ite(at == key, to, field(at))


def parts_of(names):
    """Returns the parts of a model's invariant by their numbers: its functions `part_1`, `part_2`, …"""
    prefix = "part_"
    return {int(name.removeprefix(prefix)): part for name, part in names.items() if name.startswith(prefix)}
