"""The draft model, its block mask and loss, the target it reads from, decoding, and the published layout."""
