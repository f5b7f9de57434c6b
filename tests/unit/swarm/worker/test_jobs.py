"""Decisions about handlers, for random shares, outcomes and times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.worker.jobs import Action, Held, Job, Phase, decide, ended

NAMES = "abc"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.dictionaries(st.sampled_from(NAMES), st.integers(1, 2))),
        st.tuples(st.just("end"), st.sampled_from(NAMES), st.sampled_from([None, "broken"])),
        st.tuples(st.just("pass"), st.floats(0, 100)),
    ),
    max_size=40,
)


class World:
    """The actual state of handlers and jobs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held: dict[str, Held] = {}
        self.wanted: dict[str, Job] = {}
        self.calls: dict[str, Action] = {}
        """Handlers that run."""
        self.alive: dict[str, int] = {}
        """Job → token, for what runs or may run."""

    def decide(self) -> float | None:
        """Carry out a decision; return when to decide again."""
        decision = decide(self.held, self.wanted, self.now)
        self.held = decision.held
        for action, job in decision.actions:
            if action is Action.START:
                assert job.name not in self.calls
                assert job.name not in self.alive
                assert self.wanted[job.name] == job
                self.alive[job.name] = job.token
            else:
                assert self.calls.get(job.name) is not Action.STOP
                assert self.alive[job.name] == job.token
            self.calls[job.name] = action
        assert self.alive.keys() <= self.held.keys(), "a job that is not acknowledged as running may run"
        assert self.wanted.keys() <= self.held.keys(), "a job that this share starts is not acknowledged"
        assert decision.wake_at is None or decision.wake_at > self.now
        return decision.wake_at

    def end(self, name: str, error: str | None) -> None:
        """Let a handler return or fail, or a running job fail."""
        call = self.calls.pop(name, None)
        running = name in self.held and self.held[name].phase is Phase.RUNNING
        if call is None and not (running and error is not None):
            return
        if call is Action.STOP and error is None:
            del self.alive[name]
        self.held = ended(self.held, name, error, self.now)
        self.decide()


@given(steps=STEPS)
def test_never_runs_a_job_twice_and_converges(steps):
    """No job is started before its stop has returned; without further failures exactly the wanted jobs run."""
    world = World()
    for step in steps:
        match step:
            case ("want", tokens):
                world.wanted = {name: Job(name, token) for name, token in tokens.items()}
                world.decide()
            case ("end", name, outcome):
                world.end(name, outcome)
            case ("pass", seconds):
                world.now += seconds
                world.decide()
    wake_at = world.decide()
    for _ in range(100):
        for name in list(world.calls):
            world.end(name, None)
        wake_at = world.decide()
        if not world.calls and wake_at is None:
            break
        world.now = wake_at or world.now
    assert {name: one.job for name, one in world.held.items()} == world.wanted
    assert {name: job.token for name, job in world.wanted.items()} == world.alive
    assert all(one.phase is Phase.RUNNING and not one.error for one in world.held.values())


def test_backs_off_until_the_job_has_run_for_a_while():
    """1 s, 2 s, 4 s, at most a minute."""
    world = World()
    world.wanted = {"a": Job("a", 1)}
    waits = []
    world.decide()
    for _ in range(8):
        world.end("a", "broken")  # the start
        world.end("a", None)  # the stop after it
        waits.append(world.held["a"].retry_at - world.now)
        world.now = world.held["a"].retry_at
        world.decide()
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    world.end("a", None)
    world.now += 10
    world.decide()
    assert world.held["a"].error == ""
    assert world.held["a"].failures == 0
