"""No race, no cold surprise: the compile gate, and the proof that a cache is warm."""
