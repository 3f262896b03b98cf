"""Record what peers make of today's export: `PYTHONPATH=. python -m tests.peers.record`. Two minutes and 6 GB."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.peers.asking import ask_speculators, ask_zlab, convert, given, keep, published
from tests.peers.learnt import PROMPTS, make_pair
from tests.race.environments import environment_of


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        pair = published(make_pair(home), home)
        keep("given", given(pair.export))
        with environment_of("peer-dflash") as peer:
            answer, _ = ask_zlab(peer.python, pair, home)
        keep("dflash", answer)
        text = PROMPTS[0] + answer["generated"][0]["tokens"]
        with environment_of("peer-speculators") as peer:
            converted = convert(peer.python, pair, home)
            keep("speculators", ask_speculators(peer.python, pair, home, converted, text, len(PROMPTS[0]))[0])


if __name__ == "__main__":
    main()
