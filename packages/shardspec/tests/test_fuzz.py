"""Every parser, given texts of every notation with slips and malice in them: a value or its error.

500 texts by default, 100,000 in `nox -s nightly`; the same ones each time.
"""

import contextlib
import math
import os
import random
import re

import pytest
from shardspec import Layout, Mesh, NotationError, Spec, SpecError
from shardspec.notation import NOTATIONS, notation

TEXTS = 100_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 500

MESH = Mesh((2, 4, 3), ("x", "y", "z"))
SHAPES = (None, None, (), (0,), (8,), (7, 12), (24, 1, 5), (2**40, 3), (2**62 + 1,))

# Of each notation what it has: all kinds of entries, and what it prints and reads besides.
VALID = {
    "alpa": (
        "S0R",
        "S01RS2",
        "()",
        "S[2]0S(1:(1)2)",
        "R+P0+Pmax(1:(2)2)",
        "S⁰¹R",
        "[S0, S12, R]",
        "S(0)(1)R+Pavg2+Pproduct1",
        "RRRR",
    ),
    "sbp": (
        "(S(0), B, P)",
        "[S(0), S(1), B]",
        "(oneflow.sbp.split(dim=0), oneflow.sbp.broadcast, oneflow.sbp.partial_sum)",
        "('S(0)', 'B', 'P')",
        "(split(axis=1), B, B)",
        "(P, P, S(2))",
    ),
    "hlo": (
        "{replicated}",
        "{maximal device=0}",
        "{devices=[2,1]0,1}",
        "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}",
        "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
        "{devices=[2,2,6]<=[24] last_tile_dims={replicated}}",
        "{devices=[1,2,2,2]<=[8] last_tile_dims={unreduced, replicated}}",
        "{mesh['x'=2,'y'=4], [{'y':(2)2, 'x'}], unreduced={'y':(1)2}}",
        "{mesh['a'=2,'b'=2], [{}, {'b'}]}",
        "{mesh['a'=2], [{'a'}], replicated={}}",
        '{devices=[2]0,1 metadata={op_name="a\\"b"}}',
    ),
    "shardy": (
        '#sdy.sharding<mesh<["x"=2, "y"=4]>, [{"y", "x"}, {}]>',
        '<@m, [{"x":(1)2}], unreduced={"y":(2)2}>',
        '<@mesh, [{}, {"z"}p1], replicated={"x"}>',
        '#sdy.sharding<mesh<["x"=2], device_ids=[1, 0]>, [{"x"}]>',
        '<@"a mesh", []>',
        '<@m, [{"x", ?}, {?}]>',
    ),
    "jax": (
        "P('x', None, ('y', 'z'))",
        "PartitionSpec('x', unreduced={'z'})",
        "P()",
        'P(("x",), None, "y")',
        "jax.sharding.PartitionSpec(None, 'x', reduced={'y'})",
        "P(UNCONSTRAINED, '\\x78')",
    ),
    "torch": (
        "(Shard(dim=0), Replicate(), Partial(sum))",
        "(_StridedShard(dim=0, sf=4), Shard(dim=0), Replicate())",
        "[S(0), R, P(max)]",
        "_S(0, 2)S(0)R",
        "S(0)[1]S(0)[0]R",
        "(Partial(avg), Shard(dim=-1), MaskPartial())",
    ),
}
ALL = [text for texts in VALID.values() for text in texts]
TOKENS = re.compile(r"\d+|[^\W\d]+|\s+|.", re.DOTALL)
VOCABULARY = sorted({token for text in ALL for token in TOKENS.findall(text)})
NUMBERS = ("0", "1", "2", "4", "-1", "007", "1.5", "١", "²", "9" * 18, "9" * 20, str(2**31), "1e3")
ODD = (
    "\0",
    "\ud800",
    "\u202e",
    "é",
    "😀",
    "\n",
    "\t",
    '"',
    "'",
    "\\",
    "\\x4",
    "((((",
    "}}",
    "]" * 50,
)


def token(rng):
    return rng.choice(rng.choice((VOCABULARY, VOCABULARY, NUMBERS, ODD)))


def mutated(rng, text):
    """A text with a few slips, each at a token of the notations."""
    tokens = TOKENS.findall(text)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(tokens) + 1)
        match rng.randrange(8):
            case 0:
                del tokens[at : at + rng.choice((1, 1, 2, 5))]
            case 1:
                tokens.insert(at, token(rng))
            case 2:
                tokens[at : at + 1] = [token(rng)]
            case 3:
                tokens[at:at] = tokens[at : at + rng.randrange(1, 6)] * rng.choice((1, 1, 2, 9))
            case 4:
                numbers = [i for i, t in enumerate(tokens) if t.isdecimal()] or [at]
                tokens[(i := rng.choice(numbers)) : i + 1] = [rng.choice(NUMBERS)]
            case 5:
                other = TOKENS.findall(rng.choice(ALL))
                tokens[at:] = other[rng.randrange(len(other)) :]
            case 6:
                del tokens[at:]
            case 7:
                i = rng.randrange(len(tokens) + 1)
                tokens[at:at], tokens[i : i + 1] = tokens[i : i + 1], []
    return "".join(tokens)


def arbitrary(rng):
    pools = ("(){}[]<>,:=+'\"?@#", "0123456789", "RSPBxyz", "".join(ODD), "".join(VOCABULARY))
    length = rng.choice((0, 1, 3, 10, 40))
    return "".join(rng.choice(rng.choice(pools)) for _ in range(length))


def read_and_write(name, text, shape, mesh):
    """Parse; what is found is written and read again, or its notation says that it cannot."""
    module = notation(name)
    layout = module.parse(text, shape=shape, mesh=mesh)
    assert type(layout) is Layout
    if mesh is not None:
        assert set(layout.mesh.device_ids) == set(mesh.device_ids)
    if shape is not None:
        assert layout.shape == shape
    if layout.mesh.size <= 64:
        try:
            written = module.dump(layout)
        except NotationError:
            return
        again = module.parse(written, shape=layout.shape, mesh=layout.mesh)
        assert again == layout or math.prod(layout.shape) > 10**6 or again.is_equivalent(layout)


def check(text, shape, mesh):
    """Give a text to all parsers."""
    try:
        assert type(Spec.parse(text)) is Spec
    except SpecError as error:
        assert str(error)  # noqa: PT017
    for name in NOTATIONS:
        try:
            read_and_write(name, text, shape, mesh)
        except NotationError as error:
            where = f"{name} of {text!r}: {error}"
            assert error.text == text, where  # noqa: PT017
            assert 0 <= error.position <= len(text), where  # noqa: PT017
            assert str(error), where  # noqa: PT017
        except Exception as error:
            error.add_note(f"{name} of {text!r}, shape={shape}, mesh={mesh}")
            raise


@pytest.mark.parametrize("name", NOTATIONS)
def test_texts_with_slips_give_a_layout_or_the_error_of_their_notation(name):
    rng = random.Random(name)
    for _ in range(TEXTS // len(NOTATIONS)):
        own = mutated(rng, rng.choice(VALID[name]))
        text = own if rng.random() < 0.9 else arbitrary(rng)
        check(text, rng.choice(SHAPES), rng.choice((MESH, MESH, MESH, None)))


@pytest.mark.parametrize("name", NOTATIONS)
def test_some_of_the_texts_that_are_mutated_are_valid(name):
    valid = 0
    for text in VALID[name]:
        for mesh in (MESH, None):
            with contextlib.suppress(NotationError):
                notation(name).parse(text, mesh=mesh)
                valid += 1
    assert valid >= 3


HOSTILE = {
    "digits": "9" * 10**6,
    "brackets": "(" * 10**6,
    "braces": "{" * 10**6 + "}" * 10**6,
    "long": "R" * 10**5,
    "zeros": "S" + "0" * 10**5 + "x",
    "spaces": " " * 10**6 + "x",
    "nul": "S0\0R",
    "surrogate": "P('\ud800')",
    "quotes": "P('" + "\\'" * 10**5,
    "devices": "{devices=[1000000000000]<=[1000000000000]}",
    "iota": "{devices=[999999999999999999,999999999999999999]<=[999999999999999999]}",
    "transpose": "{devices=[2,2]<=[" + "2," * 10**5 + "2]T(" + "0," * 10**5 + "0)}",
    "mesh": "{mesh['a'=1000000000000], [{'a'}]}",
    "shardy": '<mesh<["x"=1000000000000]>, [{"x":(1)1000000}]>',
    "names": '<@m, [{"' + "x" * 10**6 + '"}]>',
    "strided": "(_StridedShard(dim=0, sf=999999999999999999), R, R)",
    "minus": "(Shard(dim=-0), R, R)",
    "dims": "(S(999999999999), B, B)",
    "many": "(" + "S(0)," * 10**5 + "B)",
    "kinds": "R" + "+Pmax0" * 10**4,
    "splits": "S" + "[999999999999999999]" * 10 + "0",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_texts_give_a_layout_or_an_error_too(case):
    for shape in (None, (7,)):
        check(HOSTILE[case], shape, MESH)
    check(HOSTILE[case], None, None)
