"""How the command ends when something is wrong: one sentence, one exit code, no traceback."""

import sys
from typing import Any

import typer
from statetap_contract import StatetapError
from typer.core import TyperGroup

#: Something needed is not there.
_EXIT_MISSING = 3


class ErrorGroup(TyperGroup):
    """The command group; the only place where errors become words and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StatetapError as error:
            sentence, code = error.message, error.exit_code
        except BrokenPipeError:
            raise
        except OSError as error:
            # A disk that is full or read-only, wherever it was met.
            sentence, code = str(error), _EXIT_MISSING
        sys.stdout.flush()
        typer.echo(f"statetap: {sentence}", err=True)
        raise typer.Exit(code)
