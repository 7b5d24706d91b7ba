"""The shapes of everything that leaves the engine, as JSON.

Every room above the models may import it.
"""
