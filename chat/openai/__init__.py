"""The edge for clients of OpenAI's protocol, under /v1/.

Imported by the addresses.
"""
