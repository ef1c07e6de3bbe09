"""Publishers and subscribers in threads of one process; test_sync_jobs.py has them in processes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from crossmesh import DeadlineError, PlanError, ShardError, TransferError, TransportError
from crossmesh.sync import publisher as publisher_module
from crossmesh.sync import session as session_module
from crossmesh.sync import targets as targets_module
from crossmesh.sync.board import Board
from crossmesh.torch import Publisher, Subscriber, View, cat
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)

LIMITS = {"deadline_s": 30.0, "connect_s": 20.0}


@pytest.fixture
def jobs():
    with Jobs() as made:
        yield made


class Jobs:
    """Publishers and subscribers of one store, each rank in a thread where it has to wait."""

    def __init__(self):
        self.store = dist.HashStore()
        self._open = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        together([one.close for one in self._open])

    def publishers(self, *states, run_id="trainer", **options):
        n = len(states)
        return self._made(
            partial(
                Publisher,
                s,
                self.store,
                rank=r,
                size=n,
                run_id=run_id,
                host=f"trainer {r}",
                **{**LIMITS, **options},
            )
            for r, s in enumerate(states)
        )

    def subscribers(self, *states, maps=None, run_id="engine", **options):
        n = len(states)
        weights = maps or [None] * n
        return self._made(
            partial(
                Subscriber,
                s,
                self.store,
                weights[r],
                rank=r,
                size=n,
                run_id=run_id,
                **{**LIMITS, **options},
            )
            for r, s in enumerate(states)
        )

    def _made(self, makers):
        made = together([*makers])
        self._open += made
        return made


def together(calls):
    """Call all at the same time, as the ranks of a job do."""
    with ThreadPoolExecutor(max(len(calls), 1)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]


def publish(publishers, *arguments, **options):
    return together([partial(p.publish, *arguments, **options) for p in publishers])


def applied(subscribers, version):
    together([partial(s.wait, version) for s in subscribers])
    return together([s.apply for s in subscribers])


def test_every_version_arrives_in_place_in_all_replicas(jobs):
    weights = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.tensor(2, dtype=torch.int64)}
    (trainer,) = jobs.publishers(weights)
    engines = []
    for i in range(2):
        state = {"a": torch.zeros(3, 4, dtype=torch.bfloat16), "b": np.zeros((), np.int64)}
        engines.append((state, *jobs.subscribers(state, replica=f"e{i}", run_id="same")))
    assert trainer.wait_for(2) == ("e0", "e1")
    for version in (1, 2, 3):
        weights["a"] += 0.5
        weights["b"] += 1
        sent = trainer.publish()
        weights["a"] += 100  # it was copied
        assert sent.version == version
        assert sent.wait() == ("e0", "e1")
        weights["a"] -= 100
        for state, engine in engines:
            assert engine.version == (version - 1 or -1)
            assert engine.pending == version
            assert engine.apply() == version
            assert engine.apply() is None
            assert torch.equal(state["a"], weights["a"].bfloat16())
            assert state["b"] == 2 + version
    assert "version 3" in repr(trainer)
    assert "version 3" in repr(engines[0][1])
    assert repr(sent) == "<version 3, done>"


def test_a_replica_that_joins_late_gets_the_latest_version(jobs):
    weights = {"a": torch.ones(4)}
    (trainer,) = jobs.publishers(weights)
    assert trainer.publish().wait() == ()
    assert trainer.publish(version=10).wait() == ()
    weights["a"].zero_()
    state = {"a": torch.full((4,), 7.0)}
    (engine,) = jobs.subscribers(state)
    assert engine.wait(10) == 10
    assert state["a"].tolist() == [7.0] * 4
    assert engine.apply() == 10
    assert state["a"].tolist() == [1.0] * 4
    with pytest.raises(PlanError, match=r"above the last one, and below 2\*\*63; got 10 after 10"):
        trainer.publish(version=10)


def test_a_replica_that_is_behind_gets_the_latest_version_once_it_is_ready(jobs):
    weights = {"a": torch.zeros(4)}
    (trainer,) = jobs.publishers(weights)
    state = {"a": torch.zeros(4)}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    for _ in range(4):
        weights["a"] += 1
        trainer.publish()
        engine.wait(1)
    assert engine.apply() == 1
    assert applied([engine], 4) == [4]
    assert state["a"].tolist() == [4.0] * 4


def test_only_what_changed_is_sent_to_those_who_have_the_rest(jobs, monkeypatch):
    weights = {"base": torch.zeros(1000), "lora": torch.zeros(2)}
    (trainer,) = jobs.publishers(weights)
    state = {name: torch.full_like(value, 9.0) for name, value in weights.items()}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    sizes = []
    plan_of = session_module.plan_of

    def spying(streams, hosts):
        sizes.append(sum(stream.n_bytes for stream in streams))
        return plan_of(streams, hosts)

    monkeypatch.setattr(session_module, "plan_of", spying)
    weights["lora"] += 1
    trainer.publish(names=["lora"]).wait()  # the first version is all of it
    assert engine.apply() == 1
    assert state["base"].tolist() == [0.0] * 1000
    weights["lora"] += 1
    weights["base"] += 1
    trainer.publish(names=["lora"]).wait()
    assert engine.apply() == 2
    assert state["base"].tolist() == [0.0] * 1000
    assert state["lora"].tolist() == [2.0] * 2
    late = {name: torch.zeros_like(value) for name, value in weights.items()}
    (other,) = jobs.subscribers(late, replica="late", run_id="late")
    assert applied([other], 2) == [2]
    assert late["base"].tolist() == [0.0] * 1000
    assert late["lora"].tolist() == [2.0] * 2
    assert min(sizes) < 100 < max(sizes)
    with pytest.raises(PlanError, match="only published tensors change; got the name 'x'"):
        trainer.publish(names=["x"])


def test_targets_that_overlap_themselves_are_refused(jobs):
    jobs.publishers({"a": torch.ones(3, 3)})
    for target in (torch.zeros(5).unfold(0, 3, 1), torch.zeros(3, 1).expand(3, 3)):
        with pytest.raises(ShardError, match="a view whose elements share their memory"):
            Subscriber({"a": target}, jobs.store)


def test_a_run_has_a_name_of_its_own(jobs):
    jobs.publishers({"a": torch.ones(2)}, run_id="job 17")
    jobs.subscribers({"a": torch.ones(2)}, run_id="job 3")
    with pytest.raises(PlanError, match="got 'job 17', with which rank 0 was there before"):
        Publisher({"a": torch.ones(2)}, jobs.store, run_id="job 17")
    with pytest.raises(PlanError, match="got 'job 3', with which rank 0 was there before"):
        Subscriber({"a": torch.ones(2)}, jobs.store, run_id="job 3")


def test_names_may_come_from_an_iterator(jobs):
    weights = {"base": torch.ones(2), "lora": torch.ones(2)}
    state = {name: torch.zeros(2) for name in weights}
    (trainer,) = jobs.publishers(weights)
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    trainer.publish().wait()
    engine.apply()
    weights["lora"].fill_(7)
    trainer.publish(names=filter("lora".startswith, weights)).wait()
    assert engine.apply() == 2
    assert state["lora"].tolist() == [7.0, 7.0]
    with pytest.raises(PlanError, match="got the text 'lora'; pass"):
        trainer.publish(names="lora")


def test_a_replica_that_stops_in_a_round_is_left_out_of_the_next(jobs, monkeypatch):
    (trainer,) = jobs.publishers({"a": torch.ones(2)}, silent_s=1.0)
    stopped = jobs.subscribers({"a": torch.zeros(2)}, replica="stopped", run_id="s")[0]
    (engine,) = jobs.subscribers({"a": torch.zeros(2)})
    trainer.wait_for(2)
    go_on = threading.Event()
    receive = Subscriber._receive

    def stopping(self, planned):
        if self is stopped:
            go_on.wait(20)
        return receive(self, planned)

    monkeypatch.setattr(Subscriber, "_receive", stopping)
    monkeypatch.setattr(trainer, "_connect_s", 2.0)
    monkeypatch.setattr(engine, "_connect_s", 2.0)
    assert trainer.publish().wait() == ("engine",)
    assert engine.apply() == 1
    go_on.set()
    assert stopped.wait(1) == 1


def test_tied_weights_change_together(jobs):
    embedding, head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False)
    head.weight = embedding.weight
    model = torch.nn.ModuleDict({"embedding": embedding, "head": head})
    state = {name: torch.zeros(4, 2) for name in ("embedding.weight", "head.weight")}
    (trainer,) = jobs.publishers(model)
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    trainer.publish().wait()
    engine.apply()
    with torch.no_grad():
        embedding.weight.fill_(3)
    trainer.publish(names=[name for name, _ in model.named_parameters()]).wait()  # not both
    engine.apply()
    assert [value.unique().tolist() for value in state.values()] == [[3.0], [3.0]]


def test_weights_that_are_tied_on_one_rank_alone_change_together(jobs):
    both = torch.zeros(2)
    weights = [{"a": both, "b": both, "c": torch.zeros(2)}, {"c": torch.zeros(2)}]
    trainers = jobs.publishers(*weights)
    state = {name: torch.zeros(2) for name in "abc"}
    (engine,) = jobs.subscribers(state)
    trainers[0].wait_for(1)
    publish(trainers)[0].wait()
    engine.apply()
    both += 1
    assert publish(trainers, names=["b"])[0].wait() == ("engine",)
    engine.apply()
    assert [state[name].tolist() for name in "abc"] == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]


def test_weights_are_not_tied_because_they_lie_side_by_side(jobs):
    flat = torch.zeros(4)
    weights = {"a": flat[:2], "b": flat[2:]}
    (trainer,) = jobs.publishers(weights)
    state = {"a": torch.zeros(2), "b": torch.zeros(2)}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    trainer.publish().wait()
    engine.apply()
    flat += 1
    trainer.publish(names=["a"]).wait()
    engine.apply()
    assert [value.tolist() for value in state.values()] == [[1.0, 1.0], [0.0, 0.0]]
    weights["b"] = weights["a"]
    with pytest.raises(ShardError, match=r"as tied weights do; got \[\['a', 'b'\]\] after \[\]"):
        trainer.publish(names=["a"])
    assert trainer.publish().version == 3


def test_weights_of_an_engine_are_those_that_it_has_now(jobs):
    served, model = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    (trainer,) = jobs.publishers(model)
    (engine,) = jobs.subscribers(served)
    trainer.wait_for(1)
    trainer.publish().wait()
    served.weight.data = torch.zeros(2, 2)  # other memory, as after served.to(device)
    engine.apply()
    assert torch.equal(served.weight, model.weight)
    trainer.publish().wait()
    served.bias.data = torch.zeros(3)
    with pytest.raises(ShardError, match=r"got float32 of \(3,\) for 'bias'; make another"):
        engine.apply()
    served.bias.data = torch.zeros(2)
    assert engine.apply() == 2
    assert torch.equal(served.bias, model.bias)


def test_arrays_of_jax_that_were_donated_are_refused_before_anything_is_written(jobs):
    (trainer,) = jobs.publishers({"a": jnp.ones(2), "b": jnp.ones(2)})
    state = {"a": np.zeros(2, np.float32), "b": jnp.zeros(2)}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    trainer.publish().wait()
    state["b"].delete()
    with pytest.raises(ShardError, match="donated or deleted for 'b'"):
        engine.apply()
    assert state["a"].tolist() == [0.0, 0.0]
    assert engine.version == -1


def test_a_version_that_is_only_partly_in_place_is_said(jobs, monkeypatch):
    (trainer,) = jobs.publishers({"a": torch.ones(2), "b": torch.ones(2)})
    state = {"a": torch.zeros(2), "b": torch.zeros(2)}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    trainer.publish().wait()
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("no memory")

    monkeypatch.setattr(targets_module, "copied_to", failing)
    for _ in range(2):
        with pytest.raises(TransferError, match="no memory"):
            engine.apply()
    assert len(calls) == 2


def test_apply_waits_for_rank_0_and_is_the_same_call_when_it_is_repeated(jobs):
    (trainer,) = jobs.publishers({"a": torch.ones(2)})
    states = [{"a": torch.zeros(2)} for _ in range(2)]
    engines = jobs.subscribers(*states)
    trainer.wait_for(1)
    trainer.publish().wait()
    with pytest.raises(DeadlineError, match="for rank 0 of replica 'engine' to call apply"):
        engines[1].apply(0.1)
    assert together([one.apply for one in engines]) == [1, 1]
    assert [state["a"].tolist() for state in states] == [[1.0, 1.0]] * 2


def test_a_replica_joins_the_trainer_that_is_there_when_its_last_rank_comes(jobs):
    jobs.publishers({"a": torch.ones(2)}, run_id="first")
    make = partial(Subscriber, store=jobs.store, size=2, run_id="e", **LIMITS)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(make, {"a": torch.zeros(2)}, rank=0)
        board = Board(jobs.store, "weights")
        board.until(lambda: board.has("runs/first/needs/engine/e/0") or None, 20, str)
        (trainer,) = jobs.publishers({"a": torch.ones(2)}, run_id="second")
        engines = [early.result(30), make({"a": torch.zeros(2)}, rank=1)]
    assert trainer.wait_for(1) == ("engine",)
    assert trainer.publish().wait() == ("engine",)
    assert together([one.apply for one in engines]) == [1, 1]
    together([one.close for one in engines])


def test_threads_of_a_trainer_may_publish_at_the_same_time(jobs):
    (trainer,) = jobs.publishers({"a": torch.ones(2)})
    published = together([trainer.publish] * 6)
    assert sorted(one.version for one in published) == [1, 2, 3, 4, 5, 6]
    assert published[-1].wait() == ()


def test_names_changed_over_several_versions_all_arrive(jobs):
    weights = {name: torch.zeros(2) for name in "abc"}
    (trainer,) = jobs.publishers(weights)
    state = {name: torch.zeros(2) for name in "abc"}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    trainer.publish().wait()
    for name in "abc":  # the engine has version 1 pending, so it takes part in none of these
        weights[name] += 1
        trainer.publish(names=[name])
    engine.wait(1)
    assert engine.apply() == 1
    assert applied([engine], 4) == [4]
    assert [state[name].tolist() for name in "abc"] == [[1.0, 1.0]] * 3


def test_parts_of_ranks_become_parts_of_other_ranks_with_maps(jobs):
    whole = torch.arange(48.0).reshape(8, 6)
    mesh = jax.make_mesh((4, 2), ("x", "y"), devices=jax.devices())
    sharded = jax.device_put(jnp.asarray(whole.numpy()), NamedSharding(mesh, P("x", "y")))
    (trainer,) = jobs.publishers({"w": sharded, "v": np.arange(4.0, dtype=np.float32)})

    def weights(rank):
        return lambda w, _: {
            "fused": cat([w["w"].T.part(0, rank, 2), w["w"].T.part(0, rank, 2)]).pad(1, 9),
            "stack": w["v"].unsqueeze(1).part(0, rank, 2),
        }

    states = [{"fused": torch.full((6, 9), -1.0), "stack": torch.zeros(2, 1)} for _ in range(2)]
    engine = jobs.subscribers(*states, maps=[weights(0), weights(1)])
    trainer.wait_for(1)
    trainer.publish().wait()
    assert applied(engine, 1) == [1, 1]
    for rank, state in enumerate(states):
        half = whole.T[3 * rank : 3 * rank + 3]
        assert torch.equal(state["fused"][:, :8], torch.cat([half, half]))
        assert not state["fused"][:, 8].any()
        assert state["stack"].tolist() == [[2.0 * rank], [2.0 * rank + 1]]
    doubled = {"w": sharded * 2, "v": np.zeros(4, np.float32)}
    trainer.publish(doubled).wait()
    assert applied(engine, 2) == [2, 2]
    assert torch.equal(states[1]["fused"][:3, :8], whole.T[3:] * 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn"])
def test_arrays_of_jax_are_replaced(jobs, dtype):
    mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[:4])
    value = jnp.arange(16.0).reshape(4, 4).astype(dtype)
    (trainer,) = jobs.publishers({"w": value})
    old = jax.device_put(jnp.zeros((4, 4), dtype), NamedSharding(mesh, P("y", None)))
    (engine,) = jobs.subscribers({"w": old})
    trainer.wait_for(1)
    trainer.publish().wait()
    engine.apply()
    new = engine.state["w"]
    assert new.sharding == old.sharding
    assert new.dtype == old.dtype
    assert (np.asarray(new) == np.asarray(value)).all()
    assert not np.asarray(old).astype(np.float32).any()
    trainer.publish({"w": value[::-1]}).wait()
    engine.apply()
    assert (np.asarray(engine.state["w"]) == np.asarray(value[::-1])).all()


def test_parameters_of_flax_are_dicts_within_dicts(jobs):
    weights = {"layers": {"0": {"kernel": jnp.ones(2)}}, "head": jnp.zeros(3)}
    (trainer,) = jobs.publishers(weights)
    old = jax.tree.map(jnp.zeros_like, weights)
    (engine,) = jobs.subscribers(old)
    torch_state = {"layers.0.kernel": torch.zeros(2), "head": torch.ones(3)}
    (other,) = jobs.subscribers(torch_state, replica="torch")
    trainer.wait_for(2)
    trainer.publish(jax.tree.map(lambda x: x + 1, weights)).wait()
    assert [engine.apply(), other.apply()] == [1, 1]
    assert jax.tree.structure(engine.state) == jax.tree.structure(weights)
    assert engine.state["layers"]["0"]["kernel"].tolist() == [2.0, 2.0]
    assert torch_state["head"].tolist() == [1.0] * 3
    with pytest.raises(ShardError, match=r"a state has every name once; got 'a.b' twice"):
        Publisher({"a": {"b": jnp.ones(2)}, "a.b": jnp.ones(2)}, jobs.store)


def test_quantized_by_several_publishers_as_by_one(jobs):
    whole = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    columns = jax.device_put(jnp.asarray(whole.numpy()), NamedSharding(mesh, P(None, "x")))

    def weights(w, _):
        values, scales = w["w"].quantize("int8", (1, 8))
        return {"w": values, "scale": scales}

    results = []
    for held in (whole, columns):
        with Jobs() as made:
            (trainer,) = made.publishers({"w": held})
            state = {"w": torch.zeros(6, 8, dtype=torch.int8), "scale": torch.zeros(6, 1)}
            (engine,) = made.subscribers(state, maps=[weights])
            trainer.wait_for(1)
            trainer.publish().wait()
            engine.apply()
            results.append(state)
    assert torch.equal(results[0]["w"], results[1]["w"])
    assert torch.equal(results[0]["scale"], whole.abs().amax(1, keepdim=True) / 127)


def test_a_module_is_published_as_it_is_at_each_version(jobs):
    module, copy = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    (trainer,) = jobs.publishers(module)
    (engine,) = jobs.subscribers(copy)
    trainer.wait_for(1)
    module.weight.data = torch.ones(2, 3)  # other memory
    trainer.publish().wait()
    engine.apply()
    assert copy.weight.tolist() == [[1.0] * 3] * 2
    assert torch.equal(copy.bias, module.bias)


def test_a_publisher_that_was_started_again_takes_over(jobs):
    state = {"a": torch.zeros(2)}
    (first,) = jobs.publishers({"a": torch.ones(2)}, run_id="one")
    (engine,) = jobs.subscribers(state)
    first.wait_for(1)
    first.publish().wait()
    engine.apply()
    first.close()
    (second,) = jobs.publishers({"a": torch.full((2,), 2.0)}, run_id="two")
    second.wait_for(1)
    sent = second.publish()
    assert sent.version == 2
    assert sent.wait() == ("engine",)
    assert engine.apply() == 2
    assert state["a"].tolist() == [2.0, 2.0]
    with pytest.raises(TransferError, match="a closed publisher does nothing more"):
        first.publish()


def test_a_replica_that_was_started_again_takes_the_place_of_the_old_one(jobs):
    (trainer,) = jobs.publishers({"a": torch.ones(2)})
    (old,) = jobs.subscribers({"a": torch.zeros(2)}, run_id="one")
    trainer.wait_for(1)
    trainer.publish().wait()
    old._stopped = True  # it dies: it says nothing any more
    old._thread.join()
    state = {"a": torch.zeros(2)}
    (new,) = jobs.subscribers(state, run_id="two")
    assert applied([new], 1) == [1]
    assert trainer.publish().wait() == ("engine",)


def test_a_version_that_was_changed_on_its_way_is_noticed_and_sent_again(jobs, monkeypatch):
    (trainer,) = jobs.publishers({"a": torch.ones(9)})
    state = {"a": torch.full((9,), 5.0)}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    pack, tries = publisher_module.pack, []

    def damaging(*arguments):
        content = pack(*arguments)
        tries.append(content)
        content[0] ^= len(tries) == 1
        return content

    monkeypatch.setattr(publisher_module, "pack", damaging)
    sent = trainer.publish()
    assert sent.wait() == ("engine",)
    assert engine.apply() == 1
    assert state["a"].eq(1).all()
    assert len(tries) == 2


def test_a_cancelled_version_reaches_nobody_and_the_next_one_does(jobs):
    weights = {"a": torch.zeros(2)}
    (trainer,) = jobs.publishers(weights)
    trainer._versions.cancel(1)  # before it begins
    sent = trainer.publish()
    sent.cancel()
    state = {"a": torch.ones(2)}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    assert sent.wait() == ()
    assert engine.apply() is None
    assert trainer.publish().wait() == ("engine",)


def test_a_version_is_cancelled_while_it_is_sent(jobs, monkeypatch):
    (trainer,) = jobs.publishers({"a": torch.ones(2)})
    state = {"a": torch.zeros(2)}
    (engine,) = jobs.subscribers(state)
    trainer.wait_for(1)
    begun, go_on = threading.Event(), threading.Event()
    receive = Subscriber._receive

    def late(self, planned):
        begun.set()
        go_on.wait(20)
        return receive(self, planned)

    monkeypatch.setattr(Subscriber, "_receive", late)
    sent = trainer.publish()
    begun.wait(20)
    sent.cancel()
    go_on.set()
    assert sent.wait() == ()
    assert engine.apply() is None
    assert trainer.publish().wait() == ("engine",)
    assert engine.apply() == 2


def test_ranks_may_have_tensors_of_their_own(jobs):
    weights = [{"a": torch.ones(2)}, {"b": torch.ones(2)}]
    trainers = jobs.publishers(*weights)
    state = {"a": torch.zeros(2), "b": torch.zeros(2)}
    (engine,) = jobs.subscribers(state)
    trainers[0].wait_for(1)
    publish(trainers)[0].wait()
    weights[1]["b"] += 1
    assert engine.apply() == 1
    assert publish(trainers, names=["b"])[0].wait() == ("engine",)
    assert engine.apply() == 2
    assert [state["a"].tolist(), state["b"].tolist()] == [[1.0, 1.0], [2.0, 2.0]]


def test_ranks_that_publish_other_names_are_refused(jobs):
    trainers = jobs.publishers(*({"a": torch.ones(2), "b": torch.ones(2)} for _ in range(2)))
    publish(trainers)
    sent = together([partial(trainers[0].publish, names=["a"]), trainers[1].publish])
    for publication in sent:
        with pytest.raises(TransferError, match=r"ranks publish the same names; some .* version 2"):
            publication.wait()


def test_ranks_with_unlike_tensors_of_one_name_are_refused(jobs):
    with pytest.raises(PlanError, match=r"float32 of \(3,\) on rank 1, float32 of \(2,\)"):
        jobs.publishers({"a": torch.ones(2)}, {"a": torch.ones(3)})


def test_says_who_is_missing(jobs):
    store = dist.HashStore()
    with pytest.raises(DeadlineError, match="for a publisher of 'weights'; start one"):
        Subscriber({}, store, deadline_s=0.1)
    with pytest.raises(DeadlineError, match=r"publishers \[1, 2\] of 3 to say what they hold"):
        Publisher({"a": torch.ones(2)}, store, rank=0, size=3, run_id="r", connect_s=0.1)
    with pytest.raises(DeadlineError, match="for publisher rank 0"):
        Publisher({"a": torch.ones(2)}, store, rank=1, size=3, run_id="s", connect_s=0.1)
    (trainer,) = jobs.publishers({"a": torch.ones(2)})
    with pytest.raises(DeadlineError, match=r"ranks \[1\] of replica 'engine' to join"):
        Subscriber({"a": torch.ones(2)}, jobs.store, rank=0, size=2, run_id="e", connect_s=0.1)
    with pytest.raises(DeadlineError, match=r"1 replicas to join; there are \[\]"):
        trainer.wait_for(1, 0.1)
    (engine,) = jobs.subscribers({"a": torch.ones(2)})
    with pytest.raises(DeadlineError, match="for version 5 from a publisher; version -1 is here"):
        engine.wait(5, 0.1)


def test_ranks_that_do_not_publish_are_named(jobs):
    trainers = jobs.publishers({"a": torch.ones(2)}, {"a": torch.ones(2)}, deadline_s=0.3)
    trainers[0].publish()
    trainers[0].publish()
    with pytest.raises(DeadlineError, match="for all 2 ranks of the trainer to publish version 2"):
        trainers[0].publish()


@pytest.mark.parametrize(
    ("state", "weights", "error", "message"),
    [
        ({"b": torch.ones(2)}, None, PlanError, "got 'b'; published are a"),
        ({"a": torch.ones(3)}, None, PlanError, r"the shape of its view; got \(3,\) for 'a'"),
        ({"a": torch.ones(2, dtype=torch.int8)}, None, PlanError, "got float32 as published"),
        ({"a": 3}, None, ShardError, "a state has DTensors.*got int for 'a'; leave it out"),
        (
            {"a": torch.ones(1).expand(2)},
            None,
            ShardError,
            "elements share their memory.*for 'a'; copy",
        ),
        (
            {"a": np.broadcast_to(np.float32(1), (2,))},
            None,
            ShardError,
            "written in place; got read-only memory for 'a'; copy it",
        ),
        ({"a": np.ones(2)[::-1]}, None, ShardError, "no negative strides; got float64 .*; copy it"),
        ({"a": np.ones(2, ">f4")}, None, ShardError, "in the byte order of the machine.*got >f4"),
        ({"a": np.array(["x", "y"])}, None, ShardError, "an element type that torch has.*got <U1"),
        ([], None, ShardError, "a state is a module, or tensors.*got list"),
        ({"a": torch.ones(2)}, lambda w, own: {}, PlanError, r"it lacks \['a'\]"),
        ({"a": torch.ones(2)}, lambda w, own: {"a": 1}, PlanError, "gives views; got int for 'a'"),
        (
            {"a": torch.ones(2)},
            lambda w, own: {"a": View.whole("z", (2,))},
            PlanError,
            "got 'z'; published are a",
        ),
    ],
)
def test_says_what_a_subscriber_cannot_have(jobs, state, weights, error, message):
    jobs.publishers({"a": torch.ones(2)})
    with pytest.raises(error, match=message):
        Subscriber(state, jobs.store, weights, connect_s=5.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "a rank, a size, and a run_id .*got rank=0, size=None"),
        ({"rank": 0, "size": 2}, "run_id=None"),
        ({"rank": 2, "size": 2, "run_id": "r"}, "from 0 to size - 1; got rank=2 and size=2"),
        ({"deadline_s": 0}, "deadline_s is a number of seconds above 0.*got 0"),
        ({"connect_s": float("nan")}, "connect_s is a number of seconds above 0.*got nan"),
    ],
)
def test_says_what_a_job_cannot_be(options, message):
    with pytest.raises(PlanError, match=message):
        Publisher({"a": torch.ones(2)}, dist.HashStore(), **options)


def test_a_store_is_one_of_torch():
    with pytest.raises(PlanError, match=r"jobs meet by a store of torch.distributed.*got dict"):
        Publisher({"a": torch.ones(2)}, {})


def test_a_state_stays_what_it_was(jobs):
    (trainer,) = jobs.publishers({"a": torch.ones(2)})
    with pytest.raises(ShardError, match=r"got float32 of \(3,\) for 'a' after float32 of \(2,\)"):
        trainer.publish({"a": torch.ones(3)})
    with pytest.raises(ShardError, match="got none for 'a'"):
        trainer.publish({})
    assert trainer.publish().version == 1


def test_both_sides_may_share_one_client_of_a_store():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    state = {"a": torch.zeros(2)}
    with (
        Publisher({"a": torch.ones(2)}, store, **LIMITS) as trainer,
        Subscriber(state, store, **LIMITS) as engine,
    ):
        trainer.wait_for(1)
        assert trainer.publish().wait() == ("engine",)
        assert engine.apply() == 1
    assert state["a"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("applying", [False, True])
@pytest.mark.parametrize("making", [False, True])
def test_weights_of_an_engine_in_inference_mode(jobs, making, applying):
    with torch.inference_mode(making):
        served = torch.nn.Linear(2, 2)
    module = torch.nn.Linear(2, 2)
    (trainer,) = jobs.publishers(module)
    (engine,) = jobs.subscribers(served)
    trainer.wait_for(1)
    trainer.publish().wait()
    with torch.inference_mode(applying):
        assert engine.apply() == 1
    assert torch.equal(served.weight, module.weight)


def test_a_store_that_is_gone_is_an_error_on_both_sides():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False)
    trainer = Publisher({"a": torch.ones(2)}, client, **LIMITS)
    del store
    with pytest.raises((TransportError, TransferError), match="store that the jobs meet by failed"):
        trainer.publish().wait()
    trainer.close()
