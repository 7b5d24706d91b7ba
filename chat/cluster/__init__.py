"""Everything that several processes take, on one machine: ``manage.py cluster`` and its parts."""
