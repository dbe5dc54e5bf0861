"""Finished programs on disk: found by later sessions, and not compiled again."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tj_core.compile.fusing import FusedRegions
from tj_core.compile.kept_programs import KeptPrograms
from tj_core.compile.pipeline import Pipeline
from tj_core.compile.transforms import Ranked, Transform
from tj_core.contract.executors import Claim, Executor, Pair
from tj_core.contract.fusion import Fusion
from tj_core.contract.rules import RuleTable
from tj_core.disk import Entries
from tj_core.errors import TjWarning
from tj_core.host.session import Session
from tj_core.ir.proxy import NumberProxy, SymDim
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Symbol
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import Trace
from tj_core.source import Source
from tj_core.testing.fusing import LoopPlugin, one_by_one
from tj_core.testing.numeric import MEANING, NumericPlugin, call, expansions, vector

if TYPE_CHECKING:
    from tj_core.compile.context import PassContext

LANGUAGE = Session(plugins=[NumericPlugin()]).language
X, Y, Z = vector("x", 2), vector("y", 2), vector("z", 2)


def program(*calls, outputs=Z, **more):
    line = Source("/home/file.py", 3, "z = -x * x")
    calls = calls or (
        call("neg", X, outputs=Y).replace(source=line),
        call("mul", X, Y, outputs=Z).replace(source=line),
    )
    return Trace((X,), calls, outputs, **{"language": LANGUAGE, **more})


PLUGIN = LoopPlugin()
LOOPS = Fusion(PLUGIN.can_fuse, PLUGIN.fuse)


class Sessions:
    """Consecutive sessions with one cache folder, each of which compiles or finds a program.

    ``ran`` are the names of the transforms that ran.
    """

    def __init__(self, folder):
        self.entries = Entries(folder)
        self.ran = []
        self.executors = (Executor("ex", self.claims(), fallback=True),)
        self.transforms = ()

    @staticmethod
    def claims(**more):
        claims: RuleTable[Claim] = RuleTable("claim")
        for name, meaning in MEANING.items():
            claims.set(f"num.{name}", Claim(meaning, **more))
        return claims

    def fuse(self, says=lambda: "loops", **more):
        """A further executor that fuses; ``says`` is the fingerprint of its regions."""
        fusion = LOOPS
        if says is not None:
            fusion = replace(fusion, restore=lambda r, _: one_by_one(r), fingerprint=says)
        self.executors += (Executor("loop", RuleTable("claim"), fusion=fusion, **more),)

    def transform(self, name, after, apply=None, **more):
        def noted(trace, context):
            self.ran.append(name)
            return trace if apply is None else apply(trace, context)

        self.transforms += (Transform(name, noted, after, **more),)

    def compile(self, trace=None, *, sizes=None, given=(), says=lambda: "session", **more):
        """The compilation of ``trace`` in a new session; ``given`` are further transforms."""
        more.setdefault("libraries", lambda executor: None)
        kept = KeptPrograms(
            self.entries,
            self.executors,
            self.transforms,
            LANGUAGE,
            says,
            more.pop("libraries"),
        )
        ranked = [Ranked("mine", t) for t in (*self.transforms, *given)]
        tags = TagRegistry()
        made = Pipeline(
            ranked,
            self.executors,
            expansions,
            tags,
            {"expand": expansions},
            more.pop("check", 2),
            strict=True,
            regions=FusedRegions(tags, True),
            finished=kept,
            **more,
        )
        self.ran.clear()
        return made.compile(trace or program(), sizes=sizes)


@pytest.fixture
def sessions(tmp_path):
    return Sessions(tmp_path / "programs")


def found(compilation):
    return compilation.counts.finished == 1


def test_a_program_is_found_with_all_that_became_of_it(sessions):
    sessions.fuse()
    sessions.transform("first", Stage.FUNCTIONAL, lambda t, c: t.replace(name="renamed"))
    one = sessions.compile()
    assert sessions.ran == ["first"]
    two = sessions.compile()
    assert sessions.ran == []
    assert (found(one), found(two)) == (False, True)
    assert two.function([1.0, 2.0]) == one.function([1.0, 2.0]) == [-1.0, -4.0]
    assert tuple(two.traces) == tuple(one.traces)
    assert [str(t) for t in two.traces] == [str(t) for t in one.traces]
    assert [t.history for t in two.traces[1:-1]] == [t.history for t in one.traces[1:-1]]
    assert tuple(two.claims) == tuple(one.claims)
    assert [c.source for c in two.traces[-1].calls] == [c.source for c in one.traces[-1].calls]
    assert [k.region.key for k in two.regions] == [k.region.key for k in one.regions]
    assert two.program.source == one.program.source
    assert "claim" in one.seconds
    assert "claim" not in two.seconds


def test_passes_before_and_after_run_in_each_process(sessions):
    """Passes from FUNCTIONAL to CLAIMED are kept; those before and after run again."""
    for stage in Stage:
        sessions.transform(stage.name, stage)
    sessions.compile()
    assert sessions.ran == [stage.name for stage in Stage]
    assert found(sessions.compile())
    assert sessions.ran == ["ACQUIRED", "CLAIMED"]


def test_transforms_say_again_how_the_program_runs(sessions):
    def apply(trace, context):
        return say(context, {"by": 2, "of": (trace.replace(name="said"), X)})

    def say(context: PassContext, kept):
        def wrap(function, recompiler):
            return lambda x: [value * kept["by"] for value in function(x)]

        assert kept["of"][1] == X
        return context.wrap(kept["of"][0], wrap, kept=kept)

    sessions.transform("twice", Stage.FUNCTIONAL, apply, restore=say)
    one, two = sessions.compile(), sessions.compile()
    assert found(two)
    assert sessions.ran == []
    assert one.function([1.0, 2.0]) == two.function([1.0, 2.0]) == [-2.0, -8.0]


def test_what_is_not_said_to_be_kept_is_not(sessions):
    sessions.transform("wraps", Stage.JOINT, lambda t, c: c.wrap(t, lambda f, _: f))
    sessions.compile()
    assert not found(sessions.compile())


def split(trace, context):
    """Cut the program in two; ``later`` compiles the second half at its first run."""
    first, second = trace.calls
    later = Trace((X, Y), (second,), Z, "backward", Stage.SPLIT, language=LANGUAGE)
    return assembled(context, (later, trace.replace(calls=(first,), outputs=Y, stage=Stage.SPLIT)))


def assembled(context, kept):
    def assemble(program, compile_later):
        def run(x):
            y = program.function([x])
            return compile_later("backward", kept[0]).function([x, y])

        return run

    return context.assemble(kept[1], {"backward": kept[0]}, assemble, boxed=True, kept=kept)


def test_later_programs_are_found_too(sessions):
    sessions.transform("split", Stage.LOWERED, split, produces=Stage.SPLIT, restore=assembled)
    sessions.transform("last", Stage.SPLIT)
    compiled = []
    for _ in range(2):
        made = sessions.compile()
        assert made.function([1.0, 2.0]) == [-1.0, -4.0]
        compiled.append((made, list(sessions.ran)))
    (one, ran), (two, ran_again) = compiled
    assert (ran, ran_again) == (["split", "last", "last"], [])
    tracks = one.others["backward"], two.others["backward"]
    assert tuple(tracks[0].traces) == tuple(tracks[1].traces)
    assert tuple(tracks[0].claims) == tuple(tracks[1].claims)
    assert "backward: claim" not in two.seconds


def test_claimed_calls_get_the_executors_kernels_again(sessions):
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("num.neg", Claim(lambda x: [-10.0 * v for v in x]))
    sessions.executors = (Executor("mine", claims), *sessions.executors)
    one, two = sessions.compile(), sessions.compile()
    assert found(two)
    assert one.function([1.0, 2.0]) == two.function([1.0, 2.0]) == [-10.0, -40.0]
    assert [c.executor for c in two.traces[-1].calls] == ["mine", "ex"]


def test_halves_of_pairs_get_their_kernels_again():
    pair = Pair(lambda x: (x, ()), lambda saved, g: (g,))
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("num.neg", Claim(lambda x: x, pair=pair))
    executor = Executor("mine", claims)
    assert executor.implementation(Symbol("mine", "num.neg", "forward")) is pair.forward
    assert executor.implementation(Symbol("mine", "num.neg", "backward")) is pair.backward
    assert executor.implementation(Symbol("mine", "num.exp")) is None


def moved(trace):
    calls = [c.replace(source=Source("/home/file.py", 9, "z = -x * x")) for c in trace.calls]
    return trace.replace(calls=tuple(calls))


OTHERS = {
    "another program": {"trace": program(call("neg", X, outputs=Z))},
    "another name": {"trace": program(name="other")},
    "another line": {"trace": moved(program())},
    "another session": {"says": lambda: "another one"},
    "no dead code is removed": {"dce": False},
    "equal calls stay two": {"cse": False},
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_not_equal_is_not_found(other, sessions):
    sessions.compile()
    assert not found(sessions.compile(**OTHERS[other]))
    assert found(sessions.compile())


def test_what_executors_say_counts(sessions):
    said = {"fusion": "loops", "checks": "as measured"}
    sessions.fuse(lambda: said["fusion"], fingerprint=lambda: said["checks"])
    for what, says in (("fusion", "other loops"), ("checks", "as measured again")):
        sessions.compile()
        assert found(sessions.compile())
        said[what] = says
        assert not found(sessions.compile())
        said[what] = None
        sessions.compile()
        assert not found(sessions.compile())
        said[what] = says


def sized(dim):
    """A program of vectors of ``dim`` elements."""
    x, z = (p.replace(shape=(dim,)) for p in (X, Z))
    return Trace((x,), (call("neg", x, outputs=z),), z, language=LANGUAGE)


NOT_KEPT = {
    "the session is not known": {"says": lambda: None},
    "a transform of the call's own": {"given": [Transform("own", lambda t, c: t, Stage.JOINT)]},
    "an object of the program": {
        "trace": program(call("neg", X, outputs=Y), outputs=(Y, Constant("_f", print, named=False)))
    },
    "symbols of which nobody knows": {"trace": sized(SymDim("s0", 2)), "check": 0},
}


@pytest.mark.parametrize("why", NOT_KEPT)
def test_what_is_not_known_whole_is_not_kept(why, sessions):
    for _ in range(2):
        assert not found(sessions.compile(**NOT_KEPT[why]))
    assert not sessions.entries.folder.exists()


def test_fusion_without_a_fingerprint_counts_by_its_libraries(sessions):
    sessions.fuse(None)
    sessions.compile()
    assert not sessions.entries.folder.exists()
    one, other = (lambda executor: f"{executor.name} 1"), (lambda executor: f"{executor.name} 2")
    assert not found(sessions.compile(libraries=one))
    assert found(sessions.compile(libraries=one))
    assert not found(sessions.compile(libraries=other))


def test_a_fingerprint_that_fails_is_one_warning(sessions):
    sessions.fuse(lambda: 1 / 0)
    with pytest.warns(TjWarning, match="a fingerprint failed.*ZeroDivisionError") as caught:
        for _ in range(2):
            made = sessions.compile()
    assert len(caught) == 1
    assert not found(made)
    assert made.function([1.0, 2.0]) == [-1.0, -4.0]


class Sizes:
    """Symbols of a program: ``s0`` is ``value`` in the traced call."""

    def __init__(self, value):
        self.value, self.conditions = value, []

    def known(self, names):
        assert names == ["s0"]
        return f"s0 is {self.value}"

    @property
    def assumed(self):
        return tuple(self.conditions)

    def assume(self, text):
        self.conditions.append(text)

    def dim(self, size):
        return SymDim(size, self.value)


def test_guards_of_passes_are_made_again(sessions):
    sizes: list[Sizes] = []
    sessions.transform("decides", Stage.JOINT, lambda t, c: sizes[-1].assume("s0 > 1") or t)
    for value, hit in ((2, False), (2, True), (5, False), (5, True)):
        sizes.append(Sizes(value))
        sizes[-1].assume("s0 < 9")  # the program's own, which is there before the passes
        made = sessions.compile(sized(sizes[-1].dim("s0")), sizes=sizes[-1], check=0)
        assert found(made) is hit
        assert sizes[-1].conditions == ["s0 < 9", "s0 > 1"]
        assert made.traces[-1].calls[0].flat_outs[0].shape[0].hint == value


def test_values_of_numbers_count_as_those_of_sizes_do(sessions):
    """Passes decide on sizes and numbers: a program for another value has another key."""
    for value, hit in ((2, False), (5, False), (2, True), (5, True)):
        sizes = Sizes(value)
        trace = Trace(
            (NumberProxy("n", expr="s0"), X), (call("neg", X, outputs=Y),), Y, language=LANGUAGE
        )
        assert found(sessions.compile(trace, sizes=sizes, check=0)) is hit


@pytest.mark.parametrize("value", ["", "e30= e30=", "half"])
def test_what_cannot_be_used_is_compiled_with_one_warning(value, sessions):
    sessions.compile()
    (path,) = sessions.entries.folder.glob("*.json")
    document = json.loads(path.read_text())
    changed = document["value"][:90] if value == "half" else value
    path.write_text(json.dumps(document | {"value": changed}))
    with pytest.warns(TjWarning, match="finished program cannot be used") as caught:
        assert not found(sessions.compile())
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found(sessions.compile()), "it was replaced"


def test_what_cannot_be_said_again_is_compiled(sessions):
    def restore(context, kept):
        raise ValueError("it changed its mind")

    def apply(trace, context):
        return context.wrap(trace.replace(name="wrapped"), lambda function, _: function, kept=1)

    sessions.transform("wraps", Stage.FUNCTIONAL, apply, restore=restore)
    sessions.compile()
    with pytest.warns(TjWarning, match="ValueError: it changed its mind"):
        made = sessions.compile()
    assert not found(made)
    assert made.function([1.0, 2.0]) == [-1.0, -4.0]
