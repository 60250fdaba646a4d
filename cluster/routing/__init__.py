"""How a replica is chosen for a request: the directory of pages, the policies, the receipts. Pure Python."""
