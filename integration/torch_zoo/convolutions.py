"""Convolutional networks of papers in plain torch, at small sizes."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Vgg(nn.Module):
    """VGG (Simonyan and Zisserman, ICLR 2015): convolutions, max pools, dense layers."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 8, 8, 16, 16)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes))
        self.dense = nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = pixel_values
        for index, convolution in enumerate(self.convolutions):
            x = functional.relu(convolution(x))
            if index % 2:
                x = functional.max_pool2d(x, 2)
        return {"loss": functional.cross_entropy(self.dense(x.flatten(1)), labels)}


class Block(nn.Module):
    """A block of a Wide-ResNet: twice norm, activation and convolution, plus a shortcut."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(n_in), nn.BatchNorm2d(n_out)
        self.down = nn.Conv2d(n_in, n_out, 3, 2, 1, bias=False)
        self.same = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(n_in, n_out, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        y: Tensor = self.same(functional.relu(self.second(self.down(x)))) + self.short(x)
        return y


class WideResNet(nn.Module):
    """Wide-ResNet (Zagoruyko and Komodakis, BMVC 2016); its batch norm needs the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(Block(8, 16), Block(16, 32))
        self.norm = nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 4)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = functional.relu(self.norm(self.blocks(self.stem(pixel_values))))
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return {"loss": functional.cross_entropy(self.head(x), labels)}


class Attention(nn.Module):
    """Attention between the positions of an image, as in a U-Net Transformer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.inward = nn.Conv2d(channels, 3 * channels, 1)
        self.outward = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        q, k, v = self.inward(self.norm(x)).view(n, 3, 4, c // 4, h * w).transpose(3, 4).unbind(1)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        y: Tensor = x + self.outward(mixed.transpose(2, 3).reshape(n, c, h, w))
        return y


class UNet(nn.Module):
    """U-Net with attention (Ho et al., NeurIPS 2020, Appendix B); it predicts the added noise."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.time = nn.Embedding(4, 16)
        self.down = nn.Conv2d(8, 16, 3, 2, 1)
        self.norm = nn.GroupNorm(4, 16)
        self.attention = Attention(16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.head = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        noise = torch.randn_like(pixel_values)
        first = functional.silu(self.stem(pixel_values + noise))
        x = self.down(first) + self.time(labels)[:, :, None, None]
        x = self.up(self.attention(functional.silu(self.norm(x))))
        return {"loss": functional.mse_loss(self.head(torch.cat([x, first], 1)), noise)}
