"""Who may come in: logins, tokens, limits, and the connections that are open.

Every edge may import it.
"""
