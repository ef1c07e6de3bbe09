import autoshard
from frontends.memory import KINDS, fullest_moment, memory_curves
from frontends.plan import Plan


def test_curves_are_the_live_bytes_of_each_kind(priced_plan: Plan) -> None:
    for stage in priced_plan.stages:
        assert stage.sharding is not None
        curves = memory_curves(stage.sharding)
        assert list(curves) == list(KINDS)
        total = tuple(map(sum, zip(*curves.values(), strict=True)))
        assert total == autoshard.live_bytes(stage.sharding)
        for kind in ("parameter", "activation", "copy"):
            assert curves[kind] == autoshard.live_bytes(stage.sharding, kind)


def test_the_fullest_moment_is_the_peak(priced_plan: Plan) -> None:
    for stage in priced_plan.stages:
        assert stage.sharding is not None
        held = fullest_moment(stage.sharding)
        assert sum(held.values()) == max(autoshard.live_bytes(stage.sharding))
        assert held["parameter"] > 0
