"""Changes of the contract with plugins: additions, deprecations, removals."""

from __future__ import annotations

import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tj_core import deprecations
from tj_core.cli.main import main
from tj_core.deprecations import Deprecated01Warning, TjDeprecationWarning
from tj_core.errors import PluginError, TjWarning
from tj_core.host import hookspecs, loading
from tj_core.host.discovery import UNKNOWN, Found, core_version
from tj_core.host.hookcall import call_hook
from tj_core.host.hookspecs import hookimpl, hookspec
from tj_core.host.loading import inline_plugin, new_manager
from tj_core.ir.tags import Tag
from tj_core.testing.plugins import FakeDist
from tj_core.testing.plugins import load_plugins as manager

if TYPE_CHECKING:
    from tj_core.host.plugins import PluginManager

pytestmark = pytest.mark.usefixtures("own_project")

FOUND = Found("x", "tj-x", "1.0", "tj_x")


class MadeUpWarning(TjDeprecationWarning):
    """A deprecation of an invented release."""

    since = "0.0"


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that adds hooks to tj's own."""

    def use(*functions: Any) -> None:
        made = types.ModuleType("made_up_hookspecs")
        vars(made).update(vars(hookspecs))
        for function in functions:
            setattr(made, function.__name__, function)
        monkeypatch.setattr(loading, "hookspecs", made)

    return use


@pytest.fixture
def as_users_see_them() -> Iterator[None]:
    """Python's default warning filters in place of the tests'."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        yield


def failure(*plugins: Any, **keys: Any) -> str:
    with pytest.raises(PluginError) as caught:
        manager(*plugins, **keys)
    return str(caught.value)


def plugin(*functions: Any) -> Any:
    made = types.SimpleNamespace(tj_name="x")
    for function in functions:
        setattr(made, function.__name__, hookimpl(function))
    return made


def line_of(function: Any) -> tuple[str, int]:
    code = function.__code__
    return code.co_filename, code.co_firstlineno


# ------------------------------------------------------------------------------- growing


def tj_tags(options, session):  # what `tj_tags` may become
    """A hook with an additional argument."""


def test_old_plugins_do_without_an_added_argument(specs: Callable[..., None]) -> None:
    specs(hookspec(tj_tags))

    def old(options):
        return ("old", options)

    def new(session, options):
        return ("new", options, session)

    for implementation, expected in ((old, ("old", 1)), (new, ("new", 1, 2))):
        implementation.__name__ = "tj_tags"
        given = plugin(implementation)
        assert manager(given).names == ("x",)
        registered = new_manager()
        registered.register(inline_plugin(given)[1], "x")
        found = call_hook(registered, "tj_tags", FOUND, {"options": 1, "session": 2})
        assert found == expected


def test_an_implementation_may_take_no_argument() -> None:
    def tj_tags():
        return (Tag("T"),)

    assert manager(plugin(tj_tags)).tags() == (("x", Tag("T")),)


def test_a_new_plugin_names_what_an_old_core_lacks(fake_dist: FakeDist) -> None:
    fake_dist("x", "@hookimpl\ndef tj_tags(options, session): return ()", version="7.0")
    text = failure("x")
    for part in (
        "plugin 'x' (tj-x 7.0)",
        f"tj-core {core_version()}",
        "its tj_tags takes an argument 'session', but the hook is tj_tags(options)",
    ):
        assert part in text
    fake_dist("y", "@hookimpl\ndef tj_lowerings(options): return ()", version="7.0")
    assert "plugin 'y' (tj-y 7.0)" in failure("y")
    assert "unknown hook 'tj_lowerings'" in failure("y")


def test_a_new_plugin_may_have_a_hook_that_an_old_core_lacks(specs: Callable[..., None]) -> None:
    @hookimpl(optionalhook=True)
    def tj_lowerings(options):
        return ()

    optional = types.SimpleNamespace(tj_name="x", tj_lowerings=tj_lowerings)
    assert manager(optional).state("x").hooks == ()
    specs(lowerings())
    assert manager(optional).state("x").hooks == ("tj_lowerings",)


def lowerings() -> Any:
    @hookspec
    def tj_lowerings(options):
        """A hook that 0.1 does not have."""

    return tj_lowerings


# ------------------------------------------------------------------------------- removing


def test_a_deprecated_hook_warns_once_at_the_implementation(specs: Callable[..., None]) -> None:
    @hookspec(warn_on_impl=MadeUpWarning("tj_old: implement tj_tags"))
    def tj_old(options):
        """A deprecated hook."""

    specs(tj_old)

    def tj_old(options):
        return ()

    with pytest.warns(TjWarning) as caught:
        made = manager(plugin(tj_old))
    (warning,) = caught
    assert str(warning.message) == "tj_old: implement tj_tags"
    assert warning.category is MadeUpWarning
    assert (warning.filename, warning.lineno) == line_of(tj_old)
    assert made.state("x").hooks == ("tj_old",)


def removed_argument() -> Any:
    @hookspec(warn_on_impl_args={"old": MadeUpWarning("tj_tags: `old` is `options`")})
    def tj_tags(options, old):
        """A hook with a deprecated argument."""

    return tj_tags


def test_a_deprecated_argument_warns_who_takes_it(specs: Callable[..., None]) -> None:
    specs(removed_argument())

    def tj_tags(old):
        return ()

    with pytest.warns(MadeUpWarning, match="`old` is `options`") as caught:
        manager(plugin(tj_tags))
    assert [(w.filename, w.lineno) for w in caught] == [line_of(tj_tags)]


def test_a_deprecated_argument_does_not_warn_others(specs: Callable[..., None]) -> None:
    specs(removed_argument())

    def tj_tags(options):
        return ()

    manager(plugin(tj_tags))  # warnings are errors


@pytest.mark.usefixtures("as_users_see_them")
def test_an_error_by_default_is_one_filter(specs: Callable[..., None]) -> None:
    specs(removed_argument())

    def tj_tags(old):
        return ()

    warnings.filterwarnings("error", category=MadeUpWarning, append=True)  # the second step
    text = failure(plugin(tj_tags))
    assert "plugin 'x' (inline) cannot be loaded" in text
    assert "MadeUpWarning: tj_tags: `old` is `options`" in text
    warnings.filterwarnings("ignore", category=MadeUpWarning)  # the user's own word is the last
    assert manager(plugin(tj_tags)).names == ("x",)


@pytest.mark.usefixtures("as_users_see_them")
def test_an_error_by_default_does_not_stop_what_nobody_named(
    specs: Callable[..., None], fake_dist: FakeDist
) -> None:
    specs(removed_argument())
    fake_dist("x", "@hookimpl\ndef tj_tags(old): return ()")
    warnings.filterwarnings("error", category=MadeUpWarning, append=True)
    with warnings.catch_warnings(record=True) as caught:
        made = manager()
    assert ["`old` is `options`" in str(w.message) for w in caught] == [True]
    assert made.state("x").state == "failed"


def test_what_is_gone_is_an_error_with_advice() -> None:
    def tj_tags(option):
        return ()

    text = failure(plugin(tj_tags))
    assert "its tj_tags takes an argument 'option', but the hook is tj_tags(options)" in text
    assert "Did you mean 'options'?" in text

    def tj_tag(options):
        return ()

    assert "unknown hook 'tj_tag'. Did you mean 'tj_tags'?" in failure(plugin(tj_tag))


def test_a_deprecation_is_seen_without_being_asked_for() -> None:
    """Python's default filters show the warning, also for code outside of ``__main__``."""
    code = (
        "import warnings; from tj_core.extend import Deprecated01Warning as W; "
        "warnings.warn_explicit(W('goes'), W, 'plugin.py', 7)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "plugin.py:7: Deprecated01Warning: goes" in done.stderr


STEPS = """
import warnings
from tj_core import deprecations
for name, cls in vars(deprecations).items():
    if name.startswith("Deprecated"):
        errors = any(f[0] == "error" and f[2] is cls for f in warnings.filters)
        print(name, cls.since, errors)
"""


def test_each_release_class_is_at_the_step_that_is_due() -> None:
    """Two minor releases of warnings, one of errors, then nothing."""
    done = subprocess.run([sys.executable, "-c", STEPS], check=True, capture_output=True, text=True)
    current = int(core_version().split(".")[1])
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines or current > 3
    for name, since, errors in lines:
        age = current - int(since.split(".")[1])
        assert name == f"Deprecated{since.replace('.', '')}Warning"
        assert age <= 2, f"{name} is gone by now: remove it with what it warns of"
        assert errors == str(age == 2), f"{name} is an error by default after two releases"


def test_the_release_classes_say_when() -> None:
    assert issubclass(Deprecated01Warning, TjWarning)
    for name in deprecations.__all__:
        cls = getattr(deprecations, name)
        if cls is not TjDeprecationWarning:
            major, minor = map(int, cls.since.split("."))
            doc = " ".join(cls.__doc__.split())
            assert f"an error by default in {major}.{minor + 2}, gone in {major}.{minor + 3}" in doc


# ------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("api", "advice"),
    [
        (hookspecs.PLUGIN_API - 1, "install a newer version of the plugin"),
        (hookspecs.PLUGIN_API + 1, "install a newer tj-core"),
    ],
)
def test_another_api_names_both_versions(fake_dist: FakeDist, api: int, advice: str) -> None:
    fake_dist("x", f"TJ_PLUGIN_API = {api}", version="3.1")
    text = failure("x")
    for part in (
        "plugin 'x' (tj-x 3.1)",
        f"it is written for plugin API {api}",
        f"tj-core {core_version()} has plugin API {hookspecs.PLUGIN_API}",
        advice,
    ):
        assert part in text


@pytest.mark.parametrize("api", ["1", 1.0, True, None])
def test_an_api_is_an_integer(api: object) -> None:
    text = failure(types.SimpleNamespace(tj_name="x", TJ_PLUGIN_API=api))
    assert f"TJ_PLUGIN_API must be an integer, not {api!r}" in text


RANGES = {
    "tj-core>=0.1,<0.2": True,
    "tj_core ~= 0.1": True,
    "TJ.Core>=0.1": True,
    "tj-core>=0.2,<0.3": False,
    "tj_core<0.1": False,
    "tj-core>=9; python_version < '3'": True,
    "tj-core>=9; extra == 'later'": True,
    "tj-core-extras>=9": True,
}


@pytest.mark.parametrize("requirement", RANGES)
def test_the_range_of_the_distribution_is_checked(fake_dist: FakeDist, requirement: str) -> None:
    fake_dist("x", version="3.1", requires=["other>=1", requirement])
    if RANGES[requirement]:
        assert manager("x").names == ("x",)
        return
    text = failure("x")
    assert "tj-x 3.1 requires tj-core" in text
    assert f"installed is tj-core {core_version()}" in text
    assert "to do without it" in text


def test_a_distribution_out_of_range_is_not_imported(
    fake_dist: FakeDist, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_dist("x", "raise AssertionError('imported')", requires=["tj-core>=9"])
    with pytest.warns(TjWarning, match=re.escape("tj-x 1.0 requires tj-core>=9")):
        state = manager().state("x")
    assert state.state == "failed"
    assert "fake_x" not in sys.modules
    with pytest.warns(TjWarning, match="requires tj-core>=9"):
        main(["plugins"])
    assert "requires tj-core>=9" in capsys.readouterr().out


def test_a_prerelease_is_in_its_range(fake_dist: FakeDist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tj_core.host.requirements.core_version", lambda: "0.2.0.dev1")
    fake_dist("x", requires=["tj-core>=0.1,<0.3"])
    assert manager("x").names == ("x",)


def test_a_core_without_a_version_fits(
    fake_dist: FakeDist, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tj_core.host.requirements.core_version", lambda: UNKNOWN)
    fake_dist("x", requires=["tj-core>=0.1,<0.2"])
    made: PluginManager = manager("x")
    assert made.names == ("x",)
