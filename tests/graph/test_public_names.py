"""The names a user imports."""

import importlib
import pkgutil

import pytest

PACKAGES = ("daydream", "daydream.costs", "daydream.memory", "daydream.model", "daydream.transforms")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_are_sorted_and_each_has_one_home(package):
    module = importlib.import_module(package)
    loaded = [name for names in module._HOMES.values() for name in names]

    assert len(set(module.__all__)) == len(module.__all__)
    assert len(set(loaded)) == len(loaded)
    assert set(module.__all__) - {"stages"} <= set(loaded)  # a module that is there at once
    for home, names in module._HOMES.items():
        assert all(hasattr(importlib.import_module(home), name) for name in names)


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_no_public_name_is_also_that_of_a_file(package):
    module = importlib.import_module(package)
    files = {found.name for found in pkgutil.iter_modules(module.__path__)}

    assert files & set(module.__all__) == files & {"stages"}
