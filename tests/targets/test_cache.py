import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from pd_eqx.targets import cache as cache_module
from pd_eqx.targets.cache import TargetCache, cached_target, default_folder, identity
from pd_eqx.targets.resid_mlp import ResidMLP, ResidMLPTraining
from pd_eqx.targets.training import Progress

TINY = ResidMLPTraining(
    n_features=4,
    d_embed=7,
    n_neurons=3,
    in_bias=True,
    batch_size=8,
    steps=2,
    max_loss=9.0,
    min_response=-9.0,
)
KEY = jax.random.key(4)


@pytest.fixture
def cache(tmp_path: Path) -> TargetCache:
    return TargetCache(tmp_path / "deep" / "cache")


def drawn(training: ResidMLPTraining = TINY, seed: int = 1) -> ResidMLP:
    """A target that training would not end in: what comes from the cache can be told from what is trained."""
    return training.target(*training.init(jax.random.key(seed)))


def leaf_bytes(target: ResidMLP | None) -> list[bytes]:
    assert target is not None
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(target)]


def test_what_is_kept_comes_back_bit_for_bit(cache: TargetCache) -> None:
    assert cache.load(KEY, TINY) is None
    cache.save(KEY, TINY, drawn())
    assert leaf_bytes(cache.load(KEY, TINY)) == leaf_bytes(drawn())
    assert [path.suffix for path in cache.folder.iterdir()] == [".target"]


def test_a_kept_target_is_not_trained_again(cache: TargetCache) -> None:
    progress: list[Progress] = []
    first = cached_target(cache, KEY, TINY, progress.append)
    trained = len(progress)
    assert trained > 0
    again = cached_target(cache, KEY, TINY, progress.append)
    assert len(progress) == trained
    assert leaf_bytes(again) == leaf_bytes(first)
    cached_target(None, KEY, TINY, progress.append)
    assert len(progress) == 2 * trained


def test_other_settings_another_key_and_other_code_are_other_targets(
    cache: TargetCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.save(KEY, TINY, drawn())
    assert cache.load(jax.random.key(5), TINY) is None
    assert cache.load(jax.random.key(4, impl="rbg"), TINY) is None
    assert cache.load(KEY, dataclasses.replace(TINY, learning_rate=2e-3)) is None
    monkeypatch.setattr(cache_module, "_SOURCES", ("targets", "data", "optimizers.py", "losses.py"))
    assert cache.load(KEY, TINY) is None


def test_the_same_is_found_whoever_asks() -> None:
    assert identity(jax.random.key(4), dataclasses.replace(TINY)) == identity(KEY, TINY)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty"])
def test_a_damaged_file_is_as_if_it_were_absent_and_is_replaced(
    cache: TargetCache, damage: str
) -> None:
    cache.save(KEY, TINY, drawn())
    path = cache.path(KEY, TINY)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flipped": content, "truncated": content[:-9], "empty": b""}[damage])
    assert cache.load(KEY, TINY) is None
    cache.save(KEY, TINY, drawn())
    assert leaf_bytes(cache.load(KEY, TINY)) == leaf_bytes(drawn())


def test_a_target_of_another_shape_is_not_taken(cache: TargetCache) -> None:
    wider = dataclasses.replace(TINY, d_embed=8)
    cache.save(KEY, wider, drawn(wider))
    cache.path(KEY, wider).rename(cache.path(KEY, TINY))
    assert cache.load(KEY, TINY) is None


def test_a_folder_that_cannot_be_written_is_warned_of_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match=r"could not be kept.*target.cache to false"):
        target = cached_target(TargetCache(tmp_path / "file"), KEY, TINY)
    assert isinstance(target, ResidMLP)


def test_a_save_that_fails_leaves_what_was_there(
    cache: TargetCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.save(KEY, TINY, drawn(seed=1))

    def no_power(descriptor: int) -> None:
        raise OSError(5, "power cut")

    monkeypatch.setattr("os.fsync", no_power)
    with pytest.raises(OSError, match="power cut"):
        cache.save(KEY, TINY, drawn(seed=2))
    assert leaf_bytes(cache.load(KEY, TINY)) == leaf_bytes(drawn(seed=1))
    assert len(list(cache.folder.iterdir())) == 1


def test_the_default_folder_is_in_the_user_s_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert default_folder() == Path("/elsewhere/pd_eqx/targets")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "pd_eqx" / "targets"
