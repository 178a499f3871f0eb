"""A run of the peer, imported, computes what the peer computed; parity is to what the peer wrote down."""

import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import pd_eqx
from pd_eqx.cli.import_spd import import_spd
from pd_eqx.linear import capture
from pd_eqx.masks import SiteMask
from pd_eqx.runs.open import OpenedRun

GOLDEN = Path(__file__).parents[1] / "golden" / "spd_runs"
RUNS = {"tms_5-2": 10_000, "resid_mlp1_600steps": 600}


@pytest.fixture(params=RUNS, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def source(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as the peer wrote it."""
    folder = tmp_path_factory.mktemp("spd") / name
    shutil.copytree(GOLDEN / name, folder)
    parts = sorted(folder.glob("model_*.part*"))
    if parts:
        whole = folder / parts[0].name.rpartition(".")[0]
        whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    return folder


@pytest.fixture(scope="module")
def run(source: Path) -> OpenedRun:
    import_spd(source, source.parent / "run")
    return pd_eqx.open_run(source.parent / "run")


def test_it_computes_what_the_peer_computed(name: str, run: OpenedRun) -> None:
    with np.load(GOLDEN / name / "golden.npz", allow_pickle=False) as file:
        golden = {key: file[key] for key in file.files}
    x = golden["x"]
    checked = {"x"}

    def check(key: str, found: object) -> None:
        np.testing.assert_allclose(
            np.asarray(found), golden[key], rtol=1e-5, atol=1e-6, err_msg=key
        )
        checked.add(key)

    check("target_output", run.output(x))
    ci = run.causal_importances(x)
    _, site_inputs, _ = capture(run.target, jnp.asarray(x))
    for site, V in run.decomposition.components.V.items():
        check(f"ci_pre/{site}", ci.logits[site])
        check(f"ci_lower/{site}", ci.lower[site])
        check(f"ci_upper/{site}", ci.upper[site])
        if f"site_input/{site}" in golden:
            check(f"site_input/{site}", site_inputs[site])
        if f"weight_delta/{site}" in golden:
            U = run.decomposition.components.U[site]
            check(f"weight_delta/{site}", (run.target.weights()[site] - V @ U).T)
    sites = list(run.decomposition.components.V)
    check(
        "ci_masked_output",
        run.masked_output(x, {site: golden[f"ci_lower/{site}"] for site in sites}),
    )
    masks = {
        site: SiteMask(
            jnp.asarray(golden[f"mask/{site}"]), jnp.asarray(golden[f"delta_mask/{site}"])
        )
        for site in sites
    }
    checked |= {f"{kind}/{site}" for kind in ("mask", "delta_mask") for site in sites}
    check("masked_output", run.masked_output(x, masks))
    assert checked == set(golden)


def test_it_is_a_run_like_any_other(
    name: str, source: Path, run: OpenedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.step == RUNS[name]
    assert run.config.steps == RUNS[name]
    kinds = [term.kind for term in run.config.objective]
    assert kinds == ["importance_minimality", "reconstruction", "reconstruction"]
    with pytest.raises(SystemExit) as ended:
        import_spd(source, source.parent / "run")
    assert ended.value.code == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("final_config.yaml", "ci_fn_type: mlp", "ci_fn_type: magic", "ci_fn_type is 'magic'"),
        ("final_config.yaml", "models.TMSModel", "models.Bert", "is 'Bert'; the targets"),
        ("final_config.yaml", "seed: 0", "seed: !!python/object/apply:os.abort []", "not plain YAML"),
        ("tms_train_config.yaml", "n_hidden: 2", "n_hidden: 3", "linear1.weight' is [2, 5], expected [3, 5]"),
        ("tms_train_config.yaml", "n_hidden: 2", "", "lacks 'n_hidden'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(
    file: str,
    before: str,
    after: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(GOLDEN / "tms_5-2", tmp_path / "spd")
    path = tmp_path / "spd" / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(SystemExit) as ended:
        import_spd(tmp_path / "spd" / "model_10000.pth", tmp_path / "run")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()
