"""What is wrong with a machine: pure functions from facts to findings, a module for each layer."""
