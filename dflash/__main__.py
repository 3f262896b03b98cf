"""`python -m dflash VERB`: what `./inv VERB` runs."""

try:
    from dflash.cli import main

    main()
except KeyboardInterrupt:  # while modules were still being imported
    raise SystemExit(130) from None
