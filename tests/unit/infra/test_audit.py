"""``make audit`` never passes for having looked nothing up; and it is asked by people alone."""

import subprocess
from pathlib import Path

import pytest

#: Stands for the Python that makes the audit's environment, and puts a ``pip-audit`` into it.
_PYTHON = """\
#!/bin/sh
mkdir -p "$3/bin"
printf '#!/bin/sh\\n' >"$3/bin/pip"
cp "$(dirname "$0")/pip-audit" "$3/bin/pip-audit"
chmod +x "$3"/bin/*
"""

_SOUND = '{"dependencies": [{"name": "x", "version": "1", "vulns": []}]}'
_KNOWN = '{"dependencies": [{"name": "jinja2", "version": "2.10", "vulns": [{"id": "PYSEC-1"}]}]}'

#: What a ``pip-audit`` does with the file that is known to be bad, and with a lock.
UNREACHABLE = ("echo 'ERROR: no connection' >&2; exit 1", "exit 1")
KNOWS_NOTHING = (f"echo '{_SOUND}'; exit 0", "exit 0")
ALL_SOUND = (f"echo '{_KNOWN}'; exit 1", "exit 0")
ONE_BAD = (f"echo '{_KNOWN}'; exit 1", "case $* in *worker.lock*) exit 1;; esac")


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        (UNREACHABLE, 2, "nothing was looked up"),
        (KNOWS_NOTHING, 2, "nothing was looked up"),
        (ALL_SOUND, 0, ""),
        (ONE_BAD, 1, ""),
    ],
    ids=["unreachable", "a mirror that knows nothing", "sound", "one bad"],
)
def test_it_passes_only_if_all_was_looked_up(
    repository: Path, tmp_path: Path, does: tuple[str, str], code: int, said: str
) -> None:
    """A version known to be bad shows whether there is a list at all."""
    (tmp_path / "python").write_text(_PYTHON)
    (tmp_path / "python").chmod(0o755)
    known, lock = does
    (tmp_path / "pip-audit").write_text(
        f"#!/bin/sh\ncase $* in *known.txt*) {known};; esac\n{lock}\n"
    )
    ended = subprocess.run(
        [repository / "infra" / "audit.sh", tmp_path / "python"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code
    assert said in ended.stderr
    locks = sorted(path.name for path in (repository / "requirements").glob("*.lock"))
    looked_up = [Path(line).name for line in ended.stdout.splitlines()]
    assert looked_up == (locks if code < 2 else [])


def test_ci_does_not_ask_for_it(repository: Path) -> None:
    """Its answer changes with the list, not with the code."""
    assert "audit" not in (repository / ".ci" / "run").read_text()
