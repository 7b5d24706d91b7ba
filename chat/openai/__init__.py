"""OpenAI's protocol under /v1/, so that its clients can talk to our agents.

Only the addresses import it.
"""
