"""Progress of long work, on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from antipodal.siamese import Epoch, Progress

    Bar = Callable[..., None]


@contextmanager
def bar(title: str) -> Iterator["Bar"]:
    """Show a bar with the time left on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task(title, total=None)

        def show(done: int, total: int, note: str = "") -> None:
            shown.update(task, completed=done, total=total, description=title + note)

        yield show


@contextmanager
def training_progress(title: str) -> Iterator["Progress"]:
    """Show epochs and loss: a bar on a terminal, about ten lines elsewhere."""
    with bar(title) as show:

        def report(epoch: "Epoch") -> None:
            note = f", loss {epoch.loss:.3f}"
            if epoch.validation_loss is not None:
                note += f", held out {epoch.validation_loss:.3f}"
            show(epoch.number, epoch.n_epochs, note)
            step = max(1, epoch.n_epochs // 10)
            if not sys.stderr.isatty() and epoch.number % step == 0:
                typer.echo(f"{title}: epoch {epoch.number}/{epoch.n_epochs}{note}", err=True)

        yield report
