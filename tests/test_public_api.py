"""The promise of `antipodal.__all__`: there, documented, and cheap to import."""

import pkgutil
import subprocess
import sys

import pytest

import antipodal


@pytest.mark.parametrize("name", antipodal.__all__)
def test_every_public_name_exists_and_has_a_docstring(name):
    value = getattr(antipodal, name)
    assert value.__doc__
    assert callable(value) or name in ("bulk", "datasets")
    assert name in dir(antipodal)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        _ = antipodal.nothing


def test_importing_the_package_does_not_import_torch():
    code = "import antipodal, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_public_name_is_also_a_module_that_would_replace_it():
    modules = {module.name for module in pkgutil.iter_modules(antipodal.__path__)}
    assert modules & set(antipodal.__all__) == {"bulk", "datasets"}
