"""Distributions: captured whole, their arguments are checked as in eager, also afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tj_core as tj
import torch
from torch import Tensor
from torch import distributions as D
from torch.distributions import kl

pytestmark = pytest.mark.sampled(2)

Program = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(D.Distribution, "_validate_args", True)


DENSITIES: dict[str, Program] = {
    "Normal": lambda x: D.Normal(x, x).log_prob(x),
    "Normal of numbers": lambda x: D.Normal(0.0, 1.0).log_prob(x),
    "Normal, wider": lambda x: D.Normal(x, x).expand((3, 4)).log_prob(x),
    "Normal, below": lambda x: D.Normal(x, x).cdf(x + 1),
    "Normal, entropy": lambda x: D.Normal(x, x).entropy(),
    "LogNormal": lambda x: D.LogNormal(x, x).log_prob(x),
    "HalfNormal": lambda x: D.HalfNormal(x).log_prob(x),
    "StudentT": lambda x: D.StudentT(x, x, x).log_prob(x),
    "Laplace": lambda x: D.Laplace(x, x).log_prob(x),
    "Cauchy": lambda x: D.Cauchy(x, x).log_prob(x),
    "Gumbel": lambda x: D.Gumbel(x, x).log_prob(x),
    "Weibull": lambda x: D.Weibull(x, x).log_prob(x),
    "Gamma": lambda x: D.Gamma(x, x).log_prob(x),
    "Beta": lambda x: D.Beta(x, x).log_prob(x / 3),
    "Dirichlet": lambda x: D.Dirichlet(x).log_prob(x / x.sum()),
    "Uniform": lambda x: D.Uniform(x - 2, x + 1).log_prob(x),
    "Exponential": lambda x: D.Exponential(x).log_prob(x),
    "Poisson": lambda x: D.Poisson(x).log_prob(torch.ones(4)),
    "Bernoulli": lambda x: D.Bernoulli(x / 3).log_prob((x > 1.5).float()),
    "Bernoulli of logits": lambda x: D.Bernoulli(logits=x).log_prob((x > 1.5).float()),
    "ContinuousBernoulli": lambda x: D.ContinuousBernoulli(logits=x).log_prob(x / 3),
    "Geometric": lambda x: D.Geometric(logits=x).log_prob(torch.ones(4)),
    "Binomial": lambda x: D.Binomial(4, logits=x).log_prob(torch.ones(4)),
    "NegativeBinomial": lambda x: D.NegativeBinomial(x, logits=x).log_prob(torch.ones(4)),
    "Multinomial": lambda x: D.Multinomial(4, logits=x).log_prob(torch.ones(4)),
    "Categorical": lambda x: D.Categorical(logits=x).log_prob(torch.tensor(1)),
    "Categorical, entropy": lambda x: D.Categorical(logits=x).entropy(),
    "OneHotCategorical": lambda x: D.OneHotCategorical(logits=x).log_prob(torch.eye(4)[1]),
    "Independent": lambda x: D.Independent(D.Normal(x, x), 1).log_prob(x),
    "of a mixture": lambda x: D.MixtureSameFamily(D.Categorical(logits=x), D.Normal(x, x)).log_prob(
        x
    ),
    "transformed": lambda x: D.TransformedDistribution(
        D.Normal(x, x), [D.AffineTransform(0.0, x), D.TanhTransform()]
    ).log_prob(x / 5),
    "MultivariateNormal": lambda x: D.MultivariateNormal(x, scale_tril=torch.diag(x)).log_prob(x),
    "Kumaraswamy": lambda x: D.Kumaraswamy(x, x).log_prob(x / 3),
    "VonMises": lambda x: D.VonMises(x, x).log_prob(x),
    "divergence": lambda x: D.kl_divergence(D.Normal(x, x), D.Normal(x * 2, x)),
    "divergence of Bernoullis": lambda x: D.kl_divergence(D.Bernoulli(x / 3), D.Bernoulli(x / 4)),
}
"""Programs by density."""

# All but these refuse arguments that are not positive.
NEVER_REFUSED = {
    "Normal of numbers", "Bernoulli of logits", "ContinuousBernoulli", "Geometric", "Binomial",
    "Multinomial", "Categorical", "Categorical, entropy", "OneHotCategorical", "Uniform",
}  # fmt: skip


@pytest.mark.parametrize("name", DENSITIES)
def test_densities_gradients_and_errors(name: str) -> None:
    f, x = DENSITIES[name], torch.rand(4) + 1
    jitted = tj.jit(f)
    kl._KL_MEMOIZE.clear()
    for _ in range(2):
        results = []
        for function in (f, jitted):
            leaf = x.clone().requires_grad_()
            found = function(leaf)
            found.sum().backward() if found.requires_grad else None
            results.append((found, leaf.grad))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    if name not in NEVER_REFUSED:
        said = []
        for function in (f, jitted):
            with pytest.raises(ValueError, match=r"Expected (parameter|value)") as caught:
                function(-x)
            said.append(str(caught.value))
        assert said[0] == said[1]
    torch.testing.assert_close(jitted(x), f(x), rtol=0, atol=0)
    assert tj.stats(jitted).fallbacks == ()


DRAWS: dict[str, Program] = {
    "Normal": lambda x: D.Normal(x, x).rsample(),
    "Normal, several": lambda x: D.Normal(x, x).sample(torch.Size((3,))),
    "Categorical": lambda x: D.Categorical(probs=x.softmax(0)).sample(),
    "Bernoulli": lambda x: D.Bernoulli(x / 3).sample(),
    "Uniform": lambda x: D.Uniform(x - 2, x + 1).rsample(),
    "Exponential": lambda x: D.Exponential(x).rsample(),
    "Gamma": lambda x: D.Gamma(x, x).rsample(),
    "RelaxedBernoulli": lambda x: D.RelaxedBernoulli(torch.tensor(0.5), logits=x).rsample(),
    "Independent": lambda x: D.Independent(D.Laplace(x, x), 1).rsample(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_samples(name: str) -> None:
    f, x = DRAWS[name], torch.rand(4) + 1
    jitted = tj.jit(f)
    results = []
    for function in (f, jitted):
        torch.manual_seed(3)
        results.append([function(x), function(x + 1), torch.rand(())])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert tj.stats(jitted).fallbacks == ()


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(kl._KL_REGISTRY), dict(kl._KL_MEMOIZE)
    yield
    for known, old in zip((kl._KL_REGISTRY, kl._KL_MEMOIZE), before, strict=True):
        known.clear()
        known.update(old)


@pytest.mark.usefixtures("registered")
def test_a_divergence_that_is_registered_between_calls() -> None:
    class Own(D.Normal):
        pass

    def f(x: Tensor) -> Tensor:
        return D.kl_divergence(Own(x, x), D.Normal(x * 2, x))

    jitted, x = tj.jit(f), torch.rand(4) + 1
    for call in range(5):
        kl._KL_MEMOIZE.clear() if call in (1, 2) else None
        if call == 2:
            D.register_kl(Own, D.Normal)(lambda p, q: p.loc * 100)
        found = jitted(x)
        kl._KL_MEMOIZE.clear() if call == 3 else None
        assert torch.equal(found, f(x)), call
    with pytest.raises(NotImplementedError, match="No KL"):
        tj.jit(lambda x: D.kl_divergence(D.Categorical(x), D.Normal(x, x)))(x)


def symmetric(x: Tensor) -> Tensor:
    return torch.outer(x, x) + torch.eye(4)


MATRICES: dict[str, Program] = {
    "MultivariateNormal": lambda x: D.MultivariateNormal(x, symmetric(x)).log_prob(x),
    "of a precision": lambda x: D.MultivariateNormal(x, precision_matrix=symmetric(x)).log_prob(x),
    "a check": lambda x: D.constraints.positive_semidefinite.check(symmetric(x)) * 1.0,
    "another check": lambda x: (
        D.constraints.symmetric.check(torch.stack([symmetric(x)] * 2)) * x[:2]
    ),
}


@pytest.mark.parametrize("name", MATRICES)
def test_symmetric_matrices(name: str) -> None:
    f, x = MATRICES[name], torch.rand(4) + 1
    jitted = tj.jit(f)
    for argument in (x, x * 2, x):
        torch.testing.assert_close(jitted(argument), f(argument))
    assert tj.stats(jitted).fallbacks == ()


def test_a_matrix_that_is_not_symmetric() -> None:
    def f(x: Tensor, matrix: Tensor) -> Tensor:
        return D.MultivariateNormal(x, matrix).log_prob(x)

    jitted, x = tj.jit(f), torch.rand(4)
    for matrix in (torch.eye(4), torch.ones(4, 4).triu(), -torch.eye(4), torch.eye(4) * 2):
        found = []
        for function in (f, jitted):
            try:
                found.append(str(function(x, matrix)))
            except ValueError as error:
                found.append(str(error))
        assert found[0] == found[1]
    assert tj.stats(jitted).fallbacks == ()
    assert tj.stats(jitted).misses <= 2  # another layout


@pytest.mark.parametrize("checked", [True, False])
def test_the_setting_of_the_process_is_kept(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(D.Distribution, "_validate_args", checked)

    def broken(x: torch.Tensor) -> torch.Tensor:
        print("a graph break")
        return x + 1

    with pytest.warns(tj.TjWarning, match="graph break"):
        tj.jit(broken)(torch.ones(2))
    assert D.Distribution._validate_args is checked


def test_without_checks() -> None:
    def unchecked(x: Tensor) -> Tensor:
        return D.Normal(x, x, validate_args=False).log_prob(x) * 2

    jitted, x = tj.jit(unchecked), torch.ones(3)
    torch.testing.assert_close(jitted(x), unchecked(x))
    torch.testing.assert_close(jitted(-x), unchecked(-x), equal_nan=True)
    assert tj.stats(jitted).misses == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_shapes_that_are_broadcast(dynamic: bool | None) -> None:
    """Calls after `torch.broadcast_shapes` are known, as distributions need it."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(x.shape, y.shape, (1,), 1)
        return (x.expand(shape) * y).reshape(-1, *shape[1:]) + len(shape)

    jitted = tj.jit(f, dynamic=dynamic)
    for rows in (3, 4, 5):
        x, y = torch.randn(rows, 1), torch.randn(rows, 6)
        torch.testing.assert_close(jitted(x, y), f(x, y))
    assert not any(call.effects.ordered for call in tj.last_traces(jitted)[0].calls)
    with pytest.raises(RuntimeError, match="broadcast"):
        jitted(torch.ones(3, 2), torch.ones(4, 6))
    assert tj.stats(jitted).fallbacks == ()


def test_functions_of_the_users_in_place_of_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only functions of PyTorch's are captured as other programs."""
    cls = type(D.constraints.symmetric)
    monkeypatch.setattr(cls, "check", lambda self, value: value.sum() > -5)
    monkeypatch.setattr(torch, "broadcast_shapes", lambda *shapes: torch.Size([len(shapes)]))

    def f(x: Tensor) -> Tensor:
        shape = torch.broadcast_shapes((1,), (2,), (3,))
        return D.constraints.symmetric.check(x) * x.sum().expand(shape)

    x = torch.ones(2, 2).triu()
    torch.testing.assert_close(tj.jit(f)(x), f(x))
