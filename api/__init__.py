"""HTTP: everything a client sees. Knows an abstract `Backend`, never an actor."""
