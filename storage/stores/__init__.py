"""L3: stores that outlive every worker and are shared by all replicas. `open_store` (opening.py) is the way in."""
