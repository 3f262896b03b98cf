"""A pipeline as the YAML of another engine, which runs it whole, in one container of the pinned image.

What is written here was checked against the engines' own schemas, and never run by them.
"""
