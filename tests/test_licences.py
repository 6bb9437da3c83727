"""The page of licences lists every package that the project installs."""

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from licences import PAGE, extras, licence, packages  # noqa: E402

ROWS = {
    name: (stated, {extra.strip("` ") for extra in where.split(",")})
    for name, stated, where in re.findall(
        r"^\| (\S+) \| (.+) \| (`.+`) \|$", PAGE.read_text(), re.M
    )
}


def test_every_requirement_is_listed_with_its_licence_and_extra():
    pytest.importorskip("torch")
    for extra, listed in extras().items():
        for name in {Requirement(text).name.lower() for text in listed} - {"antipodal"}:
            stated, where = ROWS[name]
            assert where & {"core", extra}, name
            assert stated == licence(name)


def test_indirect_requirements_and_other_extras_are_followed():
    assert {"requests", "urllib3", "certifi"} <= packages(["requests>=2"])
    assert "psycopg-binary" in packages(["psycopg[binary]"])
    assert "psycopg-binary" not in packages(["psycopg"])
    assert "pyarrow" in packages(["antipodal[parquet]"])


def test_copyleft_licences_are_marked():
    assert re.fullmatch(r"\*\*LGPL-3\.0.*\*\*", ROWS["psycopg"][0])
    assert all("**" in stated for stated, _ in ROWS.values() if "GPL" in stated)
    assert "LGPL" in (ROOT / "README.md").read_text()
