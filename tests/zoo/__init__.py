"""The zoo: agents as people write them, each led through all kinds of lives.

Their models and tools keep a ledger of their own. After each life the log, the effects and the figures have
to agree with it.
"""
