"""Neural networks: modules, layers, losses and optimisers on tensors."""

from ruda.nn.functional import (
    binary_cross_entropy,
    cross_entropy,
    gelu,
    huber_loss,
    l1_loss,
    leaky_relu,
    log_softmax,
    logsumexp,
    mse_loss,
    relu,
    silu,
    softmax,
    softplus,
)
from ruda.nn.layers import Dropout, LayerNorm, Linear, RMSNorm, Sequential, flatten
from ruda.nn.module import LoadReport, Module, parameter
from ruda.nn.optim import SGD, Adam, AdamW, Optimizer

__all__ = [
    "SGD", "Adam", "AdamW", "Dropout", "LayerNorm", "Linear", "LoadReport", "Module", "Optimizer",
    "RMSNorm", "Sequential", "binary_cross_entropy", "cross_entropy", "flatten", "gelu",
    "huber_loss", "l1_loss", "leaky_relu", "log_softmax", "logsumexp", "mse_loss", "parameter",
    "relu", "silu", "softmax", "softplus",
]  # fmt: skip
