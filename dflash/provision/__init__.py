"""What a host must have before work starts: `facts` reads it, `checks` judges it, `table` shows it."""

from dflash.finding import Finding
from dflash.provision.check import check, require
from dflash.provision.checks.here import CheckConfig
from dflash.provision.table import findings_of, lines_of, print_table

__all__ = ["CheckConfig", "Finding", "check", "findings_of", "lines_of", "print_table", "require"]
