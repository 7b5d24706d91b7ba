"""What a crash, a lost signal or a deletion left behind is brought into order.

Imported by the worker, the operators and the commands.
"""
