"""Logins, API tokens, throttles, and the open connections of clients.

The pages, every protocol, the server, monitoring and the commands may import it.
"""
