"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

from dflash.provision.operation import Action

# A caller that goes away closes our input, which looks like its end: hence the count.
WRITE = """
set -e
mkdir -p -- "$(dirname -- "$1")"
draft=$1.dflash-draft.$$
trap 'rm -f -- "$draft"' EXIT
umask 077
new=
if [ -e "$1" ] && [ -z "${4-}" ]; then cp -p -- "$1" "$draft"; else new=1; fi
cat > "$draft"
[ "$(wc -c < "$draft")" -eq "$3" ] || { echo "of $3 bytes not all came" >&2; exit 1; }
[ -z "$new" ] || chmod -- "$2" "$draft"
sync -- "$draft" 2>/dev/null || sync
mv -f -- "$draft" "$1"
"""


def write_text(place: str, text: str, mode: str = "0644") -> Action:
    """Write `text` to the file `place`, in a folder that is made where it is missing. A file that is there keeps its
    owner and mode."""
    data = text.encode()
    return Action(("sh", "-c", WRITE, "sh", place, mode, str(len(data))), stdin=data)


def write_file(place: str, source: Path, size: int, mode: str = "0644", *, root: bool = True) -> Action:
    """Write this machine's file `source`, of `size` bytes, to the file `place`, which is a new one in any case."""
    return Action(("sh", "-c", WRITE, "sh", place, mode, str(size), "new"), file=source, root=root)


# By the machine itself, in one step: of what is there, nothing is written again, and what others add stays.
APPEND = """
set -e
[ ! -e "$1" ] || ! grep -qxF -e "$2" -- "$1" || exit 0
between=
[ ! -s "$1" ] || [ -z "$(tail -c 1 -- "$1")" ] || between='\\n'
printf "$between%s\\n" "$2" >> "$1"
sync -- "$1" 2>/dev/null || sync
"""


def append_line(place: str, line: str) -> Action:
    """Add `line` to the end of the file `place`, unless it has it."""
    return Action(("sh", "-c", APPEND, "sh", place, line))
