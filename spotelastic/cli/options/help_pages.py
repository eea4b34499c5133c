"""Shows the options of `up` page by page: those that most jobs need, then each subject's."""

from typing import Any

from typer.core import TyperCommand

from spotelastic.client.config.panels import SUBJECTS

ALL = "all"
"""The subject that has every option."""
FIRST = frozenset(
    [
        *("script", "args", "name", "resume", "fresh", "plan", "yes", "json", "drill", "detach"),
        *("local", "region", "min", "max", "instance_types", "gpus", "gpu_memory"),
        *("nproc_per_node", "kube", "storage", "on_demand", "max_price", "max_cost", "deadline"),
        *("snapshot_every", "checkpoint_every", "output", "rehearse", "notify"),
        *("environment", "setup", "image", "env", "secret", "keep"),
    ]
)
"""Arguments and options on the first page, by the names of their fields."""


class PagedCommand(TyperCommand):
    """A command whose `--help` shows the first page, and `--help SUBJECT` all of a subject.

    What follows `--help` and is no subject is left aside, as it is elsewhere.
    """

    _subject = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] and args[0] in ctx.help_option_names:
            self._subject = args[1] if args[1:2] else ""
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from spotelastic.launcher.help import fold_long_names

        panel = SUBJECTS.get(self._subject)
        on_first = panel is None and self._subject != ALL
        for each in self.params:
            is_of_panel = getattr(each, "rich_help_panel", None) == panel
            each.hidden = each.name not in FIRST if on_first else panel and not is_of_panel
        if panel is not None:
            self.help, self.epilog = f"{panel}: all options of `{ctx.command_path}`.", None
        fold_long_names()
        super().format_help(ctx, formatter)
        if on_first:
            self._list_subjects(ctx)

    def _list_subjects(self, ctx: Any) -> None:
        """Print the subjects that have more options, each on a line."""
        from rich.console import Console
        from rich.panel import Panel
        from rich.table import Table

        rows = Table.grid(padding=(0, 2), expand=True)
        rows.add_column(style="bold cyan", no_wrap=True, width=max(map(len, SUBJECTS)))
        rows.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for subject, panel in SUBJECTS.items():
            found = [each for each in self.params if getattr(each, "rich_help_panel", "") == panel]
            names = (each.opts[0] for each in found if each.name not in FIRST)
            if more := ", ".join(names):
                rows.add_row(subject, f"{panel}: {more}")
        rows.add_row(ALL, "Every option")
        title = f"More options: {ctx.command_path} --help SUBJECT"
        Console().print(Panel(rows, title=title, title_align="left", border_style="dim"))
