"""Be the command line: one group, one file a command, errors as one sentence."""

from __future__ import annotations

from typing import Any

import click

from ravi_otel import __version__
from ravi_otel.cli.demo import demo
from ravi_otel.errors import ConfigurationError, MissingExtraError, RaviError

NAME = "ravi-otel"


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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=NAME)
def commands() -> None:
    """Observe LLM agents with OpenTelemetry, and hold them to budgets that really hold."""


commands.add_command(demo)


def main() -> None:
    """Run the command line and exit: 0 done, 1 something failed on the way, 2 something must be set or written otherwise."""
    commands(prog_name=NAME)
