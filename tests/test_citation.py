"""CITATION.cff and ro-crate-metadata.json are about this version; methods name cited papers."""

import json
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
    for file in ("strategies/sums.py", "gan/class_gaussians.py"):  # all that they name
        assert {*re.findall(r"arXiv:\d+\.\d+", (ROOT / file).read_text("utf-8"))} <= cited


def test_the_repository_as_a_workflow_crate_is_of_this_version():
    graph = json.loads((ROOT / "ro-crate-metadata.json").read_text("utf-8"))["@graph"]
    found = {each["@id"]: each for each in graph}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    app = found[found["./"]["mainEntity"]["@id"]]
    assert (app["name"], app["version"]) == (project["name"], project["version"])
    assert app["license"]["@id"] == "https://spdx.org/licenses/Apache-2.0"
    assert "Apache License" in (ROOT / project["license"]["file"]).read_text("utf-8")
    assert all((ROOT / part["@id"]).is_file() for part in found["./"]["hasPart"])
