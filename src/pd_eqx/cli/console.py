"""What a run looks like to a person: a bar on a terminal, plain lines elsewhere, a table at the end."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

if TYPE_CHECKING:
    from pd_eqx.runs.loop import Progress

_SECONDS_BETWEEN_LINES = 5.0


class ConsoleWatcher:
    """Shows a run as it goes; see `pd_eqx.runs.loop.Watcher`."""

    def __init__(
        self, console: Console, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console
        self.name = name
        self._clock = clock
        self._rate: float | None = None
        self._dispatches = 0
        self._said_at = -_SECONDS_BETWEEN_LINES
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "ConsoleWatcher":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Takes the bar down."""
        self._stop_bar()

    def say(self, line: str) -> None:
        """See `Watcher.say`."""
        say(self.console, line)

    def advance(self, progress: "Progress") -> None:
        """See `Watcher.advance`."""
        last = progress.step == progress.steps
        self._dispatches += 1
        if self._dispatches == 1 and not last:
            return  # it is slow, and says nothing of how long the others will take
        rate = progress.rate if self._rate is None else 0.8 * self._rate + 0.2 * progress.rate
        self._rate = rate
        left = (progress.steps - progress.step) / rate
        losses = "  ".join(
            f"{name.removeprefix('loss/')} {value:.2e}" for name, value in progress.losses.items()
        )
        if self.console.is_terminal:
            self._show(progress, f"{rate:.1f} steps/s  {clock_time(left)} left  {losses}")
            if last:
                self._stop_bar()
        elif last or self._clock() - self._said_at >= _SECONDS_BETWEEN_LINES:
            self._said_at = self._clock()
            line = f"step {progress.step}/{progress.steps}  {rate:.1f} steps/s  {clock_time(left)} left"
            self.say(f"{line}  {losses}")

    def _show(self, progress: "Progress", text: str) -> None:
        if self._bar is None or self._task is None:
            columns = (
                TextColumn(self.name),
                BarColumn(20),
                TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.description}"),
            )
            self._bar = Bar(*columns, console=self.console)
            self._bar.start()
            self._task = self._bar.add_task("", total=progress.steps)
        self._bar.update(self._task, completed=progress.step, description=text)

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def print_summary(console: Console, summary: Mapping[str, Any], run_dir: Path) -> None:
    """The result of a finished run: its numbers, where things lie, and what to do next."""
    steps = summary["steps"]
    resumed = f"   resumed {summary['resumes']} times" if summary["resumes"] else ""
    head = f"{summary['name']}   step {steps}/{steps}   {clock_time(summary['seconds'])}{resumed}"
    _print_lines(console, [("", head)])
    _print_report(console, summary)
    checkpoint = run_dir / "checkpoints" / str(steps)
    items = ", ".join(
        f"{item.name} {readable_bytes(directory_bytes(item))}"
        for item in sorted(checkpoint.glob("*/"))
    )
    lines = [
        ("saved", f"{checkpoint} ({items})"),
        *_figures(run_dir),
        ("summary", str(run_dir / "summary.json")),
        ("next", f"pd-eqx report {run_dir}"),
    ]
    _print_lines(console, lines)


def print_evaluation(console: Console, report: Mapping[str, Any], run_dir: Path) -> None:
    """What an evaluation after the fact found."""
    _print_lines(console, [("", f"{run_dir}   step {report['step']}")])
    _print_report(console, report)
    _print_lines(console, _figures(run_dir))


def _print_report(console: Console, report: Mapping[str, Any]) -> None:
    console.print(sites_table(report))
    told = report.get("inputs", {}).get("target")
    errors = "   ".join(
        f"{name} {value:.1e}" for name, value in report.get("reconstruction", {}).items()
    )
    # What says next tokens is compared by its distributions, and also by what masks cost it.
    lines = [("KL" if "cross_entropy" in report else "error", errors)]
    if "cross_entropy" in report:
        nats = report["cross_entropy"]
        lines.append(("CE", "   ".join(f"{name} {value:.3f}" for name, value in nats.items())))
        shares = report.get("cross_entropy_recovered", {}).items()
        kept = [f"{name} {share:.1%}" for name, share in shares if share is not None]
        if kept:
            lines.append(("recovered", "   ".join(kept)))
    _print_lines(console, [*lines, *([("target", told)] if told else [])])


def _figures(run_dir: Path) -> list[tuple[str, str]]:
    names = sorted(figure.name for figure in (run_dir / "figures").glob("*.png"))
    return [("figures", f"{run_dir / 'figures'}: {', '.join(names)}")] if names else []


def sites_table(report: Mapping[str, Any]) -> Table:
    """One row a site: components, how many are alive and how many matter at a time; and of toys, what was expected."""
    sites = report["alive"]
    columns: list[tuple[str, Mapping[str, str]]] = [
        ("alive", {site: str(alive) for site, alive in sites.items()}),
    ]
    if "identity_ci_error" in report or "geometry" in report:
        columns += _toy_columns(report)
    elif "l0" in report:
        columns.append(("of", {site: str(n) for site, n in report.get("components", {}).items()}))
        for threshold in next(iter(report["l0"].values())):
            matter = {site: f"{report['l0'][site][threshold]:.1f}" for site in sites}
            columns.append((f"L0 at {threshold}", matter))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("site")
    for name, _ in columns:
        table.add_column(name, justify="right")
    for site in sites:
        table.add_row(site, *(cells.get(site, "-") for _, cells in columns))
    return table


def _toy_columns(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, str]]]:
    errors, geometry = report.get("identity_ci_error", {}), report.get("geometry", {})
    told = {
        site: ", ".join(f"{count} at {tolerance}" for tolerance, count in of_site.items()) or "-"
        for site, of_site in errors.items()
    }
    measured = [
        (name, {site: f"{of[name]:.3f}" for site, of in geometry.items() if name in of})
        for name in ("mmcs", "ml2r")
    ]
    return [("pattern errors", told), *measured]


def say(console: Console, line: str) -> None:
    """One line as it is: never wrapped, coloured or read as markup."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _print_lines(console: Console, lines: Sequence[tuple[str, str]]) -> None:
    for label, text in lines:
        say(console, f"{label:<9} {text}" if label else text)


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds: `00:01:13`."""
    whole = round(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def readable_bytes(count: int) -> str:
    """A number of bytes in a unit that fits: `14 KiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024.0:
            return f"{size:.0f} {unit}"
        size /= 1024.0
    return f"{size:.1f} TiB"


def directory_bytes(path: Path) -> int:
    """Bytes of all files under a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
