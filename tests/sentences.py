"""Every sentence that users may read, each with its place: `make sentences`.

A sentence is a string of at least three words in the Python sources or the page's scripts (`{}` stands for
what is filled in), or a sentence of Markdown prose. Docstrings and SQL are left out, except those of HTTP
routes and models, which OpenAPI shows. `test_sentences.py` refuses words and phrases in all of them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SQL = re.compile(
    r"\s*(SELECT|INSERT|CREATE|ALTER|DELETE|UPDATE|WITH|DROP|UNION|FROM|WHERE|ORDER|GROUP|JOIN|LEFT|AND|ON|SET)\b"
)
SCRIPT_STRING = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`", re.S
)
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.S | re.M)
END_OF_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[])")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: `place` is `file:line`, relative to the repository."""

    place: str
    text: str


def all_sentences(root: Path = ROOT) -> Iterator[Sentence]:
    """The sentences of both packages, of the demo, of the page's scripts and of the documents."""
    for path in [*sorted(root.glob("*.py")), *_below(root, "probe", "py"), *_below(root, "dashboard", "py")]:
        yield from _placed(
            path, root, python_strings(path.read_text(), docstrings="serving/api" in str(path))
        )
    for path in _below(root, "assets", "js"):
        yield from _placed(path, root, script_strings(path.read_text()))
    for path in [*sorted(root.glob("*.md")), *_below(root, "docs", "md")]:
        yield from _placed(path, root, prose(path.read_text()))


def _below(root: Path, folder: str, suffix: str) -> list[Path]:
    return sorted((root / folder).rglob(f"*.{suffix}"))


def _placed(path: Path, root: Path, found: Iterator[tuple[int, str]]) -> Iterator[Sentence]:
    for line, text in found:
        if len(text.split()) >= 3 and re.search(r"[a-z]{2}", text):
            yield Sentence(f"{path.relative_to(root)}:{line}", " ".join(text.split()))


def python_strings(source: str, *, docstrings: bool = False) -> Iterator[tuple[int, str]]:
    """Line and text of each string of `source` that is a value; what an f-string fills in is `{}`."""
    tree = ast.parse(source)
    inner = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and not docstrings:
            inner.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in node.values)
    for node in ast.walk(tree):
        if id(node) not in inner and (text := _text(node)) is not None and not SQL.match(text):
            yield node.lineno, text  # type: ignore[attr-defined]


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def script_strings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string literal of a script; what a template fills in is `{}`."""
    for found in SCRIPT_STRING.finditer(source):
        literal = found.group()
        if literal[0] != "/":
            yield source.count("\n", 0, found.start()) + 1, re.sub(r"\$\{[^}]*\}", "{}", literal[1:-1])


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each sentence of a Markdown document and of each cell of its tables, without code."""
    source = FENCE.sub(lambda block: "\n" * block.group().count("\n"), source)
    line = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=[-|*#\d]))", source):
        cells = paragraph.split("|") if paragraph.lstrip().startswith("|") else [paragraph]
        for cell in cells:
            yield from ((line, sentence) for sentence in END_OF_SENTENCE.split(cell))
        line += paragraph.count("\n")


if __name__ == "__main__":
    for sentence in all_sentences():
        sys.stdout.write(f"{sentence.place}\t{sentence.text}\n")
