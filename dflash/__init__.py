"""Train DFlash speculative-decoding drafters, reproducibly, on hosts one reaches over SSH and LXC."""

__version__ = "0.1.0"
