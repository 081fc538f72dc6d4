"""What ``status``, ``groups`` and ``audit`` say of runs on a real server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redis_replay import embedded
from redis_replay._redis.connect import Target
from redis_replay._redis.keys import Key, Keyspace
from redis_replay._redis.runs import list_runs
from redis_replay.cli.survey import survey_run
from redis_replay.errors import StoreMissing
from redis_replay.store import DEFAULT_PARTITION
from tests.command_line import CAPACITY, CommandLine, busy_run, server_at
from tests.harness import Runs

pytestmark = pytest.mark.anyio

READERS = ("status", "groups", "audit")
HOSTILE_ID = "d\x1b[31m\n[red]\u202e"


@pytest.fixture
def run() -> str:
    return f"cli-{secrets.token_hex(6)}"


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], real_server: str, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.setenv("COLUMNS", "100")
    return CommandLine(capsys, url=real_server)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[str]:
    """The url of a server that holds nothing but what the test puts there."""
    with embedded.open_embedded(tmp_path / "own", appendfsync="no") as lease:
        yield lease.url


def control_key(run: str, key: Key) -> str:
    return Keyspace(run, DEFAULT_PARTITION).control(key)


async def test_status_json_has_server_settings_gate_counts_and_sessions(
    cli: CommandLine, run: str
) -> None:
    async with busy_run(str(cli.url), run):
        finished = await cli("status", "--run", run, "--json")
    assert (0, "") == (finished.status, finished.err)
    server, [found] = finished.document["server"], finished.document["runs"]
    assert server["engine"] in ("redis", "valkey")
    assert ("noeviction", True) == (server["eviction_policy"], server["keeps_data"])
    expected = {
        "run": run,
        "partition": DEFAULT_PARTITION,
        "policy": "in_order",
        "trainer_version": 1,
        "dispatch_index": 1,
        "gate_window": 1,
        "gate_open": True,
        "capacity": CAPACITY,
        "occupancy": 4,
        "reserved": 2,
        "tickets": 1,
        "ready": 1,
        "claimed": 1,
        "quarantined": 0,
        "reserved_total": 5,
        "trained": 1,
        "ended_sessions": 0,
    }
    assert expected == {name: found[name] for name in expected}
    assert (2, 2) == (found["settings"]["group_size"], found["settings"]["groups_per_step"])
    assert 1 == found["windows"]["max_lookahead_versions"]
    owners = {owner["owner"]: owner for owner in found["owners"]}
    learner, writer = owners["learner"], owners["writer"]
    assert ("trainer", 0, 1) == (learner["role"], learner["reserved"], learner["claimed"])
    assert ("rollout", 1, 0) == (writer["role"], writer["reserved"], writer["claimed"])
    assert {"epoch", "lease_seconds", "heartbeats", "host"} <= learner.keys()


async def test_status_tells_a_person_the_gate_the_occupancy_and_who_holds_what(
    cli: CommandLine, run: str
) -> None:
    async with busy_run(str(cli.url), run):
        finished = await cli("status", "--run", run)
    assert 0 == finished.status
    for words in (
        f"{run} / {DEFAULT_PARTITION}",
        "append-only file",
        "2 samples a group, 2 groups a step",
        "in_order max_lookahead_versions=1",
        "batch 1; gate window 1: open for 1 more batch",
        "4 of 16 (25%)",
        "1 claimed, ▓ 1 ready, ░ 2 reserved (1 ticket to redispatch)",
        "5 reserved = 4 live + 1 trained",
    ):
        assert words in finished.out
    [learner] = [line for line in finished.out.splitlines() if line.startswith("learner")]
    assert ["learner", "trainer", "1", "claimed"] == learner.split()[:4]


async def test_status_without_a_run_lists_all_runs(
    capsys: pytest.CaptureFixture[str], own_server: str
) -> None:
    cli = CommandLine(capsys, url=own_server)
    async with busy_run(own_server, "first"), busy_run(own_server, "second"):
        finished = await cli("status")
        document = (await cli("status", "--json")).document
    for name in ("first", "second"):
        assert f"{name} in_order 1 1 1 1 4/16 1 3" in " ".join(finished.out.split())
    assert ["first", "second"] == [found["run"] for found in document["runs"]]


async def test_an_empty_server_has_a_status(
    capsys: pytest.CaptureFixture[str], own_server: str
) -> None:
    cli = CommandLine(capsys, url=own_server)
    finished = await cli("status")
    assert (0, True) == (finished.status, "It holds no run yet." in finished.out)
    assert [] == (await cli("status", "--json")).document["runs"]


async def test_the_only_run_of_a_server_need_not_be_named(
    capsys: pytest.CaptureFixture[str], own_server: str
) -> None:
    cli = CommandLine(capsys, url=own_server)
    async with busy_run(own_server, "alone"):
        pass
    for command in ("groups", "audit"):
        assert "alone" == (await cli(command, "--json")).document["run"]


async def test_of_several_runs_one_must_be_named(
    capsys: pytest.CaptureFixture[str], own_server: str
) -> None:
    cli = CommandLine(capsys, url=own_server)
    async with busy_run(own_server, "first"), busy_run(own_server, "second"):
        pass
    for command in ("groups", "audit"):
        finished = await cli(command, "--json")
        assert (2, "") == (finished.status, finished.out)
        assert "--run" in finished.err
        assert "first / rollout_data, second / rollout_data" in finished.err


async def test_groups_come_in_buffer_order_or_newest_first(cli: CommandLine, run: str) -> None:
    async with busy_run(str(cli.url), run):
        oldest = (await cli("groups", "--run", run, "--json")).document
        newest = (await cli("groups", "--run", run, "--json", "--newest")).document
    assert ["b", "c", "d", "e"] == [group["group_id"] for group in oldest["groups"]]
    assert ["e", "d", "c", "b"] == [group["group_id"] for group in newest["groups"]]
    expected = {
        "group_id": "b",
        "state": "claimed",
        "start_weight_version": 0,
        "end_weight_version": 0,
        "target_step": 1,
        "owner": "learner",
        "attempt": 1,
    }
    first = oldest["groups"][0]
    assert expected == {name: first[name] for name in expected}
    assert first["batch"] is not None


async def test_groups_can_be_limited_to_a_state_and_a_number_and_say_when_cut(
    cli: CommandLine, run: str
) -> None:
    async with busy_run(str(cli.url), run):
        reserved = await cli("groups", "--run", run, "--state", "reserved", "--limit", "1")
        document = (
            await cli("groups", "--run", run, "--state", "reserved", "--limit", "1", "--json")
        ).document
        none = await cli("groups", "--run", run, "--state", "quarantined")
    assert "The 1 oldest of 2 reserved groups; --limit 2 shows all." in reserved.out
    assert (2, True, 1) == (document["matching"], document["cut"], len(document["groups"]))
    assert "No quarantined group." in none.out


async def test_a_ticket_is_shown_as_waiting_for_redispatch(cli: CommandLine, run: str) -> None:
    async with busy_run(str(cli.url), run):
        shown = (await cli("groups", "--run", run)).out.splitlines()
    [ticket] = [line for line in shown if "to redispatch" in line]
    assert ["e", "reserved"] == ticket.split()[1:3]


async def test_an_id_cannot_drive_the_terminal(cli: CommandLine, run: str) -> None:
    async with busy_run(str(cli.url), run, odd_id=HOSTILE_ID):
        shown = await cli("groups", "--run", run)
        document = (await cli("groups", "--run", run, "--json")).document
    assert r"d\x1b[31m\n[red]\u202e" in shown.out
    assert [] == [c for c in shown.out if not c.isprintable() and c != "\n"]
    assert HOSTILE_ID in [group["group_id"] for group in document["groups"]]


async def test_lines_keep_to_the_terminal_and_fold_long_ids_without_loss(
    cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_id = "".join(chr(ord("!") + at % 90) for at in range(200))
    monkeypatch.setenv("COLUMNS", "80")
    async with busy_run(str(cli.url), run, odd_id=long_id):
        shown = [await cli(command, "--run", run) for command in READERS]
    assert 80 == max(len(line) for one in shown for line in one.out.splitlines())
    header, _, *lines = shown[1].out.splitlines()[1:]
    column = slice(header.index("Group"), header.index("State"))
    assert long_id in "".join(line[column].strip() for line in lines)


async def test_a_clean_audit_names_every_invariant_and_exits_0(cli: CommandLine, run: str) -> None:
    async with busy_run(str(cli.url), run):
        finished = await cli("audit", "--run", run)
        document = (await cli("audit", "--run", run, "--json")).document
    assert (0, 13) == (finished.status, finished.out.count(" ok\n"))
    assert "Every invariant holds." in finished.out
    assert (True, [], 4) == (document["clean"], document["violations"], document["groups_checked"])
    assert {"reserved": 2, "ready": 1, "claimed": 1, "quarantined": 0} == document["live"]
    assert 1 == document["ends"]["trained"]


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (["ZREMRANGEBYRANK", Key.READY, 0, -1], 1),
        (["HSET", Key.SLOTS, "c", "nonsense"], 1),
        (["HINCRBY", Key.COUNTERS, "reserved_total", 1], 2),
        (["HSET", Key.META, "capacity", 1], 3),
        (["DEL", Key.BATCHES], 5),
        (["HINCRBY", Key.ENDS, "trained:trained", 5], 8),
        (["HSET", Key.PROMPTS, "nobody", "x"], 10),
        (["HSET", Key.META, "capacity", "many"], 0),
        (["HDEL", Key.META, "next_order"], 0),
        (["SET", Key.READY, "x"], 0),
    ],
)
async def test_an_audit_of_a_damaged_run_names_the_invariant_and_exits_1(
    cli: CommandLine, run: str, damage: list[Any], invariant: int
) -> None:
    url, name = str(cli.url), f"{run}-copy"
    with server_at(url) as server:
        async with busy_run(url, run):
            for key in Key:
                server.copy(control_key(run, key), control_key(name, key))
        command, key, *values = damage
        server.execute_command(command, control_key(name, key), *values)
        finished = await cli("audit", "--run", name)
        machine = await cli("audit", "--run", name, "--json")
        server.delete(*(control_key(name, key) for key in Key))
    assert (1, 1) == (finished.status, machine.status)
    assert "Traceback" not in finished.out + finished.err + machine.err
    assert invariant in {found["invariant"] for found in machine.document["violations"]}
    assert machine.document["clean"] is False
    assert "could not be made" in finished.out if invariant == 0 else "violated" in finished.out


async def test_a_run_that_cannot_be_read_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str], own_server: str
) -> None:
    cli = CommandLine(capsys, url=own_server)
    async with busy_run(own_server, "sound"), busy_run(own_server, "broken"):
        pass
    with server_at(own_server) as server:
        server.hset(control_key("broken", Key.META), "capacity", "many")
    finished = await cli("status")
    assert (0, True) == (finished.status, "sound" in finished.out)
    assert "redis-replay: run 'broken'" in finished.err
    document = (await cli("status", "--json")).document
    assert (["sound"], 1) == ([r["run"] for r in document["runs"]], len(document["unreadable"]))
    alone = await cli("status", "--run", "broken")
    assert (2, "", True) == (alone.status, alone.out, "redis-replay audit" in alone.err)


async def test_an_audit_finds_lost_payload(cli: CommandLine, run: str) -> None:
    async with busy_run(str(cli.url), run):
        with server_at(str(cli.url)) as server:
            [payload] = server.scan_iter(f"{Keyspace(run, DEFAULT_PARTITION).payload_prefix}c:*")
            server.delete(payload)
        finished = await cli("audit", "--run", run, "--json")
    assert 1 == finished.status
    assert [7] == [found["invariant"] for found in finished.document["violations"]]


async def test_reading_commands_write_nothing_and_attach_nobody(
    capsys: pytest.CaptureFixture[str], own_server: str
) -> None:
    cli = CommandLine(capsys, url=own_server)
    async with busy_run(own_server, "quiet"):
        pass
    with server_at(own_server) as server:
        written: Any = "rdb_changes_since_last_save"
        before = server.info("persistence")[written], sorted(server.keys())
        for command in READERS:
            for arguments in ([], ["--run", "quiet"], ["--json"], ["--run", "never-opened"]):
                await cli(command, *arguments)
        assert before == (server.info("persistence")[written], sorted(server.keys()))


async def test_a_run_that_goes_while_it_is_looked_at_is_missing_and_not_made_anew(
    real_server: str, run: str
) -> None:
    keyspace = Keyspace(run, DEFAULT_PARTITION)
    with pytest.raises(StoreMissing, match=run):
        await survey_run(Target.from_url(real_server), keyspace)
    with server_at(real_server) as server:
        assert 0 == server.exists(keyspace.control(Key.META))


async def test_all_runs_of_a_crowded_server_are_found(own_server: str) -> None:
    wanted = [(f"run-{number:04}", "p") for number in range(2500)]
    with server_at(own_server) as server:
        server.mset({Keyspace(*names).control(Key.META): "x" for names in wanted})
    assert wanted == await list_runs(Target.from_url(own_server))


async def test_a_user_who_may_only_read_keys_sees_everything_but_the_server(
    capsys: pytest.CaptureFixture[str], real_server: str, run: str
) -> None:
    async with busy_run(real_server, run):
        pass
    cli = CommandLine(capsys, url=real_server.replace("unix://", f"unix://{run}:secret@"))
    with server_at(real_server) as server:
        allowed = ("+@read", "+@connection", "+@scripting", "+multi", "+exec", "-config", "-info")
        server.execute_command("ACL", "SETUSER", run, "on", ">secret", "~*", *allowed)
        ended = [await cli(command, "--run", run) for command in READERS]
        server.execute_command("ACL", "DELUSER", run)
    assert [(0, "")] * 3 == [(finished.status, finished.err) for finished in ended]
    assert "persistence not told" in ended[0].out
    assert "secret" not in "".join(finished.out for finished in ended)


async def test_runs_are_listed_with_their_names_decoded_and_look_alikes_left_out(
    runs: Runs, client: Any
) -> None:
    odd = f"{runs.name} / é:{{x}}"
    async with runs.open(), runs.open(run=odd), runs.open(partition="val:2"):
        for key in ("rr:{half}:meta", "rr:{a:b:c}:meta", "rr:{:p}:meta", "rr:{%zz:p}:meta"):
            await client.set(key, "x")
        found = await list_runs(Target.from_client(client))
        await client.delete("rr:{half}:meta", "rr:{a:b:c}:meta", "rr:{:p}:meta", "rr:{%zz:p}:meta")
    own = [names for names in found if runs.name in names[0]]
    default = (runs.name, DEFAULT_PARTITION)
    assert [default, (runs.name, "val:2"), (odd, DEFAULT_PARTITION)] == own
    assert {"half", "a", "", "%zz"}.isdisjoint(run for run, _ in found)
