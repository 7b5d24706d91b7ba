"""What monitoring reads: health checks, metrics and logs in JSON.

Only the project imports it.
"""
