"""The application mounted below a path of another one, or behind a proxy that strips a path."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_server import Settings, create_app
from starlette.applications import Starlette
from starlette.testclient import TestClient

from integrations.server.tests.bots import EASY, chain
from integrations.server.tests.parts import OTHER_TOKEN, TOKEN, make_request


@pytest.mark.parametrize(("mount", "root"), [("", ""), ("/cfc", ""), ("/a/b", ""), ("", "/api")])
@pytest.mark.usefixtures("bots_here")
def test_paths_are_relative_to_the_mount(mount: str, root: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(f"{TOKEN} name=app\n{OTHER_TOKEN} name=prometheus only=metrics\n", encoding="utf-8")
    settings = Settings(token_file=tokens, per_token=1, body_limit=500)
    app = inner = create_app({"bot": chain()}, settings)
    if mount:
        app = Starlette()
        app.mount(mount, inner)

    with TestClient(app, root_path=root) as client:

        def get(path: str, token: str = "") -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            status: int = client.get(mount + path, headers=headers).status_code
            assert client.head(mount + path, headers=headers).status_code == status
            return status

        assert [get("/health/live"), get("/health/ready")] == [200, 200]
        assert [get("/metrics"), get("/metrics", TOKEN), get("/metrics", OTHER_TOKEN)] == [401, 403, 200]
        assert [get("/v1/models"), get("/v1/models", TOKEN), get("/v1/models", OTHER_TOKEN)] == [
            401,
            200,
            403,
        ]
        given = {"Authorization": f"Bearer {TOKEN}"}
        path = f"{mount}/v1/chat/completions"
        assert client.post(path, json=make_request(EASY), headers=given).status_code == 200
        # The limits hold there too.
        assert client.post(path, json=make_request(EASY * 50), headers=given).status_code == 413
        described = client.get(f"{mount}/openapi.json", headers=given).json()
        assert described.get("servers", [{"url": ""}])[0]["url"] == mount + root
        read = client.get(f"{mount}/metrics", headers={"Authorization": f"Bearer {OTHER_TOKEN}"}).text
    assert 'route="/v1/chat/completions",status="200"' in read
    assert 'route="other"' not in read
