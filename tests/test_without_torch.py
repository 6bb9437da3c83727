"""Without PyTorch: every saved model encodes, and every hasher that is no network is fitted."""

import json
import re
import subprocess
import sys
from pathlib import Path

from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import built_in_hashers

DATA = Path(__file__).parent / "data" / "0.6.1"
SOURCE = Path(__file__).parent.parent / "src" / "antipodal"
BLOCKED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
FITTED = [name for name, kind in built_in_hashers().items() if not issubclass(kind, NetworkHasher)]
NETWORKS = sorted(set(built_in_hashers()) - set(FITTED))


RUN = """
import json, traceback

errors = {}
for name, program in json.loads(sys.argv[1]).items():
    try:
        exec(program, {})
    except Exception:
        errors[name] = traceback.format_exc()
json.dump(errors, open(sys.argv[2], "w"))
"""
PROGRAMS = {
    f"{module} can be imported": f"import antipodal.{module}"
    for module in ("cli", "paper.admm", "paper.dictionary", "paper.solver")
}


PROGRAMS["every saved model encodes"] = f"""
import numpy as np
from pathlib import Path
from antipodal import load
rows, expected = np.load({str(DATA / "rows.npy")!r}), np.load({str(DATA / "expected.npz")!r})
paths = sorted(Path({str(DATA)!r}).glob("*.antipodal"))
assert len(paths) > 20
for path in paths:
    np.testing.assert_array_equal(load(path).encode(rows), expected[path.stem + ".codes"])
"""

PROGRAMS["every hasher but networks is fitted, encodes and answers queries"] = f"""
import numpy as np, antipodal
from antipodal.hashers.registry import make_hasher
from sklearn.datasets import load_digits
X, y = load_digits(return_X_y=True)
X, y = X[:300], y[:300]
for name in {FITTED} + ["LinfHash.asymmetric", "LinfHash.quick"]:
    hasher = make_hasher(name, 16, 0).fit(X, y)
    codes = hasher.encode(X)
    hasher.save("model")
    loaded = antipodal.load("model")
    np.testing.assert_array_equal(loaded.encode(X), codes)
    assert loaded.query(X[:3]).shape == (3, 16)
"""

PROGRAMS["networks name the extra that training needs"] = f"""
import antipodal
for name in {NETWORKS}:
    for fit in (lambda h: h.fit([[0.0], [1.0]], [0, 1]),
                lambda h: h.fit_pairs([[0.0], [1.0]], [[0, 1]], [1])):
        try:
            fit(getattr(antipodal, name)(8))
        except antipodal.AntipodalError as error:
            assert "antipodal[train]" in str(error) or ".[train]" in str(error), error
        except ValueError:
            assert name in ("CSQ", "OrthoHash")  # which cannot learn from pairs
        else:
            raise AssertionError(name)
"""

PROGRAMS["the paper solves arrays and images have descriptors"] = """
import numpy as np
from antipodal import audit, gist, ksvd, solve_linf
rng = np.random.default_rng(0)
D = ksvd(rng.standard_normal((50, 6)), 4, sparsity=2, random_state=0).dictionary
solution = solve_linf(rng.standard_normal((5, 6)), D, 0.3)
assert type(solution.codes) is type(D) is np.ndarray and solution.converged
assert gist(rng.integers(0, 255, (2, 16, 16))).shape == (2, 384)
assert audit(rng.standard_normal((300, 16)), bits=(16,), k=3)
"""


def test_programs_run_without_pytorch(tmp_path):
    """Run all programs in one process: each imports the library without PyTorch."""
    command = [sys.executable, "-c", BLOCKED + RUN, json.dumps(PROGRAMS), tmp_path / "errors"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    errors = json.loads((tmp_path / "errors").read_text())
    assert not errors, "\n".join(f"{name}:\n{error}" for name, error in errors.items())


def test_only_the_paper_imports_torch_when_it_is_imported():
    importing = {
        path.relative_to(SOURCE).parts[0]
        for path in SOURCE.rglob("*.py")
        if re.search(r"^(import|from) torch", path.read_text(), re.MULTILINE)
    }
    assert importing == {"paper"}
