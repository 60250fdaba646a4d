"""The gateway: the HTTP app on uvicorn and its ZeroMQ link to the heads."""
