"""A command answers soon and plainly: help at once, a mistake in a line, a result that can be read."""

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pd_eqx.cli.evaluate import evaluate
from pd_eqx.cli.train import train
from runs.small import SMALL, Runner, metrics_of, saved_steps

HELP = "import sys; sys.argv = ['pd-eqx', '--help']; from pd_eqx.cli import main; main()"


def cpu_seconds(code: str) -> float:
    """Of a Python of its own: a busy machine makes the clock run, not this."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.returncode == 0, ended.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_comes_at_once() -> None:
    cpu_seconds(HELP)  # the first one writes the byte code
    assert min(cpu_seconds(HELP) for _ in range(3)) < 0.5


def test_without_the_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from pd_eqx.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "pd-eqx: typer is not installed: pip install 'pd_eqx[cli]'\n"


def refused(command: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says on stderr as it refuses."""
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pd-eqx: ")
    return printed.err.removeprefix("pd-eqx: ").rstrip("\n")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_an_absent_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(lambda: train(tmp_path / "no.yaml", tmp_path / "run"), capsys)
    assert said == f"cannot read {tmp_path / 'no.yaml'}: No such file or directory"
    assert not (tmp_path / "run").exists()


def test_a_misspelt_key(config: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(lambda: train(config, run_dir, ["data.batch_sise=3"]), capsys)
    assert said == "data.batch_sise: unknown key; nearest is 'batch_size'"
    assert not run_dir.exists()


def test_a_misspelt_site(config: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(lambda: train(config, run_dir, ["sites.liner1=3"]), capsys)
    assert "nearest site is 'linear1'" in said
    assert "\n" not in said


def test_a_directory_that_is_no_run(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert "not empty and not a run" in refused(lambda: train(config, tmp_path), capsys)
    assert "is not a run" in refused(lambda: evaluate(tmp_path), capsys)
    assert "cannot use" in refused(lambda: train(config, config), capsys)


def test_another_configuration(
    config: Path, uninterrupted: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(uninterrupted, run_dir)
    said = refused(lambda: train(config, run_dir, ["seed=8"]), capsys)
    assert "seed: stored 7, asked 8" in said
    assert said.endswith("choose another --run-dir for a new run.")


def test_a_step_that_is_not_there(uninterrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no step 3" in refused(lambda: evaluate(uninterrupted, step=3), capsys)


def test_a_finished_run_is_told_as_a_table(uninterrupted: Path) -> None:
    stdout = (uninterrupted.parent / "stdout").read_text()
    assert re.search(r"^small   step 120/120   00:\d\d:\d\d$", stdout, re.MULTILINE)
    assert re.search(r"^site +alive +pattern errors +mmcs +ml2r", stdout, re.MULTILINE)
    summary = json.loads((uninterrupted / "summary.json").read_text())
    for site in ("linear1", "linear2"):
        errors = summary["identity_ci_error"][site]
        mmcs = summary["geometry"][site]["mmcs"]
        row = rf"^{site} +{summary['alive'][site]} +{errors['0.1']} at 0.1, {errors['0.2']} at 0.2 +{mmcs:.3f}"
        assert re.search(row, stdout, re.MULTILINE), row
    where = rf"^saved +{uninterrupted}/checkpoints/120 \(decomposition \d+ KiB, training \d+ KiB\)$"
    assert re.search(where, stdout, re.MULTILINE)
    assert re.search(r"^figures +\S+/figures: .*importances\.png", stdout, re.MULTILINE)
    assert re.search(r"^next +pd-eqx report", stdout, re.MULTILINE)
    assert re.search(
        r"^step 120/120  [\d.]+ steps/s  00:00:00 left  importance_", stdout, re.MULTILINE
    )


def test_an_evaluation_after_the_fact_finds_what_the_run_found(
    runner: Runner, uninterrupted: Path, run_dir: Path
) -> None:
    shutil.copytree(uninterrupted, run_dir)
    ended = runner("evaluate", str(run_dir), "--json")
    assert ended.status == 0, ended.stderr
    found = json.loads(ended.stdout)
    summary = json.loads((uninterrupted / "summary.json").read_text())
    assert found.pop("step") == 120
    assert {"mmcs", "alive", "reconstruction", "identity_ci_error"} <= set(found)
    assert found == {name: summary[name] for name in found}


def test_a_run_that_diverges_stops_and_keeps_its_last_good_checkpoint(
    runner: Runner, run_dir: Path
) -> None:
    overrides = ("optimizers.components.lr={kind: constant, value: 1e30}", "checkpoint.every=1")
    for _ in range(2):  # resuming does not hide it
        ended = runner.train(run_dir, *overrides)
        assert ended.status == 1
        (said,) = re.findall(
            r"^pd-eqx: update (\d+) of 120: (\S+) is (?:nan|inf)", ended.stderr, re.M
        )
        assert "Traceback" not in ended.stderr
        assert said[1].startswith(("loss/", "grad_norm/"))
        assert saved_steps(run_dir)[-1] == int(said[0])
        assert f"step {said[0]}, the last good checkpoint, is kept" in ended.stderr
        assert all(record["step"] <= int(said[0]) for record in metrics_of(run_dir))
