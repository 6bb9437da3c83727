"""Scripts outside the package compile, and their imports from the package exist."""

import ast
from importlib import import_module, util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "campaigns", "examples")
    for path in (ROOT / folder).glob("*.py")
)


def imported(tree):
    """Yield module and name of every import from the package in a script."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "antipodal":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "antipodal":
                    yield alias.name, None


def attributes(tree):
    """Yield the attributes of package modules used in a script, such as datasets.digits."""
    modules = {}
    for module, name in imported(tree):
        if name is not None and util.find_spec(module) and _is_module(f"{module}.{name}"):
            modules[name] = f"{module}.{name}"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            yield modules[node.value.id], node.attr


def _is_module(name):
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_scripts_are_collected():
    assert {"render.py", "supervised_codes.py"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_script_compiles_and_its_imports_exist(path):
    source = path.read_text()
    compile(source, str(path), "exec")
    tree = ast.parse(source)
    for module, name in [*imported(tree), *attributes(tree)]:
        if module.startswith("antipodal.integrations"):
            pytest.importorskip(module, reason="needs the dependency group integrations")
        found = import_module(module)
        assert name is None or hasattr(found, name) or _is_module(f"{module}.{name}"), (
            module,
            name,
        )
