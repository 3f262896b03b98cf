"""A pipeline as the YAML of another engine, which runs it whole, in one container of the pinned image.

The form of what is written here is held against the engines' own packages in the tests; it was never run by them.
"""
