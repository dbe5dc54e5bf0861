"""Log lines: one for each compilation, graph break and recompilation."""

from __future__ import annotations

import logging

import pytest
import tj_core as tj
from tj_core.errors import ConfigError
from tj_core.host.jitted import Entry, Fallback
from tj_core.source import Source
from tj_core.testing.numeric import NumericPlugin


@pytest.fixture
def lines():
    """The lines of all topics, and the loggers as they were before."""
    found = []

    class Keeping(logging.Handler):
        def emit(self, record):
            found.append(f"{record.name}: {record.getMessage()}")

    loggers = [
        logging.getLogger(f"tj{t}") for t in ("", ".compile", ".graph_breaks", ".recompiles")
    ]
    levels = [logger.level for logger in loggers]
    top, handler = loggers[0], Keeping()
    top.addHandler(handler)
    yield found
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    top.removeHandler(handler)


def jit(**options):
    return tj.jit(lambda x: x + x, plugins=[NumericPlugin()], **options)


def test_nothing_is_logged_by_default(lines):
    jit()([1.0])
    assert lines == []


def test_a_line_for_each_compilation(lines):
    f = jit(logs=["compile"])
    f([1.0])
    f([2.0])
    f([1.0, 2.0])
    assert len(lines) == 2
    assert lines[0].startswith("tj.compile: jit.<locals>.<lambda>: compiled in 0.")
    assert lines[0].endswith(" s: 1 calls (python 1)")


def test_graph_breaks_once_and_recompilations_with_the_reason(lines):
    state = jit(logs=["all"]).__tj__
    stop = Fallback("graph break: print()", Source("/a/prog.py", 3, "print(x)"))
    for _ in range(2):
        state.note_break(stop, "g")
    state.add(Entry(None, reason="k was 2, is 3"))
    assert lines == [
        "tj.graph_breaks: g: prog.py:3: print(x): graph break: print()",
        "tj.recompiles: jit.<locals>.<lambda>: compiled again: k was 2, is 3",
        "tj.compile: jit.<locals>.<lambda>: compiled in 0.00 s: nothing on tensors",
    ]


def test_topics_from_the_environment(lines, monkeypatch):
    monkeypatch.setenv("TJ_LOGS", "recompiles,compile")
    tj.Session(plugins=[NumericPlugin()])
    levels = {
        t: logging.getLogger(f"tj.{t}").level for t in ("compile", "recompiles", "graph_breaks")
    }
    assert levels == {"compile": logging.INFO, "recompiles": logging.INFO, "graph_breaks": 0}


def test_an_unknown_topic():
    with pytest.raises(ConfigError, match="logs"):
        jit(logs=["recompile"])
