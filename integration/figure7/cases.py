"""The settings of figure 7: the FLOP and messages of table 3's models, computed from their shapes.

There are two nodes (p3.8xlarge: four V100 each, 10 Gbit/s between them), with one pipeline stage on
each. With the paper's broadcast, every element that the next stage needs crosses the network once,
whatever the parallelism inside the nodes is; so the two cases of GPT have the same costs here.

Details that the paper leaves out are taken from Alpa's repository, which has its experiments
(github.com/alpa-projects/alpa, benchmark/alpa): GPT-3 2.6B as in suite_manual_gpt.py, with 64
microbatches; the U-Transformer "2B" as in suite_unet.py and alpa/model/unet_2d.py, with 32
microbatches, and with the layers 0 to 7 and 8 to 12 of 13 as its stages. Both rematerialize: a
backward computes the forward again, the gradients of inputs and the gradients of weights, and each
of these takes as long as a forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesched import Costs

NETWORK_BYTES_PER_S = 10e9 / 8
GPUS_PER_STAGE = 4
# From the data sheet of the NVIDIA V100 (SXM2): tensor cores, and single precision.
PEAK_FP16, PEAK_FP32 = 125e12, 15.7e12


@dataclass(frozen=True, slots=True)
class Case:
    """One model on two stages."""

    name: str
    n_microbatches: int
    forward_flops: tuple[float, ...]
    """FLOP of each stage for one microbatch, on all GPUs of the stage."""
    message_bytes: float
    """Bytes from stage 0 to stage 1; the gradients have as many."""
    peak_flops_per_s: float
    """The peak rate of one GPU."""

    @property
    def transfer_s(self) -> float:
        """The time of one message."""
        return self.message_bytes / NETWORK_BYTES_PER_S

    def forward_s(self, efficiency: float) -> list[float]:
        """The forward time of each stage, if GPUs compute at this part of their peak."""
        rate = efficiency * self.peak_flops_per_s * GPUS_PER_STAGE
        return [flops / rate for flops in self.forward_flops]

    def costs(self, efficiency: float) -> Costs:
        """The costs of a step, if GPUs compute at this part of their peak."""
        forward_s = self.forward_s(efficiency)
        return Costs(
            forward_s,
            input_gradient_s=[2 * seconds for seconds in forward_s],  # with rematerialization
            weight_gradient_s=forward_s,
            message_bytes=self.message_bytes,
            bytes_per_s=NETWORK_BYTES_PER_S,
        )


def gpt() -> Case:
    """GPT-3 2.6B: sequences of 1,024, hidden size 2,560, 32 layers, 51,200 words, FP16.

    The forward of a layer takes 24 B S H^2 (1 + S / 6H) FLOP, and the logits 2 B S H V (Narayanan
    et al., SC 2021, appendix).
    """
    sequence, hidden, n_layers, words, batch, n_microbatches = 1024, 2560, 32, 51200, 1024, 64
    tokens = batch // n_microbatches * sequence
    half = n_layers // 2 * 24 * tokens * hidden**2 * (1 + sequence / (6 * hidden))
    logits = 2 * tokens * hidden * words
    # FP16: two bytes an element.
    return Case("GPT", n_microbatches, (half, half + logits), 2 * tokens * hidden, PEAK_FP16)


def u_transformer() -> Case:
    """The U-Transformer: images of 32 x 32, 672 channels in the first layer, FP32; see
    `unet_layers`.
    """
    batch, n_microbatches, first_of_stage_1 = 2048, 32, 8
    samples = batch // n_microbatches
    layers = unet_layers()
    halves = layers[:first_of_stage_1], layers[first_of_stage_1:]
    flops = tuple(2.0 * samples * sum(layer.products for layer in half) for half in halves)
    # The result of layer 7, and the values that layers 8, 9, 10 and 11 take from the encoder (from
    # layers 3, 2, 1 and 0).
    channels = 672
    elements = (4**2 + 8**2) * 4 * channels + 16**2 * 2 * channels + 2 * 32**2 * channels
    return Case("U-Transformer", n_microbatches, flops, 4 * samples * elements, PEAK_FP32)


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of the U-Transformer between two of Alpa's layer boundaries."""

    parameters: int
    products: int
    """The multiplications in the forward of one sample."""

    def __add__(self, other: Layer) -> Layer:
        return Layer(self.parameters + other.parameters, self.products + other.products)


def unet_layers() -> list[Layer]:
    """The 13 layers: the encoder's 0 to 4, the middle's 5 and 6, the decoder's 7 to 12."""
    c = 672  # channels: 1, 2, 4 and 4 times as many, on images of 32, 16, 8 and 4 pixels
    return [
        _convolution(3, c, 32),
        _resnet(c, c, 32) + _attention(c, 32) + _convolution(c, c, 16),
        _resnet(c, 2 * c, 16) + _attention(2 * c, 16) + _convolution(2 * c, 2 * c, 8),
        _resnet(2 * c, 4 * c, 8) + _attention(4 * c, 8) + _convolution(4 * c, 4 * c, 4),
        _resnet(4 * c, 4 * c, 4),
        _resnet(4 * c, 4 * c, 4) + _attention(4 * c, 4),
        _resnet(4 * c, 4 * c, 4),
        _resnet(8 * c, 4 * c, 4) + _attention(4 * c, 4),
        _convolution(4 * c, 4 * c, 8) + _resnet(8 * c, 4 * c, 8) + _attention(4 * c, 8),
        _convolution(4 * c, 4 * c, 16) + _resnet(6 * c, 2 * c, 16) + _attention(2 * c, 16),
        _convolution(2 * c, 2 * c, 32) + _resnet(3 * c, c, 32),
        _resnet(2 * c, c, 32),
        _convolution(c, 4, 32),
    ]


def _convolution(n_in: int, n_out: int, side: int, kernel: int = 3) -> Layer:
    parameters = kernel**2 * n_in * n_out
    return Layer(parameters, parameters * side**2)


def _resnet(n_in: int, n_out: int, side: int) -> Layer:
    """Two convolutions, a 1 x 1 convolution if the channels change, and the embedding of the
    time."""
    layer = _convolution(n_in, n_out, side) + _convolution(n_out, n_out, side)
    if n_in != n_out:
        layer += _convolution(n_in, n_out, side, kernel=1)
    embedding = 4 * 672 * n_out
    return layer + Layer(embedding, embedding)


def _attention(channels: int, side: int) -> Layer:
    """Projections in and out, self-attention, attention to a context of 4 x 4, and a gated MLP."""
    tokens, context = side**2, 4**2
    of_tokens = 2 + 4 + 2 + 12  # times channels squared, for each token
    of_context = 2 * (4 * 672) * channels
    parameters = of_tokens * channels**2 + of_context
    products = tokens * of_tokens * channels**2 + context * of_context
    return Layer(parameters, products + 2 * tokens * (tokens + context) * channels)
