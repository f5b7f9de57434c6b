"""Never two owners under Exclusive, and no gap under Overlap, with any failures in between."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from swarm import handover
from swarm.handover import EXCLUSIVE, OVERLAP
from swarm.planning import Pod
from tests.thorough import seeds
from tests.unit.swarm.world import Api, Controller, Worker


class World:
    """The simulated system, and its possible steps and faults."""

    def __init__(self, seed: int, handover: str, *, fences: tuple[int, ...] = (0,)) -> None:
        self.rng = random.Random(seed)
        self.fences = fences
        self.pace = 0.3
        """Mean time between two steps in seconds."""
        self.handover = handover
        jobs = [f"job-{index}" for index in range(self.rng.randrange(1, 9))]
        self.api = Api(jobs=jobs, fence=self.rng.choice(fences))
        self.ghosts: set[str] = set()
        self.controllers = [
            Controller(self.api, self.rng, handover, api_ghosts=self.ghosts) for _ in range(2)
        ]
        self.workers: dict[str, Worker] = {}
        self.serial = 0
        self.versions: dict[str, int] = {}
        for index in range(3):
            self.create(index)

    def create(self, index: int) -> None:
        self.serial += 1
        pod = Pod(f"w-{index}", f"uid-{self.serial}", node="n", ready=True)
        self.api.pods[pod.name] = pod
        self.workers[pod.uid] = Worker(self.api, pod, self.rng)

    def replace(self, *, forced: bool) -> None:
        """Delete a pod and create the next one; a forced deletion leaves the process of a partitioned node."""
        pod = self.rng.choice(list(self.api.pods.values()))
        if forced:
            self.workers[pod.uid].connected = False
            self.ghosts.add(pod.uid)
        else:
            del self.workers[pod.uid]
        del self.api.pods[pod.name]
        self.create(int(pod.name[2:]))

    def heal(self) -> None:
        """End the processes of deleted pods, as a recovered kubelet does."""
        for uid in list(self.ghosts):
            del self.workers[uid]
            self.ghosts.discard(uid)
        for worker in self.workers.values():
            worker.connected = True

    def scale(self) -> None:
        self.api.replicas = self.rng.randrange(1, 6)
        for name, pod in list(self.api.pods.items()):
            if int(name[2:]) >= self.api.replicas:
                del self.api.pods[name]
                if pod.uid not in self.ghosts:
                    del self.workers[pod.uid]
        for index in range(self.api.replicas):
            if f"w-{index}" not in self.api.pods:
                self.create(index)

    def change_fence(self) -> None:
        self.api.fence = self.rng.choice(self.fences)

    def cut(self) -> None:
        """Cut a worker off, perhaps after it read a share that it cannot acknowledge."""
        worker = self.rng.choice(list(self.workers.values()))
        worker.follow()
        worker.connected = False

    def change_list(self) -> None:
        self.api.jobs = [f"job-{index}" for index in range(10) if self.rng.random() < 0.6]

    def disturb(self) -> None:
        """One random fault or change."""
        worker = self.rng.choice(list(self.workers.values()))
        self.rng.choice(
            [
                worker.kill,
                worker.drain,
                lambda: setattr(worker, "connected", self.rng.random() < 0.5),
                lambda: self.replace(forced=False),
                lambda: self.replace(forced=True),
                self.heal,
                self.scale,
                self.change_list,
                *([self.change_fence, self.cut, self.cut, self.cut] if any(self.fences) else []),
                self.rng.choice(self.controllers).kill,
            ]
        )()

    def act(self) -> None:
        """One random step of a program, after some time."""
        self.api.now += self.rng.expovariate(1 / self.pace)
        for worker in self.workers.values():
            worker.keep_in_time()
        controller = self.rng.choice(self.controllers)
        worker = self.rng.choice(list(self.workers.values()))
        self.rng.choice(
            [
                controller.refresh,
                controller.reconcile,
                controller.write,
                controller.write,
                worker.register,
                worker.follow,
                worker.finish_stops,
                worker.report,
                worker.report,
            ]
        )()

    def owners(self) -> Counter[str]:
        counts = Counter[str]()
        for worker in self.workers.values():
            counts.update(worker.all_running)
        return counts

    def settle(self) -> None:
        """Run without faults until every job runs only at its slot."""
        self.heal()
        self.pace = 0.01  # so that workers renew their Leases in time
        for worker in self.workers.values():
            if worker.draining:
                worker.kill()
        for _ in range(20_000):
            if self.rng.random() < 0.02 and self.converged():
                return
            self.act()
        raise AssertionError("no convergence")

    def converged(self) -> bool:
        record = handover.load(self.api.record)
        return (
            self.owners() == Counter(self.api.jobs)
            and not any(holder.stop for holder in record.holders.values())
            and all(
                slot.uid in record.holders
                and self.workers[slot.uid].all_running
                == set(slot.jobs)
                == set(record.holders[slot.uid].start)
                for slot in record.slots.values()
            )
        )

    def check_versions(self) -> None:
        for uid, shares in self.api.shares.items():
            assert shares[-1]["version"] >= self.versions.get(uid, 0)
            self.versions[uid] = shares[-1]["version"]


@pytest.mark.parametrize("seed", seeds(3, 25))
def test_exclusive_never_has_two_owners(seed):
    """In any order of steps and faults. Without faults every job gets one owner."""
    world = World(seed, EXCLUSIVE)
    for _ in range(600):
        world.disturb() if world.rng.random() < 0.04 else world.act()
        assert max(world.owners().values(), default=0) <= 1
        world.check_versions()
    world.settle()


@pytest.mark.parametrize("seed", seeds(3, 100))
def test_fenced_worker_and_its_successor_never_run_a_job_at_the_same_time(seed):
    """In any order of steps and faults, also if the fence time changes and is not acknowledged."""
    world = World(seed, EXCLUSIVE, fences=(0, 8, 30, 60))
    for _ in range(1500):
        world.disturb() if world.rng.random() < 0.03 else world.act()
        assert max(world.owners().values(), default=0) <= 1
        world.check_versions()
    world.settle()


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_overlap_has_no_gap(seed):
    """A running job runs somewhere all the time while lists and workers change and no process is lost."""
    world = World(seed, OVERLAP)
    world.settle()
    wanted = set(world.api.jobs)
    for _ in range(400):
        if world.api.replicas < 8 and world.rng.random() < 0.04:
            # Workers are added; none is removed with its jobs.
            world.api.replicas += 1
            world.create(world.api.replicas - 1)
        else:
            world.act()
        owners = world.owners()
        assert wanted <= owners.keys()
        assert max(owners.values(), default=0) <= 2
    world.settle()


def test_record_round_trips_through_text():
    """Also the long one of a large Swarm."""
    record = handover.Ledger(
        version=7, slots={"w-0": handover.Slot(name="w-0", index=0, jobs=["a"] * 10_000)}
    )
    text = handover.dump(record)
    assert handover.load(text) == record
    assert len(text) < 1000
    assert handover.load("") == handover.Ledger()
    for damaged in ("x", text[:-8], "AAAA"):
        with pytest.raises(ValueError, match=r"status\.record"):
            handover.load(damaged)
