"""The rules of the house that no linter knows: who may import ray and torch, how files are named, how long they are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = ("kernels", "storage", "cluster", "api", "actors", "deploy")
CODE = sorted(path.relative_to(ROOT) for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
OTHERS = sorted(
    path.relative_to(ROOT) for floor in ("tests", "bench") for path in (ROOT / floor).rglob("*.py")
)
LONGEST = 400


def imported(path: Path) -> Iterator[str]:
    """Full names of all modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""


def packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def may_import_ray(path: Path) -> bool:
    """Only the shells of actors and what starts them."""
    actor = path.parts[0] == "actors" and (path.name == "actor.py" or path == Path("actors/shell.py"))
    return actor or path.parts[0] == "deploy"


def may_import_torch(path: Path) -> bool:
    """Not the decisions: whatever is above the kernels, save the worker's own code and the conversion of models."""
    return path.parts[0] in ("kernels", "deploy") or path.parts[:2] == ("actors", "worker")


def test_there_is_code():
    assert len(CODE) > 50


@pytest.mark.parametrize("path", CODE, ids=str)
def test_a_file_keeps_the_rules(path: Path):
    names = packages(path)
    assert "ray" not in names or may_import_ray(path), f"{path} may not import ray"
    assert "torch" not in names or may_import_torch(path), f"{path} may not import torch"
    assert not names & set(FLOORS), f"{path}: import stratakv.x, never the bare folder"
    lines = len((ROOT / path).read_text().splitlines())
    assert lines <= LONGEST, f"{path} has {lines} lines; split it"


@pytest.mark.parametrize("path", OTHERS, ids=str)
def test_tests_and_benches_import_the_package_and_never_the_bare_folders(path: Path):
    assert not packages(path) & set(FLOORS)


def test_each_folder_is_reachable_through_the_package():
    links = {link.name: link for link in (ROOT / "stratakv").iterdir() if link.is_symlink()}
    assert set(FLOORS) <= set(links)
    for name, link in links.items():
        assert link.resolve() == ROOT / name
        assert not link.readlink().is_absolute(), f"{link} must work in every checkout"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("import ray", False),
        ("from ray.util import metrics", False),
        ("import array", True),
        ("x = 'import ray'", True),
    ],
)
def test_the_scan_sees_imports(tmp_path: Path, text: str, allowed: bool):
    file = tmp_path / "x.py"
    file.write_text(f"def f():\n    {text}\n")
    assert ("ray" not in packages(file)) is allowed


def test_links_of_the_documentation_lead_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert len(links) > 20
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []
