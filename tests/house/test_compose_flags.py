"""The compose file's server is the embedded one in a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from redis_replay.embedded import server_flags

_COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load(_COMPOSE.read_text(encoding="utf-8"))["services"])


def test_the_compose_server_has_the_flags_of_the_embedded_one(services: dict[str, Any]) -> None:
    assert ["redis-server", *server_flags()] == services["redis"]["command"]


def test_the_compose_server_is_reached_from_this_machine_only_and_not_on_the_usual_port(
    services: dict[str, Any],
) -> None:
    (published,) = services["redis"]["ports"]
    assert published.startswith("127.0.0.1:${REDIS_REPLAY_PORT:-")
    assert "REDIS_REPLAY_PORT:-6379" not in published


def test_the_compose_server_keeps_its_data_in_a_named_volume(services: dict[str, Any]) -> None:
    (mounted,) = services["redis"]["volumes"]
    name, _, place = mounted.partition(":")
    assert "/data" == place
    assert name in yaml.safe_load(_COMPOSE.read_text(encoding="utf-8"))["volumes"]


def test_the_compose_demo_starts_when_the_server_is_healthy_and_uses_it(
    services: dict[str, Any],
) -> None:
    assert services["redis"]["healthcheck"]["test"][:2] == ["CMD", "redis-cli"]
    assert {"redis": {"condition": "service_healthy"}} == services["demo"]["depends_on"]
    assert ["demo", "--url", "redis://redis:6379/0"] == services["demo"]["command"][-3:]
