"""The shape of the house in numbers: `python benchmarks/structure.py [ROOT ...] [--json] [--no-request]`.

A column for each checkout, this one by default. What a chat request enters is counted in that checkout's own contract
test, against a whole gateway with a real, tiny model; give it the environment of this checkout.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import subprocess
import sys
import tempfile
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

HERE = Path(__file__).resolve().parent
PACKAGES = ("gateway", "engine", "kernels")
REQUEST = "tests/contract/test_openai_sdk.py::test_a_real_model_answers"
SMALL_LINES = 80
CROWD = 10
"""Packages with at least so many rooms are shown; a room is a module or a package directly inside."""

Figures = dict[str, float | str]


def request_figures(root: Path) -> Figures:
    """Files and functions that one chat request, not streamed, enters; of this repository, in the gateway's threads."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "entered.json"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{root}{os.pathsep}{HERE}",
            "ENTERED_FILE": str(file),
            "OMP_NUM_THREADS": "1",
        }
        options = ["-q", "-p", "entered", "-p", "no:cacheprovider", "--timeout", "600"]
        command = [sys.executable, "-m", "pytest", *options, REQUEST]
        ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{root}: the request could not be counted\n{ran.stdout[-3000:]}{ran.stderr[-1000:]}")
        found = json.loads(file.read_text(encoding="utf-8"))
    return {"files entered by one chat request": found["files"], "functions entered by it": found["functions"]}


def graph_of(root: Path) -> grimp.ImportGraph:
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        return grimp.build_graph(*PACKAGES, cache_dir=None)
    finally:
        sys.path.remove(str(root))


def module_figures(root: Path, graph: grimp.ImportGraph) -> Figures:
    lines = {name: len(file.read_text(encoding="utf-8").splitlines()) for name, file in modules_of(root).items()}
    importers = {name: len(graph.find_modules_that_directly_import(name)) for name in lines}
    small = sum(1 for name, count in lines.items() if count < SMALL_LINES and importers[name] == 1)
    return {
        "modules": len(lines),
        f"modules under {SMALL_LINES} lines": sum(1 for count in lines.values() if count < SMALL_LINES),
        "of them imported by exactly one module": small,
    }


def size_figures(root: Path) -> Figures:
    """Lines with code on them: no blank ones, no comments, no docstrings."""
    found: Figures = {}
    for package in PACKAGES:
        files = [file for name, file in modules_of(root).items() if name.split(".")[0] == package]
        found[f"lines of code, {package}"] = sum(code_lines(file.read_text(encoding="utf-8")) for file in files)
    return found


def room_figures(graph: grimp.ImportGraph) -> Figures:
    found: Figures = {}
    for package in sorted(graph.modules):
        rooms = sorted(graph.find_children(package))
        if len(rooms) >= CROWD:
            arrows = {room: {other for other in rooms if other != room and knows(graph, room, other)} for room in rooms}
            found[f"{package}: rooms / arrows / circles"] = (
                f"{len(rooms)} / {sum(map(len, arrows.values()))} / {circles(arrows)}"
            )
    return found


def knows(graph: grimp.ImportGraph, room: str, other: str) -> bool:
    return graph.direct_import_exists(importer=room, imported=other, as_packages=True)


def circles(arrows: dict[str, set[str]]) -> int:
    """How many rooms must be left out, one of each circle that is found, until no circle remains."""
    left = {room: set(others) for room, others in arrows.items()}
    count = 0
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            count += 1
            left.pop(error.args[1][0])
            left = {room: others & left.keys() for room, others in left.items()}
        else:
            return count


def modules_of(root: Path) -> dict[str, Path]:
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def code_lines(source: str) -> int:
    documents: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documents.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for at, line in lines if at not in documents and line.strip() and not line.strip().startswith("#"))


def measure(root: Path, *, request: bool) -> Figures:
    graph = graph_of(root)
    entered = request_figures(root) if request else {}
    return {**entered, **module_figures(root, graph), **size_figures(root), **room_figures(graph)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("roots", nargs="*", type=Path, default=[HERE.parent], metavar="ROOT")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-request", action="store_true", help="only what can be read, nothing that must run")
    options = parser.parse_args()
    columns = [measure(root.resolve(), request=not options.no_request) for root in options.roots]
    if options.json:
        print(
            json.dumps([{"root": str(r), **column} for r, column in zip(options.roots, columns, strict=True)], indent=2)
        )
        return
    print("| |" + "|".join(f" {root.resolve().name} " for root in options.roots) + "|")
    print("|---|" + "---:|" * len(columns))
    for name in dict.fromkeys(name for column in columns for name in column):
        print(f"| {name} |" + "|".join(f" {column.get(name, '')} " for column in columns) + "|")


if __name__ == "__main__":
    main()
