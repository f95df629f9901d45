"""What the suites share: the server that tests/clients/run has started, and clients of it.

SPDX-License-Identifier: Apache-2.0
"""

import os
import time

import anthropic
import openai
import pytest
import requests

URL = os.environ["KT_CLIENTS_URL"]


@pytest.fixture(scope="session")
def url():
    return URL


@pytest.fixture(scope="session")
def client():
    with openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60) as c:
        yield c


@pytest.fixture(scope="session")
def claude():
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=60) as c:
        yield c


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture
def idle():
    """A function that waits until the server works on nothing: a client that left costs no more."""

    def wait(seconds=10.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if requests.get(URL + "/slots").json() == []:
                return
            time.sleep(0.02)
        raise AssertionError("requests are still in work: " + requests.get(URL + "/slots").text)

    return wait
