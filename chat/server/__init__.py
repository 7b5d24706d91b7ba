"""Daphne's server as we run it, from the port to the departure.

Imported by commands and by the cluster.
"""
