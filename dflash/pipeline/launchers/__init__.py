"""How the workers of a training are started: each launcher in a module of its own, behind one small interface."""
