"""The command line: one group, one file a command, each imported when it is called; errors as one sentence."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from typing import Any, Final, cast

import click

from ravi_otel import __version__
from ravi_otel._extras import load
from ravi_otel.errors import ConfigurationError, MissingExtraError, RaviError

NAME = "ravi-otel"
INTERRUPTED: Final = 130

COMMANDS: Final = {
    "run": "Run a program under observation and a hard budget.",
    "limits": "Show the limits that count, and where each comes from.",
    "ledger": "Look at shared budgets, and set or close them.",
    "top": "Watch the agents that run now, and steer them.",
    "ui": "Look at all of it in the browser.",
    "mcp": "Serve the store to a coding agent, over MCP.",
    "runs": "List the stored runs, newest first.",
    "show": "Show a stored run as a tree, or whatever an id names.",
    "diff": "Compare two stored runs.",
    "cost": "Add up what stored runs cost.",
    "suggest": "Write a policy file from what past runs used.",
    "replay": "Send a stored run to an OTLP backend.",
    "prune": "Delete old runs from the store, or what is of one user.",
    "approvals": "List what waits for your approval, and answer it.",
    "audit": "Read audit logs, and check that they are as they were written.",
    "stack": "Start and stop collector, stores and dashboards.",
    "doctor": "Say what is not well, and what to do.",
    "demo": "Watch a runaway agent be stopped at its budget.",
    "completion": "Print the completion script of a shell.",
}
"""Each command with its line of help, in the order of `--help`; `NAME` of module `ravi_otel._cli.NAME`."""


class _BadInput(click.ClickException):
    """Say what is wrong with an argument, the environment or the installation."""

    exit_code = 2


class Commands(click.Group):
    """Show errors of ours as one sentence on standard error; exit with 2 for what must be set or written otherwise, else 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (ConfigurationError, MissingExtraError) as error:
            raise _BadInput(str(error)) from error
        except RaviError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of a name that is none, say which was meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", error.ctx) from error


class _Loaded(Commands):
    """Import a command when it is called, and none for the list of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import one command; None for a name that is none."""
        if cmd_name not in COMMANDS:
            return None
        return cast("click.Command", getattr(load(f"ravi_otel._cli.{cmd_name}"), cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Loaded, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=NAME)
def commands() -> None:
    """Observe LLM agents with OpenTelemetry, and hold them to budgets that really hold."""


def main() -> None:
    """Run the command line and exit: 0 done, 1 something failed on the way, 2 something must be set or written otherwise."""
    try:
        commands(prog_name=NAME)
    except OSError as error:  # such as a device that is full; of a reader that left, click ends quietly itself
        with contextlib.suppress(OSError):
            click.echo(f"Error: {error.strerror or type(error).__name__}. Nothing more could be read or written.", err=True)
        sys.exit(1)
    finally:
        _let_go()


def _let_go() -> None:
    """Discard what the output did not take, such as a full device, so that Python does not complain of it at its very end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            except (OSError, ValueError, AttributeError):  # closed, or none at all
                continue
