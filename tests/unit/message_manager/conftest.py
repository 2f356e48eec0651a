"""A channel, and a client with a session in it; tests that need others say so themselves."""

from __future__ import annotations

import pytest

from tests.unit.message_manager.channel import Channel, Client


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def client(channel: Channel) -> Client:
    client = Client()
    channel.order(client.open())
    return client
