"""Finds the public names of the package with their docstrings, and lists the gaps in a docstring."""

import importlib
import inspect
import pkgutil
import re
import types

import millpond
from millpond import _native

#: Methods and properties of native classes, whose types differ from those that Python code makes.
_NATIVE = (types.GetSetDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)


def modules():
    """Return the importable public modules by name. Modules that re-export others' classes come last."""
    found = {"millpond": millpond}
    for module in pkgutil.walk_packages(millpond.__path__, "millpond.", onerror=lambda name: None):
        name = module.name
        if "._" not in name:
            try:
                found[name] = importlib.import_module(name)
            except ImportError as error:
                # A module for a framework that is not installed, such as Dask.
                if "pip install" not in str(error):
                    raise
    return dict(sorted(found.items(), key=lambda item: item[0].startswith("millpond.compat.")))


def public():
    """Return the public classes, functions, methods and properties by name, each once."""
    found, seen = {}, set()
    for module_name, module in modules().items():
        names = getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]
        for name in names:
            value = getattr(module, name)
            # In a module without `__all__`: its own names, without the names that it imports.
            home = str(getattr(value, "__module__", ""))
            if not callable(value) or (home != module_name and not hasattr(module, "__all__")):
                continue
            _add(found, seen, f"{module_name}.{name}", value)
    # The base class of all resources. Each resource has its methods.
    _add(found, seen, "millpond._native.Resource", _native.Resource)
    # The members of a native class come in a different order in each process.
    return dict(sorted(found.items()))


def _add(found, seen, name, value):
    if not callable(value) or id(value) in seen:
        return
    seen.add(id(value))
    found[name] = value
    if inspect.isclass(value):
        for key, member in vars(value).items():
            member = getattr(member, "__func__", member)  # of a static method
            if key.startswith("_") or id(member) in seen:
                continue
            if isinstance(member, (property, *_NATIVE)) or callable(member):
                seen.add(id(member))
                found[f"{name}.{key}"] = member


def parameters(value):
    """Return the names of the parameters that a caller passes."""
    if isinstance(value, (property, types.GetSetDescriptorType)):
        return []
    if inspect.isclass(value) and (issubclass(value, BaseException) or hasattr(value, "_is_protocol")):
        return []
    try:
        signature = inspect.signature(value)
    except ValueError:  # of an enumeration, as Python writes it
        return []
    if inspect.isclass(value) and issubclass(value, int):
        return []
    return [name for name in signature.parameters if name != "self" and not name.startswith("_")]


def lacks(name, value):
    """Return the gaps in the docstring of a public name, one finding in each text."""
    text = inspect.getdoc(value) or ""
    own = value.__doc__ or ""
    if not own.strip():
        return [f"{name}: has no docstring"]
    found = []
    if not re.match(r"[^\n]+[.:]", text):
        found.append(f"{name}: its docstring does not begin with a sentence")
    missing = [each for each in parameters(value) if not re.search(rf"(?m)^ +\*?\*?{each}: \S", text)]
    if missing:
        found.append(f"{name}: does not say what {', '.join(missing)} is")
    if missing == [] and parameters(value) and "Args:\n" not in text:
        found.append(f"{name}: has no section `Args:`")
    # The class of a protocol has the example for its members.
    if ">>> " not in text and not (isinstance(value, property) and name.startswith("millpond.typing.")):
        found.append(f"{name}: has no example")
    return found
