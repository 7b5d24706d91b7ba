"""The commands of the shell: ``manage.py`` and what it does with the engine.

Imported by Django.
"""
