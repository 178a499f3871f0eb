"""A store lives through anything in any order, and always agrees with a model kept in memory.

Saves, saves in the background, updates that donate, failing disks, kills before any operation on the disk, pruning,
reopening, foreign things in the directory, damage and restores are interleaved. The model is a dictionary from step
to bits; whatever the store says and gives back has to be in it.
"""

import contextlib
import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from jax.sharding import NamedSharding, PartitionSpec

from pd_eqx.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointStore,
    SaveFailedError,
    abstract_like,
    disk,
)
from pd_eqx.donation import measure_reuse

EXAMPLES = max(12, settings.default.max_examples // 5) if settings.default else 12
COUNTS: Counter[str] = Counter()
ANY = st.integers(0, 2**20)
T = TypeVar("T")


class State(eqx.Module):
    product: Any
    process: Any


class KilledError(BaseException):
    """The process ends here: no handler of ordinary errors runs."""


def one_of(choices: Sequence[T], which: int) -> T:
    """A choice by any number: how many files a step has, and so all that follows, differs between two runs of the
    same example, which must draw the same.
    """
    return choices[which % len(choices)]


def made(seed: int) -> State:
    ramp = jnp.arange(64.0).reshape(8, 8) + seed
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    product = {"w": jax.device_put(ramp, NamedSharding(mesh, PartitionSpec("d")))}
    rest = [jnp.int32(seed), (ramp[0] * 3).astype(jnp.bfloat16), jax.random.key(seed), None]
    return State(product, jax.device_put(rest, NamedSharding(mesh, PartitionSpec())))


def bits(state: State) -> list[bytes]:
    keys = (jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state))
    return [
        np.array(jax.random.key_data(leaf) if key else leaf, copy=True).tobytes()
        for leaf, key in zip(jax.tree.leaves(state), keys, strict=True)
    ]


def _advanced(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.random.key_data(leaf) + jnp.uint32(1))
    return leaf + jnp.ones((), leaf.dtype)


@contextlib.contextmanager
def struck(at: int, error: Callable[[], BaseException]) -> Generator[Counter[str]]:
    """Raises before the `at`-th operation on the disk; a file that is being written is left half written."""
    done: Counter[str] = Counter()

    def before(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            done["operations"] += 1
            if done["operations"] == at:
                if name == "write":
                    Path(args[0]).write_bytes(args[1][: len(args[1]) // 2])
                done[name] += 1
                raise error()
            return call(*args, **kwargs)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "write", before("write", disk.write))
        patch.setattr(disk, "flush", before("flush", disk.flush))
        patch.setattr(Path, "rename", before("rename", Path.rename))
        patch.setattr(shutil, "rmtree", before("remove", shutil.rmtree))
        yield done


class Lifecycle(RuleBasedStateMachine):
    """One directory, one writer, one reader."""

    @initialize(
        keep_last=st.sampled_from((None, 1, 2)),
        keep_every=st.sampled_from((None, 3)),
        asynchronous=st.booleans(),
        seed=st.integers(0, 50),
    )
    def begin(
        self, keep_last: int | None, keep_every: int | None, asynchronous: bool, seed: int
    ) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "store"
        self.keep = (keep_last, keep_every)
        self.model: dict[int, list[bytes]] = {}
        self.foreign: set[str] = set()
        self.next = 0
        self.step: Any = jax.jit(lambda state: jax.tree.map(_advanced, state), donate_argnums=0)
        self.state: State = self.step(made(seed))
        self.abstract = abstract_like(self.state)
        self.open(asynchronous)
        self.reader = CheckpointStore(self.path, read_only=True)

    def open(self, asynchronous: bool) -> None:
        last, every = self.keep
        self.store = CheckpointStore(
            self.path, keep_last=last, keep_every=every, asynchronous=asynchronous
        )
        self.asynchronous = asynchronous

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            with contextlib.suppress(CheckpointError):
                self.store.close()
            shutil.rmtree(self.folder)

    def count(self, what: str) -> None:
        event(what)
        COUNTS[what] += 1

    def number(self, gap: int) -> int:
        self.next += gap
        return self.next

    def kept(self, saved: int) -> set[int]:
        last, every = self.keep
        if last is None and every is None:
            return set(self.model)
        kept = {saved, *sorted(self.model)[-(last or 1) :]}
        return kept | {step for step in self.model if every is not None and step % every == 0}

    @rule(gap=st.integers(1, 3), donate=st.booleans())
    def save(self, gap: int, donate: bool) -> None:
        step, expected = self.number(gap), bits(self.state)
        self.store.save(step, self.state)
        if donate:  # while a save in the background may still be running
            self.state = self.step(self.state)
        self.store.wait()
        self.model[step] = expected
        kept = self.kept(step)
        self.model = {step: content for step, content in self.model.items() if step in kept}
        self.count(f"saved {'in the background' if self.asynchronous else 'at once'}")

    @rule()
    def update(self) -> None:
        self.state, report = measure_reuse(self.step, self.state)
        assert report.missed == ()
        self.count("updated")

    @rule(which=ANY)
    def save_again(self, which: int) -> None:
        if not self.model:
            return
        step = one_of(sorted(self.model), which)
        with pytest.raises(CheckpointExistsError):
            self.store.save(step, self.state)
        self.count("refused to overwrite")

    @rule(gap=st.integers(1, 3), at=st.integers(1, 12))
    def save_to_a_failing_disk(self, gap: int, at: int) -> None:
        step, expected = self.number(gap), bits(self.state)
        failed = ""
        with struck(at, lambda: OSError(errno.ENOSPC, "No space left on device")) as done:
            try:
                self.store.save(step, self.state)
                self.store.wait()
            except SaveFailedError:
                failed = "a save failed"
            except CheckpointError:
                failed = "pruning failed"
        self.count(failed or "the disk did not fail in time")
        self.reconcile(step, expected, lost_ok=bool(failed))
        if failed == "a save failed" and step not in self.model:
            self.store.save(step, self.state)  # the same step, at once
            self.store.wait()
            self.reconcile(step, expected, lost_ok=False)
        self.count(f"struck at {'/'.join(name for name in done if name != 'operations') or '-'}")

    @rule(gap=st.integers(1, 3), at=st.integers(1, 60))
    def killed(self, gap: int, at: int) -> None:
        """The writer dies before some operation of a save or of the pruning after it; another one takes over."""
        step, expected = self.number(gap), bits(self.state)
        self.store.close()
        was_asynchronous = self.asynchronous
        self.open(asynchronous=False)
        died = False
        with struck(at, KilledError) as done:
            try:
                self.store.save(step, self.state)
            except KilledError:
                died = True
        self.open(was_asynchronous)
        self.reconcile(step, expected, lost_ok=died)
        self.count(f"killed at {'/'.join(name for name in done if name != 'operations') or '-'}")

    def reconcile(self, step: int, expected: list[bytes], *, lost_ok: bool) -> None:
        """Takes over what is on disk, which may be the new step and any that pruning was to remove, but no less."""
        before = dict(self.model)
        everything = {**before, step: expected}
        found = self.reader.steps()
        assert set(found) <= set(everything)
        if step not in found:
            assert lost_ok
            assert set(found) == set(before)
        else:
            self.model = everything
            assert self.kept(step) <= set(found)
        self.model = {number: everything[number] for number in found}

    @rule(asynchronous=st.booleans())
    def reopen(self, asynchronous: bool) -> None:
        self.store.close()
        self.open(asynchronous)
        self.count("reopened")

    @rule(
        name=st.sampled_from(("notes.txt", "07", "x", "9999", "5000", ".saving-4000", "tmp.orbax"))
    )
    def lay_something_there(self, name: str) -> None:
        place = self.path / name
        if not place.exists():
            place.mkdir()
            (place / "precious").write_text(name)
        self.foreign.add(name)
        self.count("foreign things")

    @rule(which=ANY, reading=st.booleans())
    def restore(self, which: int, reading: bool) -> None:
        if not self.model:
            return
        step = one_of((None, *sorted(self.model)), which)
        store = self.reader if reading else self.store
        with contextlib.ExitStack() as stack:
            if step is None:  # foreign directories with numbers are passed over aloud
                stack.enter_context(pytest.warns() if self.warned() else contextlib.nullcontext())
            state = store.restore(self.abstract, step)
        assert bits(state) == self.model[max(self.model) if step is None else step]
        self.state, report = measure_reuse(self.step, state)
        assert (report.fraction, report.missed) == (1.0, ())
        self.count("restored")

    def warned(self) -> bool:
        return any(
            disk.step_number(name) is not None and int(name) > max(self.model)
            for name in self.foreign
        )

    @rule(which=ANY, where=ANY, bit=ANY)
    def damage(self, which: int, where: int, bit: int) -> None:
        """One bit of one file: the error is ours, or the numbers are right."""
        if not self.model:
            return
        step = one_of(sorted(self.model), which)
        directory = self.path / str(step)
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        file = one_of(files, where)
        content = file.read_bytes()
        if not content:
            return
        position = bit % (len(content) * 8)
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        try:
            restored = self.reader.restore(self.abstract, step)
        except CheckpointError as error:
            self.count(f"damage: {type(error).__name__}")
        else:
            assert bits(restored) == self.model[step]
            self.count("damage: in what nobody reads")
        finally:
            file.write_bytes(content)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "model"):
            assert self.store.steps() == self.reader.steps() == sorted(self.model)
            assert self.reader.latest_step() == max(self.model, default=None)
            for name in self.foreign - {".saving-4000"}:
                assert (self.path / name / "precious").read_text() == name


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Lifecycle,
        settings=settings(
            settings.default,
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


@pytest.mark.devices(2)
@pytest.mark.hypothesis
def test_any_order_of_events() -> None:
    COUNTS.clear()
    run(EXAMPLES, 15)
    print(dict(sorted(COUNTS.items())))
    assert sum(COUNTS.values()) > 5 * EXAMPLES
    assert COUNTS["restored"]
    assert COUNTS["a save failed"]
    assert COUNTS["saved in the background"]
    for kind in ("killed at ", "struck at ", "damage: "):
        assert any(what.startswith(kind) for what in COUNTS), kind
