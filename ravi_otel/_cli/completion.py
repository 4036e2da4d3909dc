"""Print what a shell needs to complete our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_NAME = "ravi-otel"
_VARIABLE = "_RAVI_OTEL_COMPLETE"


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script that lets SHELL complete commands and options.

    \b
      bash:  eval "$(ravi-otel completion bash)"      in ~/.bashrc
      zsh:   eval "$(ravi-otel completion zsh)"       in ~/.zshrc
      fish:  ravi-otel completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301 - click wants the backspace itself
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, _NAME, _VARIABLE).source())
