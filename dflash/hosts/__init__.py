"""Reaching a host: chains of hops and the inventory that names them."""
