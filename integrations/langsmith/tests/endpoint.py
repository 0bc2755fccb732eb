"""An endpoint that speaks the part of LangSmith's REST API used here, over real sockets.

It keeps every version of a dataset, as LangSmith does, and can be told to fail, to dawdle, to answer
nonsense, and to send pages that are shorter than asked for.
"""

from __future__ import annotations

import email.parser
import email.policy
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

TENANT = str(uuid4())
LIMITS = {
    "use_multipart_endpoint": True,
    "size_limit": 100,
    "size_limit_bytes": 20_000_000,
    "scale_up_nthreads_limit": 4,
    "scale_up_qsize_trigger": 1000,
    "scale_down_nempty_trigger": 4,
}
_PAGE = {"offset": "0", "limit": "100"}
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass
class Fault:
    """A fault of the first `times` requests whose path begins so."""

    path: str
    status: int = 200
    content: bytes = b"no luck"
    seconds: float = 0.0
    times: int = 1
    method: str = ""


@dataclass
class Data:
    """A dataset: its versions, each the whole content by id."""

    id: str
    name: str
    versions: list[tuple[datetime, dict[str, dict[str, Any]]]] = field(default_factory=list)
    tags: dict[str, datetime] = field(default_factory=dict)

    def at(self, as_of: str | None) -> tuple[datetime, dict[str, dict[str, Any]]] | None:
        """The newest version that is not newer."""
        if as_of in {None, "latest"}:
            return self.versions[-1] if self.versions else None
        time_of = self.tags.get(str(as_of)) or datetime.fromisoformat(str(as_of))
        earlier = [one for one in self.versions if one[0] <= time_of]
        return earlier[-1] if earlier else None


class LangSmith:
    """What the endpoint holds, and what it was asked."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.datasets: dict[str, Data] = {}
        self.projects: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.feedback: dict[str, dict[str, Any]] = {}
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.page_size = 100
        self._project("default")

    # What people do in LangSmith's own pages

    def dataset(self, name: str, examples: list[dict[str, Any]] | None = None) -> Data:
        """Make a dataset with a version for its examples."""
        with self.lock:
            made = self.datasets[name] = Data(str(uuid4()), name)
            self.edit(name, {str(uuid4()): one for one in examples or []})
            return made

    def edit(self, name: str, changes: dict[str, dict[str, Any] | None]) -> None:
        """Add, change or (None) delete examples, which makes a new version."""
        with self.lock:
            data = self.datasets[name]
            content = dict(data.versions[-1][1]) if data.versions else {}
            now = START + timedelta(seconds=len(data.versions) + 1)
            for one, change in changes.items():
                if change is None:
                    content.pop(one)
                    continue
                said = {**content.get(one, {"metadata": {}}), **change}
                split = said["metadata"].get("dataset_split", ["base"])
                metadata = {**said["metadata"], "dataset_split": split}
                content[one] = {**said, "metadata": metadata, "modified_at": now.isoformat()}
            data.versions.append((now, content))

    def ids(self, name: str) -> list[str]:
        return list(self.datasets[name].versions[-1][1])

    def by_run(self) -> dict[str, dict[str, dict[str, Any]]]:
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for one in self.feedback.values():
            found.setdefault(str(one.get("run_id")), {})[one["key"]] = one
        return found

    # What clients ask

    def answer(self, asked: Asked) -> tuple[int, Any]:  # noqa: C901, PLR0911 - one case for each part of the API
        method, parts = asked.method, asked.path.strip("/").split("/")
        with self.lock:
            match (method, *parts):
                case ("GET", "info"):
                    return 200, {"version": "0.13.0", "batch_ingest_config": LIMITS}
                case ("GET", "sessions"):
                    return 200, self._sessions(asked)
                case ("POST", "sessions"):
                    said = json.loads(asked.body)
                    return 200, self._project(**said)
                case ("PATCH", "sessions", _):
                    return 200, next(one for one in self.projects.values() if one["id"] == parts[1])
                case ("GET", "datasets", *_):
                    return self._datasets(asked, parts)
                case ("GET", "examples"):
                    return 200, self._examples(asked)
                case ("POST", "runs", "multipart"):
                    return self._ingest(asked)
                case ("POST", "runs", "query"):
                    return 200, {"runs": self._runs(json.loads(asked.body)), "cursors": {}}
                case ("GET", "feedback"):
                    return 200, self._said(asked.query)
                case ("POST", "feedback"):
                    return self._feedback(json.loads(asked.body))
        return 404, {"detail": f"{method} {asked.path}"}

    def _project(self, name: str, **said: Any) -> dict[str, Any]:
        held = {
            "id": said.get("id") or str(uuid4()),
            "name": name,
            "tenant_id": TENANT,
            "start_time": START.isoformat(),
            "reference_dataset_id": said.get("reference_dataset_id"),
            "extra": said.get("extra"),
        }
        return self.projects.setdefault(name, held)

    def _sessions(self, asked: Asked) -> list[dict[str, Any]]:
        names = asked.query.get("name")
        found = [one for one in self.projects.values() if names is None or one["name"] in names]
        return found[: int(asked.query.get("limit", ["100"])[0])]

    def _datasets(self, asked: Asked, parts: list[str]) -> tuple[int, Any]:
        if len(parts) == 1:
            wanted = asked.query.get("name", [""])[0]
            return 200, [_shown(one) for one in self.datasets.values() if one.name == wanted]
        data = self._by_id(parts[1])
        if data is None:
            return 404, {"detail": "no such dataset"}
        if parts[2:] == ["splits"]:
            version = data.at(asked.query["as_of"][0])
            said = [one["metadata"]["dataset_split"] for one in version[1].values()] if version else []
            return 200, sorted({split for splits in said for split in splits})
        if parts[2:] != ["version"]:
            return 200, _shown(data)
        tag = asked.query.get("tag", [None])[0]
        if tag not in {None, "latest"} and tag not in data.tags:
            return 404, {"detail": "no such tag"}
        version = data.at(tag or asked.query["as_of"][0])
        return (
            (404, {"detail": "no such version"})
            if version is None
            else (200, {"as_of": version[0].isoformat()})
        )

    def _examples(self, asked: Asked) -> list[dict[str, Any]]:
        query = asked.query
        data = self._by_id(query["dataset"][0])
        version = None if data is None else data.at(query.get("as_of", [None])[0])
        if data is None or version is None:
            return []
        shown = [
            {
                "id": name,
                "dataset_id": data.id,
                "inputs": said.get("inputs"),
                "outputs": said.get("outputs"),
                "metadata": said["metadata"],
                "created_at": START.isoformat(),
                "modified_at": said["modified_at"],
            }
            for name, said in version[1].items()
        ]
        if "id" in query:
            return [one for one in shown if one["id"] in query["id"]]
        splits = query.get("splits")
        if splits:
            shown = [one for one in shown if set(splits) & set(one["metadata"]["dataset_split"])]
        offset, limit = int(query["offset"][0]), int(query["limit"][0])
        return shown[offset : offset + min(limit, self.page_size)]

    def _ingest(self, asked: Asked) -> tuple[int, Any]:
        for name, content in _parts(asked):
            kind, run, *part = name.split(".")
            if kind == "feedback":
                self.feedback[content["id"]] = content
                continue
            held = self.runs.setdefault(run, {})
            # The end of a run may come before its beginning, which says nothing of outputs yet.
            given = {part[0]: content} if part else content
            held.update({field: value for field, value in given.items() if value or field not in held})
            if kind == "post" and not part:
                self._project(content.get("session_name") or "default")
        return 202, {}

    def _runs(self, said: dict[str, Any]) -> list[dict[str, Any]]:
        """The runs of projects; of roots alone, or without those that failed, if asked so."""
        names = [one["name"] for one in self.projects.values() if one["id"] in said["session"]]
        return [
            {"app_path": "", **one}
            for one in self.runs.values()
            if one.get("session_name") in names
            and not (said.get("is_root") and one.get("parent_run_id"))
            and (said.get("error") is None or said["error"] is bool(one.get("error")))
        ]

    def _feedback(self, said: dict[str, Any]) -> tuple[int, Any]:
        if said.get("session_id") not in {one["id"] for one in self.projects.values()}:
            return 404, {"detail": "no such project"}
        self.feedback[said["id"]] = said
        return 200, said

    def _said(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        """A page of feedback, as runs and keys ask for it."""
        first, most = (int(query.get(name, [usual])[0]) for name, usual in _PAGE.items())
        chosen = [
            {"modified_at": one["created_at"], **one, "trace_id": one["run_id"]}
            for one in self.feedback.values()
            if one["run_id"] in query["run"] and one["key"] in query.get("key", [one["key"]])
        ]
        return chosen[first : first + most]

    def _by_id(self, dataset: str) -> Data | None:
        return next((one for one in self.datasets.values() if one.id == dataset), None)


def _shown(data: Data) -> dict[str, Any]:
    return {"id": data.id, "name": data.name, "created_at": START.isoformat(), "tenant_id": TENANT}


def _parts(asked: Asked) -> Iterator[tuple[str, Any]]:
    head = f"Content-Type: {asked.headers['content-type']}\r\n\r\n".encode()
    whole = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + asked.body)
    for part in whole.iter_parts():
        content: Any = part.get_payload(decode=True)
        kind = part.get_content_type()
        yield (
            str(part.get_param("name", header="content-disposition")),
            (json.loads(content) if kind == "application/json" else content),
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet for head and body, or each answer takes 40 ms.
    wbufsize = 64 * 1024
    held: LangSmith

    def _handle(self) -> None:
        split = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, split.path, parse_qs(split.query), headers, body)
        with self.held.lock:
            self.held.asked.append(asked)
            fault = next((one for one in self.held.faults if _hits(one, asked)), None)
            if fault is not None:
                fault.times -= 1
        if fault is not None:
            time.sleep(fault.seconds)
        if fault is not None and (fault.status != 200 or not fault.seconds):
            self._send(fault.status, fault.content)
            return
        status, answer = self.held.answer(asked)
        self._send(status, json.dumps(answer).encode())

    do_GET = do_POST = do_PATCH = _handle  # noqa: N815 - names of the library

    def _send(self, status: int, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client did not wait

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _hits(fault: Fault, asked: Asked) -> bool:
    return fault.times > 0 and asked.path.startswith(fault.path) and fault.method in {"", asked.method}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Threads that a fault holds up must not hold up the end of a test.
    block_on_close = False


@contextmanager
def serving(held: LangSmith) -> Iterator[str]:
    """Answer at an address of this machine."""
    handler = type("Handler", (_Handler,), {"held": held})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_STACK = ExitStack()


# Here and not in pyproject.toml, whose filters another folder's tests in the same command leave out.
IGNORED = (
    "ignore:'upload_runs' parameter is in beta",
    # LangSmith's own: what its `evaluate` hands over for a summary holds a field that it takes no more.
    "ignore:The following arguments are no longer used in the create_feedback endpoint",
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the page's account one on this machine, and see that nothing here can reach the service."""
    for one in IGNORED:
        config.addinivalue_line("filterwarnings", one)
    held = LangSmith()
    held.dataset("facts", [{"inputs": {"question": "Which?"}, "outputs": {"answers": ["This"]}}])
    url = _STACK.enter_context(serving(held))
    account = {"LANGSMITH_ENDPOINT": url, "LANGSMITH_API_KEY": "none", "LANGSMITH_TRACING": "false"}
    _STACK.enter_context(mock.patch.dict(os.environ, {**account, "NO_PROXY": "127.0.0.1"}))


def pytest_unconfigure(config: pytest.Config) -> None:
    del config
    _STACK.close()
