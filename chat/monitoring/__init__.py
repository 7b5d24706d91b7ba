"""What monitoring reads: health checks, metrics and the forms of the log.

Only the project imports it.
"""
