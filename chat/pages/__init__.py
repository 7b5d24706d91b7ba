"""The pages for people: the chat and the account.

Only the addresses and the settings import it.
"""
