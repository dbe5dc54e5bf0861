"""Checks of plugins' records when a session starts: no rule is silently without effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
from tj_core.errors import PluginError
from tj_core.extend import (
    Claim,
    CliCommand,
    Dialect,
    Executor,
    Frontend,
    Fusion,
    Pair,
    RuleTable,
    Stage,
    Transform,
)
from tj_core.testing.numeric import NumericPlugin
from tj_core.testing.plugins import plugin_object


def nothing(*args: Any) -> Any:
    raise AssertionError("it is only registered")


def session(strict: bool = False, **hooks: Any) -> tj.Session:
    plugins = [plugin_object("acme", **hooks), NumericPlugin()]
    return tj.Session(plugins=plugins, overrides={"strict": strict})


def claims(key: str, value: Any = None) -> dict[str, Any]:
    table: RuleTable[Any] = RuleTable("claim")
    table.set(key, value or Claim(nothing))
    return {"tj_executors": (Executor("acme", table),)}


def rules(name: str, key: str, value: Any = nothing, rule_type: Any = None) -> RuleTable[Any]:
    table: RuleTable[Any] = RuleTable(name, rule_type=rule_type)
    table.set(key, value)
    return table


# ------------------------------------------------------------------------------- keys

WHOSE = "executor 'acme' of plugin 'acme' (inline): "
KEYS = {
    "neg": "'neg' names no operation. Did you mean 'num.neg'?",
    "nothing": "'nothing' names no operation.",
    "num.": "'num.' names no operation.",
    "nun.neg": "there is no namespace 'nun' for 'nun.neg'. Did you mean 'num'?",
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_no_operation_is_an_error(key: str) -> None:
    with pytest.raises(PluginError) as error:
        session(**claims(key))
    assert error.value.message == WHOSE + KEYS[key]


def test_an_operation_that_does_not_exist_is_a_warning() -> None:
    message = WHOSE + "there is no operation 'num.negg'. Did you mean 'num.neg'?"
    with pytest.warns(tj.TjWarning) as found:
        session(**claims("num.negg"))
    assert [str(w.message) for w in found] == [f"tj: {message}"]
    with pytest.raises(PluginError) as error:
        session(strict=True, **claims("num.negg"))
    assert error.value.message == message


@pytest.mark.parametrize(
    "key", ["*", "num.*", "num.neg", "num.neg.backward", "num.neg.functional", "json.dumps"]
)
def test_keys_that_may_be_right(key: str) -> None:
    assert session(strict=True, **claims(key)).executors[0].claims


def test_executors_of_one_call_are_looked_at_too() -> None:
    (executor,) = claims("neg")["tj_executors"]
    with pytest.raises(PluginError, match=r"^executor 'acme': 'neg' names no operation"):
        tj.jit(lambda x: -x, session=session(), executors=[executor])


def test_a_key_is_a_text() -> None:
    with pytest.raises(PluginError, match="a key is the name of an operation, not a function"):
        claims(nothing)  # type: ignore[arg-type]


def test_decompositions_are_looked_at_as_claims_are() -> None:
    def executor(key: str, rule: Any) -> dict[str, Any]:
        table = rules("decompositions", key, rule)
        return {"tj_executors": (Executor("acme", RuleTable("claim"), decompositions=table),)}

    assert session(**executor("num.neg", nothing))
    with pytest.raises(PluginError, match=r"decompositions: 'neg' names no op.* mean 'num.neg'\?"):
        session(**executor("neg", nothing))
    with pytest.raises(PluginError, match=r"'num.neg' is a int, not a function"):
        session(**executor("num.neg", 1))


# ------------------------------------------------------------------------------- tables


def test_a_table_that_nobody_reads_is_named() -> None:
    with pytest.raises(PluginError) as error:
        session(tj_rule_tables=(rules("expannd", "num.neg"),))
    assert error.value.message == (
        "plugin 'acme' (inline): nobody reads rule table 'expannd'. Did you mean 'expand'?"
    )
    with pytest.raises(PluginError, match="a table of claims is an executor's"):
        session(tj_rule_tables=(rules("claim", "num.neg"),))


def test_a_table_whose_reader_is_not_here_is_none_of_our_business() -> None:
    assert "vectorise" in session(tj_rule_tables=(rules("vectorise", "nun.neg", 3),)).tables


def test_whoever_reads_a_table_says_what_is_in_it() -> None:
    tables = (RuleTable("cost", rule_type=float), rules("cost", "num.neg", 3))
    with pytest.raises(PluginError) as error:
        session(tj_rule_tables=tables)
    assert error.value.message == (
        "plugin 'acme' (inline): the rule for 'num.neg' in table 'cost' is a int, not a float"
    )
    right = (RuleTable("cost", rule_type=float), rules("cost", "num.neg", 3.0))
    assert session(tj_rule_tables=right).tables["cost"].rule_type is float
    with pytest.raises(PluginError, match="table 'cost': 'neg' names no operation"):
        session(tj_rule_tables=(tables[0], rules("cost", "neg", 3.0)))
    with pytest.raises(PluginError, match="in table 'expand' is a int, not a function"):
        session(tj_rule_tables=(rules("expand", "mine.neg", 3),))


def test_claims_are_claims() -> None:
    with pytest.raises(PluginError, match=r"its entry for 'num.neg' is a function, not a Claim"):
        session(**claims("num.neg", nothing))


# ------------------------------------------------------------------------------- records

TABLE: RuleTable[Claim] = RuleTable("claim")
RECORDS: dict[str, tuple[Callable[[], Any], str]] = {
    "stage": (
        lambda: Transform("t", nothing, "ACQUIRED"),  # type: ignore[arg-type]
        "Transform 't': after must be a Stage, not 'ACQUIRED'. Did you mean Stage.ACQUIRED?",
    ),
    "likely stage": (
        lambda: Transform("t", nothing, Stage.ACQUIRED, "joint"),  # type: ignore[arg-type]
        "Transform 't': produces must be a Stage or None, not 'joint'. Did you mean Stage.JOINT?",
    ),
    "apply": (
        lambda: Transform("t", None, Stage.ACQUIRED),  # type: ignore[arg-type]
        "Transform 't': apply must be a function, not a NoneType.",
    ),
    "table": (
        lambda: Executor("e", {"num.neg": Claim(nothing)}),  # type: ignore[arg-type]
        "Executor 'e': claims must be a RuleTable, not a dict.",
    ),
    "name": (lambda: Executor("", TABLE), "Executor '': name must be a name, not ''."),
    "fallback": (
        lambda: Executor("e", TABLE, "no"),  # type: ignore[arg-type]
        "Executor 'e': fallback must be True or False, not 'no'.",
    ),
    "implementation": (
        lambda: Claim("kernel"),  # type: ignore[arg-type]
        "Claim: implementation must be a function or None, not 'kernel'.",
    ),
    "check": (
        lambda: Claim(nothing, True),  # type: ignore[arg-type]
        "Claim: check must be a function or None, not True.",
    ),
    "pair": (
        lambda: Claim(nothing, pair=(nothing, nothing)),  # type: ignore[arg-type]
        "Claim: pair must be a Pair or None, not a tuple.",
    ),
    "backward": (
        lambda: Pair(nothing, None),  # type: ignore[arg-type]
        "Pair: backward must be a function, not a NoneType.",
    ),
    "meta": (
        lambda: Pair(nothing, nothing, nothing),  # type: ignore[arg-type]
        "Pair: meta must be two functions or None, not a function.",
    ),
    "fuse": (
        lambda: Fusion(nothing, None),  # type: ignore[arg-type]
        "Fusion: fuse must be a function, not a NoneType.",
    ),
    "priority": (
        lambda: Frontend("f", nothing, nothing, "high"),  # type: ignore[arg-type]
        "Frontend 'f': priority must be an integer, not 'high'.",
    ),
    "resolve": (
        lambda: Dialect("d", (), {}),  # type: ignore[arg-type]
        "Dialect: resolve must be a function, not a dict.",
    ),
    "run": (
        lambda: CliCommand("c", "", nothing, 0),  # type: ignore[arg-type]
        "CliCommand 'c': run must be a function, not 0.",
    ),
}


@pytest.mark.parametrize("what", RECORDS)
def test_records_hold_what_their_fields_say(what: str) -> None:
    make, message = RECORDS[what]
    with pytest.raises(PluginError) as error:
        make()
    assert error.value.message == message


def test_the_plugin_whose_record_is_wrong_is_named(fake_dist: Any) -> None:
    fake_dist(
        "late",
        """
        @hookimpl
        def tj_transforms(): return (Transform("t", print, after="ACQUIRED"),)
        """,
    )
    with pytest.raises(PluginError) as error:
        tj.Session(plugins=["late"])
    assert error.value.message.startswith(
        "plugin 'late' (tj-late 1.0) failed in hook tj_transforms"
    )
    assert "Did you mean Stage.ACQUIRED?" in error.value.message
