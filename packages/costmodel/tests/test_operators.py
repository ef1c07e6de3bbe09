"""Counts of operators against loops that do the arithmetic, and against formulas of others."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from costmodel import Cluster, QuantityError, UnknownDtypeError
from costmodel.memory_bound import (
    elementwise,
    gather,
    normalisation,
    reduction,
    scatter,
    softmax,
)
from costmodel.operators import Work, attention, convolution, matmul, work_time
from hypothesis import given
from hypothesis import strategies as st

few = st.integers(1, 4)


def product_of_ranges(*sizes):
    return itertools.product(*map(range, sizes))


class Loop:
    """Counts the multiply-adds of a loop, and the elements of each tensor that it touches."""

    def __init__(self):
        self.flops = 0
        self.touched = {}

    def multiply_add(self, *elements):
        self.flops += 2
        self.touch(*elements)

    def touch(self, *elements):
        for tensor, *index in elements:
            self.touched.setdefault(tensor, set()).add(tuple(index))

    @property
    def n_elements(self):
        return sum(map(len, self.touched.values()))


# Matrix products


@given(m=few, n=few, k=few, batch=few)
def test_matmul_counts_what_the_loop_does(m, n, k, batch):
    loop = Loop()
    for b, i, j, inner in product_of_ranges(batch, m, n, k):
        loop.multiply_add(("c", b, i, j), ("a", b, i, inner), ("b", b, inner, j))
    assert matmul(m, n, k, "float32", batch) == Work(loop.flops, 4 * loop.n_elements, "float32")


@given(m=few, n=few, k=few, batch=few)
def test_matmul_gradients_count_what_their_loops_do(m, n, k, batch):
    first, second = Loop(), Loop()
    for b, i, j, inner in product_of_ranges(batch, m, n, k):
        first.multiply_add(("da", b, i, inner), ("dc", b, i, j), ("b", b, inner, j))
        second.multiply_add(("db", b, inner, j), ("a", b, i, inner), ("dc", b, i, j))
    for loop, sizes in ((first, (m, k, n)), (second, (k, n, m))):
        assert matmul(*sizes, "float16", batch) == Work(loop.flops, 2 * loop.n_elements, "float16")


def test_gpt_layer_takes_the_flops_of_narayanan_et_al():
    # "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
    # appendix: a layer's forward takes 24 B s h^2 + 4 B s^2 h FLOP.
    b, s, h, heads = 2, 128, 256, 8
    weights = [(h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)]
    flops = sum(matmul(b * s, n, k, "float16").flops for k, n in weights)
    flops += attention(
        b, heads, s, s, h // heads, "float16", causal=False, materialised=False
    ).flops
    assert flops == 24 * b * s * h**2 + 4 * b * s**2 * h


# Convolutions


@st.composite
def convolutions(draw):
    groups = draw(st.integers(1, 2))
    n_dims = draw(st.integers(1, 2))
    dims = [
        draw(
            st.tuples(
                st.integers(1, 5), st.integers(1, 3), *[st.integers(1, 3), st.integers(0, 2)], few
            ).filter(lambda d: d[0] + 2 * d[3] >= d[4] * (d[1] - 1) + 1)
        )
        for _ in range(n_dims)
    ]
    image, kernel, stride, padding, dilation = zip(*dims, strict=True)
    sizes = {
        "batch": draw(st.integers(1, 2)),
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "image": image,
        "kernel": kernel,
    }
    return sizes, {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }


def run_convolution(sizes, options):
    """A convolution and both its gradients by loops: one count for each, and their results."""
    batch, channels, filters, image, kernel = sizes.values()
    stride, padding, dilation, groups = options.values()
    outputs = []
    for size, taps, step, pad, gap in zip(image, kernel, stride, padding, dilation, strict=True):
        starts = range(-pad, size + pad, step)
        outputs.append(sum(start + gap * (taps - 1) < size + pad for start in starts))
    random = np.random.default_rng(0)
    x = random.integers(-9, 9, (batch, channels, *image))
    w = random.integers(-9, 9, (filters, channels // groups, *kernel))
    dy = random.integers(-9, 9, (batch, filters, *outputs))
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    loops = Loop(), Loop(), Loop()
    for b, f, *o in product_of_ranges(*dy.shape):
        for c, *t in product_of_ranges(*w.shape[1:]):
            channel = f // (filters // groups) * (channels // groups) + c
            at = [
                i * step + j * gap - pad
                for i, j, step, gap, pad in zip(o, t, stride, dilation, padding, strict=True)
            ]
            inside = all(0 <= a < size for a, size in zip(at, image, strict=True))
            xi, wi, yi = (b, channel, *at), (f, c, *t), (b, f, *o)
            if inside:
                y[yi] += x[xi] * w[wi]
                dx[xi] += dy[yi] * w[wi]
                dw[wi] += dy[yi] * x[xi]
            for loop in loops:
                loop.multiply_add(("w", *wi), ("y", *yi), *[("x", *xi)] * inside)
    # Gradients of sum(dy * y), which is linear in x and in w.
    assert np.sum(dy * y) == np.sum(dx * x) == np.sum(dw * w)
    untouched = x.size - len(loops[0].touched.get("x", ()))
    return loops, untouched


@given(convolutions())
def test_convolution_and_its_gradients_count_what_the_loops_do(case):
    sizes, options = case
    loops, untouched = run_convolution(sizes, options)
    work = convolution(*sizes.values(), "float32", **options)
    for loop in loops:
        assert work == Work(loop.flops, 4 * (loop.n_elements + untouched), "float32")


@given(convolutions())
def test_convolution_is_a_matrix_product_over_the_unfolded_image(case):
    # Chetlur et al., "cuDNN", section 3: rows are outputs' positions, columns filters.
    sizes, options = case
    batch, channels, filters, image, kernel = sizes.values()
    stride, padding, dilation, groups = options.values()
    positions = math.prod(
        math.floor((i + 2 * p - d * (k - 1) - 1) / s + 1)  # the formula of torch's Conv2d
        for i, k, s, p, d in zip(image, kernel, stride, padding, dilation, strict=True)
    )
    product = matmul(
        batch * positions,
        filters // groups,
        channels // groups * math.prod(kernel),
        "float32",
        batch=groups,
    )
    assert convolution(*sizes.values(), "float32", **options).flops == product.flops


@given(batch=few, channels=few, filters=few, height=few, width=few)
def test_convolution_of_single_pixels_is_a_matrix_product(batch, channels, filters, height, width):
    of_pixels = convolution(batch, channels, filters, (height, width), (1, 1), "float32")
    assert of_pixels == matmul(batch * height * width, filters, channels, "float32")


def test_resnet_50_takes_its_published_flops():
    # He et al., "Deep Residual Learning for Image Recognition", 2015, table 1: 3.8e9
    # "FLOPs (multiply-adds)"; strides in the first convolution of a block, as in the paper.
    size, channels = 56, 64
    macs = convolution(1, 3, 64, (224, 224), (7, 7), "float32", stride=2, padding=3).flops / 2
    for stage, (blocks, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            image, size = (size, size), size // stride
            parts = [
                convolution(1, channels, width, image, (1, 1), "float32", stride=stride),
                convolution(1, width, width, (size, size), (3, 3), "float32", padding=1),
                convolution(1, width, 4 * width, (size, size), (1, 1), "float32"),
            ]
            if block == 0:
                parts.append(
                    convolution(1, channels, 4 * width, image, (1, 1), "float32", stride=stride)
                )
            channels = 4 * width
            macs += sum(part.flops for part in parts) / 2
    macs += matmul(1, 1000, channels, "float32").flops / 2
    assert macs == pytest.approx(3.8e9, rel=0.02)


# Attention


@st.composite
def attentions(draw):
    kv_heads = draw(st.integers(1, 2))
    sizes = {
        "batch": draw(st.integers(1, 2)),
        "heads": kv_heads * draw(st.integers(1, 2)),
        "queries": draw(few),
        "keys": draw(few),
        "head_dim": draw(st.integers(1, 3)),
    }
    return sizes, kv_heads


@given(case=attentions(), causal=st.booleans())
def test_attention_counts_what_the_loop_does(case, causal):
    sizes, kv_heads = case
    batch, heads, queries, keys, head_dim = sizes.values()
    loop = Loop()
    for b, h, i, d in product_of_ranges(batch, heads, queries, head_dim):
        loop.touch(("q", b, h, i, d), ("o", b, h, i, d))
    for b, h, i, j, d in product_of_ranges(batch, heads, queries, keys, head_dim):
        shared = h // (heads // kv_heads)
        loop.touch(("k", b, shared, j, d), ("v", b, shared, j, d))
        if not causal or j <= i + keys - queries:
            loop.multiply_add(("q", b, h, i, d), ("k", b, shared, j, d))
            loop.multiply_add(("o", b, h, i, d), ("v", b, shared, j, d))
    work = attention(
        *sizes.values(), "float16", causal=causal, materialised=False, kv_heads=kv_heads
    )
    assert work == Work(loop.flops, 2 * loop.n_elements, "float16")


@given(attentions())
def test_materialised_attention_moves_what_its_operators_move(case):
    batch, heads, queries, keys, head_dim = case[0].values()
    parts = [
        matmul(queries, keys, head_dim, "float32", batch * heads),
        softmax(batch * heads * queries, keys, "float32"),
        matmul(queries, head_dim, keys, "float32", batch * heads),
    ]
    for causal in (False, True):  # the mask comes after the products
        work = attention(*case[0].values(), "float32", causal=causal, materialised=True)
        assert work.n_bytes == sum(part.n_bytes for part in parts)
        assert work.flops == parts[0].flops + parts[2].flops


@given(attentions())
def test_materialised_gradients_move_what_their_operators_move(case):
    batch, heads, queries, keys, head_dim = case[0].values()
    products = [
        matmul(keys, head_dim, queries, "float32", batch * heads),  # dV = P^T dO
        matmul(queries, keys, head_dim, "float32", batch * heads),  # dP = dO V^T
        matmul(queries, head_dim, keys, "float32", batch * heads),  # dQ = dS K
        matmul(keys, head_dim, queries, "float32", batch * heads),  # dK = dS^T Q
    ]
    of_softmax = elementwise(batch * heads * queries * keys, 2, "float32")  # P, dP -> dS
    work = attention(*case[0].values(), "float32", causal=False, materialised=True, backward=True)
    assert work.n_bytes == sum(part.n_bytes for part in [*products, of_softmax])
    assert work.flops == sum(part.flops for part in products)


def test_attention_takes_the_flops_of_flash_attention_2():
    s, d, h = 4096, 128, 16

    def flops(**options):
        return attention(1, h, s, s, d, "float16", materialised=False, **options).flops

    assert flops(causal=False) == 4 * s**2 * d * h
    assert flops(causal=True) == pytest.approx(4 * s**2 * d * h / 2, rel=1 / s)
    for causal in (False, True):
        assert flops(causal=causal, backward=True) == 2.5 * flops(causal=causal)


# Operators that mostly move bytes


class Counted:
    """A number that counts the arithmetic functions applied to it and to its descendants."""

    def __init__(self, value, done):
        self.value, self.done = value, done

    def apply(self, function, *others):
        self.done["flops"] += 1
        values = [getattr(other, "value", other) for other in others]
        return Counted(function(self.value, *values), self.done)

    def __add__(self, other):
        return self.apply(lambda a, b: a + b, other)

    def __sub__(self, other):
        return self.apply(lambda a, b: a - b, other)

    def __mul__(self, other):
        return self.apply(lambda a, b: a * b, other)

    def __truediv__(self, other):
        return self.apply(lambda a, b: a / b, other)


def fold(function, numbers):
    first, *others = numbers
    for other in others:
        first = function(first, other)
    return first


def total(numbers):
    return fold(lambda a, b: a + b, numbers)


def counted_rows(rows, columns):
    done = Counter()
    values = np.random.default_rng(0).normal(size=(rows, columns))
    return [[Counted(value, done) for value in row] for row in values.tolist()], values, done


def plain_values(rows):
    return np.array([[number.value for number in row] for row in rows])


@given(rows=few, columns=few)
def test_softmax_counts_what_the_loop_does(rows, columns):
    x, values, done = counted_rows(rows, columns)
    y = []
    for row in x:
        largest = fold(lambda a, b: a.apply(max, b), row)
        powers = [(number - largest).apply(math.exp) for number in row]
        mass = total(powers)
        y.append([power / mass for power in powers])
    expected = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    assert np.allclose(plain_values(y), expected)
    assert softmax(rows, columns, "float32") == Work(
        done["flops"], 4 * 2 * rows * columns, "float32"
    )


@given(rows=few, columns=few)
def test_normalisation_counts_what_the_loop_does(rows, columns):
    x, values, done = counted_rows(rows, columns)
    scale, shift, epsilon = [1.5] * columns, [0.25] * columns, 1e-5
    y = []
    for row in x:
        mean = total(row) / columns
        away = [number - mean for number in row]
        variance = total([number * number for number in away]) / columns
        factor = (variance + epsilon).apply(math.sqrt).apply(lambda root: 1 / root)
        y.append([a * factor * g + b for a, g, b in zip(away, scale, shift, strict=True)])
    variance = values.var(axis=1, keepdims=True)
    expected = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(variance + epsilon)
    assert np.allclose(plain_values(y), expected * 1.5 + 0.25)
    n_elements = 2 * rows * columns + len(scale) + len(shift)
    assert normalisation(rows, columns, "float32") == Work(done["flops"], 4 * n_elements, "float32")


@given(n_results=few, each=few)
def test_reduction_counts_what_the_loop_does(n_results, each):
    x, _, done = counted_rows(n_results, each)
    results = [total(row) for row in x]
    n_elements = n_results * each + len(results)
    assert reduction(n_results * each, n_results, "float64") == Work(
        done["flops"], 8 * n_elements, "float64"
    )


@given(n=few, n_inputs=st.integers(1, 4))
def test_elementwise_counts_what_the_loop_does(n, n_inputs):
    inputs, _, done = counted_rows(n_inputs, n)
    results = [total(numbers) for numbers in zip(*inputs, strict=True)]
    work = elementwise(n, n_inputs, "float32", flops_per_element=n_inputs - 1)
    assert work == Work(done["flops"], 4 * (n_inputs * n + len(results)), "float32")


@given(vocabulary=st.integers(4, 9), n_tokens=few, width=few, data=st.data())
def test_embedding_is_a_gather_and_its_gradient_a_scatter(vocabulary, n_tokens, width, data):
    tokens = st.lists(
        st.integers(0, vocabulary - 1), min_size=n_tokens, max_size=n_tokens, unique=True
    )
    lookup, gradient, overwrite, done = Loop(), Loop(), Loop(), Counter()
    for position, token in enumerate(data.draw(tokens)):
        for column in range(width):
            lookup.touch(("table", token, column), ("result", position, column))
            gradient.touch(("old", token, column), ("update", position, column))
            gradient.touch(("new", token, column))
            overwrite.touch(("update", position, column), ("new", token, column))
            Counted(0.0, done) + 1.0
    index_bytes = 8 * n_tokens
    sizes = (n_tokens, width, "float16", "int64")
    assert gather(*sizes) == Work(0, 2 * lookup.n_elements + index_bytes, "float16")
    assert scatter(*sizes, add=True) == Work(
        done["flops"], 2 * gradient.n_elements + index_bytes, "float16"
    )
    assert scatter(*sizes, add=False) == Work(0, 2 * overwrite.n_elements + index_bytes, "float16")


# All of them: (function of sizes, sizes that may grow on their own)

ATTENTION = ("batch", "heads", "queries", "keys", "head_dim")
OPERATORS = {
    "matmul": (lambda **s: matmul(dtype="float32", **s), ("m", "n", "k", "batch")),
    "convolution": (
        lambda height, width, **s: convolution(
            image=(height, width), kernel=(2, 1), dtype="float32", padding=1, stride=2, **s
        ),
        ("batch", "in_channels", "out_channels", "height", "width"),
    ),
    "flash attention": (
        lambda **s: attention(dtype="float32", causal=True, materialised=False, **s),
        ATTENTION,
    ),
    "attention": (
        lambda **s: attention(dtype="float32", causal=True, materialised=True, **s),
        ATTENTION,
    ),
    "attention backward": (
        lambda **s: attention(dtype="float32", causal=False, materialised=True, backward=True, **s),
        ATTENTION,
    ),
    "elementwise": (lambda **s: elementwise(dtype="float32", **s), ("n", "n_inputs")),
    "reduction": (lambda n: reduction(n, np.minimum(n, 2), "float32"), ("n",)),
    "softmax": (lambda **s: softmax(dtype="float32", **s), ("rows", "columns")),
    "normalisation": (lambda **s: normalisation(dtype="float32", **s), ("rows", "columns")),
    "gather": (
        lambda **s: gather(dtype="float32", index_dtype="int32", **s),
        ("n_rows", "row_size"),
    ),
    "scatter": (
        lambda **s: scatter(dtype="float32", index_dtype="int32", add=True, **s),
        ("n_rows", "row_size"),
    ),
}
of_each_operator = pytest.mark.parametrize(("operator", "names"), OPERATORS.values(), ids=OPERATORS)


@of_each_operator
def test_arrays_are_priced_element_by_element(operator, names):
    random = np.random.default_rng(0)
    sizes = {name: random.integers(1, 50, (3, 4)) for name in names}
    together = operator(**sizes)
    for at in product_of_ranges(3, 4):
        one = operator(**{name: int(array[at]) for name, array in sizes.items()})
        assert (together.flops[at], together.n_bytes[at]) == (one.flops, one.n_bytes)
        assert type(one.flops) is type(one.n_bytes) is float


@of_each_operator
@given(data=st.data())
def test_larger_operators_are_more_work(operator, names, data):
    sizes = {name: data.draw(st.integers(1, 30), label=name) for name in names}
    grown = data.draw(st.sampled_from(names))
    small, large = operator(**sizes), operator(**{**sizes, grown: sizes[grown] + 1})
    assert large.flops >= small.flops
    assert large.n_bytes >= small.n_bytes


@of_each_operator
@pytest.mark.parametrize("bad", [-1, 2.5, math.nan, math.inf, "4", None], ids=repr)
def test_rejects_sizes_that_count_nothing(operator, names, bad):
    for name in names:
        if name == "n" and len(names) == 1:
            continue  # its other size is made from this one
        with pytest.raises(QuantityError, match="is a finite whole number >= 0; got"):
            operator(**{**dict.fromkeys(names, 2), name: bad})


NOTHING = {
    "matmul": matmul(0, 4, 4, "float32"),
    "no products": matmul(4, 4, 4, "float32", batch=0),
    "convolution": convolution(0, 3, 8, (8, 8), (3, 3), "float32"),
    "no filters": convolution(2, 3, 0, (8, 8), (3, 3), "float32"),
    "attention": attention(1, 2, 0, 8, 4, "float32", causal=True, materialised=False),
    "elementwise": elementwise(0, 2, "float32"),
    "reduction": reduction(0, 0, "float32"),
    "softmax": softmax(0, 8, "float32"),
    "normalisation": normalisation(0, 8, "float32"),
    "gather": gather(0, 8, "float32", "int32"),
    "scatter": scatter(0, 8, "float32", "int32", add=True),
}


@pytest.mark.parametrize("work", NOTHING.values(), ids=NOTHING)
def test_an_operator_without_a_result_is_free(work):
    assert work == Work(0, 0, "float32")
    assert work_time(work, Cluster.preset("two-hosts").device) == 0.0


# Errors of their own


def test_rejects_a_kernel_larger_than_the_padded_image():
    message = (
        r"a kernel fits into its padded image, dilation \* \(kernel - 1\) \+ 1 <= image \+ "
        r"2 \* padding; got kernel=3\.0, dilation=2\.0, image=4\.0, padding=0\.0"
    )
    with pytest.raises(QuantityError, match=message):
        convolution(1, 1, 1, (4,), (3,), "float32", dilation=2)


def test_rejects_groups_that_do_not_divide_the_channels():
    message = "groups divide in_channels and out_channels; got in_channels=4, out_channels=6, gro"
    with pytest.raises(QuantityError, match=message):
        convolution(1, 4, 6, (4,), (3,), "float32", groups=4)


def test_rejects_another_number_of_strides_than_dims():
    message = "stride is one number, or a tuple of one for each of the image's 2 dims; got"
    with pytest.raises(QuantityError, match=message):
        convolution(1, 1, 1, (4, 4), (3, 3), "float32", stride=(1, 1, 1))


@pytest.mark.parametrize("image", [[8, 8], 8, np.array([8, 8])], ids=repr)
def test_rejects_an_image_that_might_be_an_array_of_sizes(image):
    with pytest.raises(QuantityError, match="image is a tuple of one size for each dim; got"):
        convolution(1, 1, 1, image, (3, 3), "float32")


def test_rejects_kv_heads_that_do_not_divide_the_heads():
    with pytest.raises(QuantityError, match="kv_heads divides heads; got heads=8"):
        attention(1, 8, 4, 4, 2, "float32", causal=False, materialised=False, kv_heads=3)


def test_rejects_more_results_than_elements_of_a_reduction():
    with pytest.raises(QuantityError, match="a reduction has n_results <= n; got n=2"):
        reduction(2, 3, "float32")


@pytest.mark.parametrize("dtype", ["float", "32", "float31", "int", "half", "tfloat16", ""])
def test_rejects_names_of_no_dtype(dtype):
    with pytest.raises(UnknownDtypeError, match="a dtype is a name like 'float32', 'bfloat16'"):
        matmul(1, 1, 1, dtype)


@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [
        ("float64", 8),
        ("tfloat32", 4),
        ("bfloat16", 2),
        ("float8_e5m2", 1),
        ("bool", 1),
        ("int4", 0.5),
    ],
)
def test_bytes_follow_the_bits_of_the_dtype(dtype, itemsize):
    assert elementwise(10, 1, dtype).n_bytes == 20 * itemsize
