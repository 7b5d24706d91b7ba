"""Values, SQL, limits, database threads and this process, without any knowledge of runs.

Every room may import it; it imports none.
"""
