"""What leaves the engine as JSON: the types of the objects, and how rows become them.

Every room above the statements may import it.
"""
