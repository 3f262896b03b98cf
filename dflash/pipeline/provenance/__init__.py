"""What a run was made from, as its record keeps it: enough to do it again elsewhere, and to say what was different."""
