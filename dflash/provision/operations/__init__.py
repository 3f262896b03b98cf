"""What changes a machine: generators from facts to changes, which run nothing themselves."""
