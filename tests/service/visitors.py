"""People in front of the pages: a browser without scripts, and a service with cases that wait."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from calcode.errors import ServiceError
from calcode.service import people
from calcode.service.app import make_app
from calcode.service.pages import COOKIE
from calcode.service.service import Service


@lru_cache(maxsize=2)
def _app(service: Service) -> FastAPI:
    """Putting an application together takes longer than most pages."""
    return make_app(service)


class Person:
    """A browser without scripts: keeps cookies, sends forms as a page would."""

    def __init__(self, service: Service, subject: str = "", *roles: str, base: str = "http://127.0.0.1") -> None:
        self.service = service
        self.client = TestClient(_app(service), base_url=base, raise_server_exceptions=False)
        if roles:
            self.client.cookies.set(COOKIE, session(service, subject, *roles))

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(path, **options)

    def send(self, page: str, action: str, fields: dict[str, Any]) -> Any:
        """Load a page, then post one of its forms."""
        token = re.search(r'name="form_token" value="(\w+)"', self.get(page).text)
        assert token is not None, page
        return self.client.post(action, data={"form_token": token[1], **fields}, follow_redirects=False)


def session(service: Service, subject: str, *roles: str) -> str:
    def change(transaction: Any) -> str:
        # Roles that are kept apart now: an account of before, as its sessions see the pages.
        with suppress(ServiceError):
            people.set_roles(transaction, subject=subject, roles=roles, source="local", actor="test")
        return people.open_session(transaction, subject=subject, roles=roles, method="test")

    token: str = service.change(change)
    service.tokens.reload()
    return token
