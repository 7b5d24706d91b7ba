"""What monitoring reads: health, metrics, log lines.

Imported by the project.
"""
