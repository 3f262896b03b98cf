"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

from dflash.provision.operation import Action

# A caller that goes away closes our input, which looks like its end: hence the count.
WRITE = """
set -e
mkdir -p -- "$(dirname -- "$1")"
draft=$1.dflash-draft
trap 'rm -f -- "$draft"' EXIT
umask 077
new=
if [ -e "$1" ]; then cp -p -- "$1" "$draft"; else new=1; fi
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


def write_file(place: str, source: Path, size: int, mode: str = "0644") -> Action:
    """Write this machine's file `source`, of `size` bytes, to the file `place`."""
    return Action(("sh", "-c", WRITE, "sh", place, mode, str(size)), file=source)
