"""Pipelines: YAML to a plan, a plan to a run, a run to a record and a report."""
