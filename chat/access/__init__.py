"""Logins, API tokens, throttles, and the open connections of clients.

The pages and every protocol may import it.
"""
