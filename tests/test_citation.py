"""CITATION.cff is about this version, and about the papers that methods name."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_the_version_and_the_papers_are_those_of_the_code():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == project["version"]
    assert citation["title"].startswith(project["name"])
    cited = {
        each["value"] for paper in citation["references"] for each in paper.get("identifiers", [])
    }
    for method in ("feder", "fedrewind", "cwc", "fil_ver", "fedspace"):
        text = (ROOT / "strategies" / f"{method}.py").read_text("utf-8")
        assert re.findall(r"arXiv:\d+\.\d+", text)[0] in cited
