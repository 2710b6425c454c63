"""`python -m docs_tools.code_lines` prints the code lines of `icesize/`, and the names that several modules define.

A code line is no docstring, no comment and not blank. The demo is left out; names in `cli/` and `presentation/`, too.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "icesize"
_NO_CODE = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}


def code_lines(source: str) -> int:
    """Return the number of code lines of a module."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def public_names(source: str) -> Iterator[str]:
    """Yield the public functions, classes and type aliases at the top level of a module."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.isupper() or not name[0].isupper():
                continue
        else:
            continue
        if not name.startswith("_"):
            yield name


def repeated_names(modules: Mapping[Path, str]) -> dict[str, list[str]]:
    """Return each public name that several modules define, with their paths."""
    names = defaultdict[str, list[str]](list)
    for path, source in modules.items():
        for name in public_names(source) if path.parts[0] not in ("cli", "presentation") else ():
            names[name].append(str(path))
    return {name: paths for name, paths in sorted(names.items()) if len(set(paths)) > 1}


def modules() -> dict[Path, str]:
    """Return the source of each module of `icesize/`, by its path there."""
    return {path.relative_to(PACKAGE): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def main() -> None:
    """Print both."""
    sources = modules()
    total = sum(code_lines(source) for path, source in sources.items() if path.parts[0] != "demo")
    repeated = repeated_names(sources)
    print(f"{total:,} code lines, {len(repeated)} public names in several modules")
    for name, paths in repeated.items():
        print(f"{name}: {', '.join(paths)}")


if __name__ == "__main__":
    main()
