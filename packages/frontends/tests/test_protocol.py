"""A step of JAX and one of PyTorch are used alike; what differs, differs for a reason."""

import inspect
from types import ModuleType

import frontends.jax
import frontends.torch
import pytest
from frontends.search.plan_options import PlanOptions

PASSED = "state is passed to a JAX step and returned; a PyTorch step has it"
FRAMEWORKS = (frontends.jax, frontends.torch)

ONLY_ONE = {
    "abstract_state": "tells where state that is passed would lie",
    "evaluate": "modules have an evaluation mode; functions of JAX have arguments",
    "init_weights": "`init` under its older name",
    "write_back": "brings state that a step has to the user's objects",
}
OTHERWISE = {
    "follow": "a JAX function says which of its arguments are the batch",
    "init": PASSED,
    "load_state_dict": PASSED,
    "restore": PASSED,
    "save": PASSED,
    "state_dict": PASSED,
}
ONLY_ONE_MODULE = {
    "custom_op": "PyTorch has its own, `torch.library.custom_op`",
    "init": "virtual devices of JAX are there before it starts; processes of PyTorch join later",
    "partition_specs": "layouts in JAX's words; `state_dict` has those of PyTorch, as DTensors",
    "parallelize_step": "JAX has no model, optimizer and loss that a step could be made of",
}
OTHERWISE_MODULE = {
    "elastic": PASSED,
    "parallelize": "a function; or a model, its optimizer and a loss",
    "plan_for": "the same",
    "register_rule": "an operator of JAX is a Primitive, one of PyTorch is torch.ops...",
    "restore": PASSED,
    "save": PASSED,
}


def signatures(owner: object) -> dict[str, str]:
    """By public name, how it is called and what it gives."""
    names = owner.__all__ if isinstance(owner, ModuleType) else dir(owner)
    found = {}
    for name in names:
        member = getattr(owner, name)
        if name.startswith("_") and name not in ("__call__", "__repr__"):
            continue
        if isinstance(member, property):
            found[name] = f"property -> {member.fget.__annotations__['return']}"
        elif not inspect.isclass(member):
            found[name] = str(inspect.signature(member))
    return found


@pytest.mark.parametrize("what", ["step", "module"])
def test_names_and_signatures_are_the_same(what: str) -> None:
    owners = [f if what == "module" else f.ParallelStep for f in FRAMEWORKS]
    ours, theirs = map(signatures, owners)
    only, otherwise = ONLY_ONE, OTHERWISE
    if what == "module":
        only, otherwise = ONLY_ONE_MODULE, OTHERWISE_MODULE
    assert ours.keys() ^ theirs.keys() == only.keys()
    different = {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
    assert different == otherwise.keys()


@pytest.mark.parametrize("name", sorted({*OTHERWISE, *OTHERWISE_MODULE} - {"init"}))
def test_parameters_that_both_have_are_the_same(name: str) -> None:
    owners = [f.ParallelStep for f in FRAMEWORKS] if name in OTHERWISE else FRAMEWORKS
    ours, theirs = (inspect.signature(getattr(owner, name)).parameters for owner in owners)
    both = [parameter for parameter in ours if parameter in theirs]
    assert both == [parameter for parameter in theirs if parameter in ours], "in one order"
    for parameter in set(both) - {"self", "state"}:
        assert ours[parameter] == theirs[parameter]
    if name in ("parallelize", "plan_for"):
        assert {*PlanOptions.__dataclass_fields__, "cluster"} <= {*both}
