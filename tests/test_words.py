"""Plain words in docstrings: how they open, and how many sentences consist of pronouns.

A docstring is a noun phrase or an imperative, and can be understood without the code. One that
opens with "What" or "Whether" names nothing, and a sentence of pronouns needs the code to resolve
them.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

OPENINGS = re.compile(r"(What|Whether|How|Those|Which|That|Who|Whose|Why|Something|All that)\b")

PATTERNS = (
    *("benchmarks", "core/src", "core/tests", "examples/*/src", "plugins/*/src", "plugins/*/tests"),
    *("scripts", "tests"),
)
"""Folders that are read."""

PRONOUNS = frozenset({
    "it", "this", "that", "these", "those", "what", "which", "who", "whose", "them", "they", "one",
    "there", "such", "all",
})  # fmt: skip
MOST_PRONOUNS = 0.01
"""Share of sentences of which more than a quarter of the words are pronouns."""

STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)

FOLDERS = sorted(str(f.relative_to(ROOT)) for p in PATTERNS for f in ROOT.glob(p))


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings of modules, classes, functions and attributes, each with its line."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, STATEMENTS)]
        todo += inner
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text
        for before, after in itertools.pairwise(inner):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                value = after.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield after.lineno, value.value


def sentences(text: str) -> Iterator[str]:
    """The sentences of a docstring on one line each, with ``X`` for each piece of code."""
    for paragraph in re.split(r"\n\s*\n", re.sub(r"``.*?``|`.*?`", "X", text, flags=re.DOTALL)):
        yield from re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split()))


def is_pronouns(sentence: str) -> bool:
    """Test for a sentence of which more than a quarter of the words are pronouns."""
    words = re.findall(r"[A-Za-z']+", sentence)
    return 4 * sum(word.lower() in PRONOUNS for word in words) > len(words)


@functools.cache
def read(folder: str) -> tuple[tuple[str, str], ...]:
    """The docstrings in the files of ``folder``, each with its file and line."""
    return tuple(
        (f"{file.relative_to(ROOT)}:{line}", text)
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(file.read_text("utf-8"))
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_a_noun_or_a_verb(folder: str) -> None:
    found = [
        f"{place}: {text.strip().splitlines()[0]}"
        for place, text in read(folder)
        if OPENINGS.match(text.strip())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_few_sentences_consist_of_pronouns(folder: str) -> None:
    every = [(place, line) for place, text in read(folder) for line in sentences(text)]
    found = [f"{place}: {line}" for place, line in every if is_pronouns(line)]
    assert len(found) <= MOST_PRONOUNS * len(every), "\n".join(found)


def test_every_pattern_has_folders() -> None:
    assert [pattern for pattern in PATTERNS if not [*ROOT.glob(pattern)]] == []


SOURCE = '''
"""What a module has."""

NAME = 1
"""Whether a name is one. It is ``not that`` one."""

class Plain:
    """A class."""

    def __init__(self):
        self.field = 1
        """How a field is.

        Fields of all such
        """

    def method(self):
        """All that it does."""
        return "Which is no docstring"

    async def other(self):
        """Allow that."""
'''


def test_docstrings_of_all_kinds_are_read() -> None:
    found = [text.split()[0] for _, text in sorted(docstrings(SOURCE))]
    assert found == ["What", "Whether", "A", "How", "All", "Allow"]
    opening = [line for line, text in sorted(docstrings(SOURCE)) if OPENINGS.match(text)]
    assert opening == [2, 5, 12, 18]


def test_sentences_end_at_points_and_paragraphs_and_code_is_no_pronoun() -> None:
    texts = [text for _, text in sorted(docstrings(SOURCE))]
    assert [*sentences(texts[1])] == ["Whether a name is one.", "It is X one."]
    assert [*sentences(texts[3])][1].strip() == "Fields of all such"
    assert not is_pronouns("Whether a name is one. ")
    assert is_pronouns("It is X one.")
    assert is_pronouns("Fields of all such")
    assert not is_pronouns("The calls that run")
