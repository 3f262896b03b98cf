"""What a machine is found to be: one module for each kind of thing, with facts and the plain values they give."""
