"""Trains a small network with JAX, and prints its result bit by bit."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return (x * x).mean()


@jax.jit
def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """Make one step of gradient descent."""
    gradients = jax.grad(loss)(weights, x)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)]


keys = jax.random.split(jax.random.PRNGKey(0), 9)
weights = [jax.random.normal(key, (2048, 2048)) * 0.02 for key in keys[:8]]
for number in range(1000):
    if number == 10:
        jax.block_until_ready(weights)
        start = time.perf_counter()
    x = jax.random.normal(jax.random.fold_in(keys[8], number), (512 + 64 * (number % 3), 2048))
    weights = step(weights, x)
jax.block_until_ready(weights)
print(f"loop {time.perf_counter() - start:.6f}", file=sys.stderr)
print([np.asarray(weight).sum(dtype=np.float64).item().hex() for weight in weights])
