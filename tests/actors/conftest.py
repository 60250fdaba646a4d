import pytest
from endpoint_fakes import Client, Inbox, open_endpoint


@pytest.fixture
def inbox():
    return Inbox()


@pytest.fixture
def serve(inbox):
    """Makes endpoints and clients, and closes them."""
    opened = []

    def start(wire=None, heartbeat=None, **kwargs):
        endpoint = open_endpoint(inbox, wire, heartbeat, **kwargs)
        endpoint.start()
        opened.append(endpoint)
        return endpoint

    def open_client(endpoint, **kwargs):
        client = Client(endpoint, **kwargs)
        opened.append(client)
        return client

    start.client = open_client
    yield start
    for each in reversed(opened):
        each.close()
