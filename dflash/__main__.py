"""`python -m dflash VERB`: what `./inv VERB` runs."""

from dflash.cli import main

main()
