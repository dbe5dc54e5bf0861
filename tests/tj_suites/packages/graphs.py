"""Networks on graphs: torch_geometric's convolutions, pooling and aggregations."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from tj_suites.packages.network import Network, Package, module

__all__ = ["GEOMETRIC"]

NODES, EDGES, FEATURES = 12, 40, 8
_nn = "torch_geometric.nn"


def graph() -> tuple[torch.Tensor, ...]:
    """Features of nodes: float32 [nodes, features]; edges: int64 [2, edges], the same each time."""
    edges = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(3))
    return torch.randn(NODES, FEATURES), edges


def two_graphs() -> tuple[torch.Tensor, ...]:
    """A graph, and to which of two graphs each of its nodes belongs."""
    return *graph(), torch.tensor([0] * 5 + [1] * 7)


class Two(nn.Module):
    """Two convolutions of a kind, with dropout between them."""

    def __init__(self, kind: str, heads: int = 1, **options: Any) -> None:
        super().__init__()
        convolution = getattr(importlib.import_module(_nn), kind)
        several = {"heads": heads} if heads > 1 else {}
        self.first = convolution(FEATURES, 8, **several, **options)
        self.second = convolution(8 * heads, 3, **options)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
        hidden = nn.functional.dropout(self.first(x, edges).relu(), 0.3, self.training)
        return self.second(hidden, edges)


class Pooled(nn.Module):
    """A convolution by a small network, and one row per graph."""

    def __init__(self) -> None:
        super().__init__()
        geometric = importlib.import_module(_nn)
        layers = nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16)
        self.convolution = geometric.GINConv(nn.Sequential(*layers), train_eps=True)
        self.pools = geometric.global_mean_pool, geometric.global_max_pool

    def forward(
        self, x: torch.Tensor, edges: torch.Tensor, graphs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = self.convolution(x, edges).relu()
        return tuple(pool(x, graphs, 2) for pool in self.pools)


class Chosen(nn.Module):
    """Convolutions with a pooling between them that keeps some nodes, and one row per graph."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        geometric = importlib.import_module(_nn)
        self.first = geometric.GCNConv(FEATURES, 16)
        self.pool = getattr(geometric, kind)(16, ratio=0.7)
        self.second = geometric.GCNConv(16, 3)
        self.rows = geometric.global_max_pool

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graphs: torch.Tensor) -> Any:
        x, edges, _, graphs, _, _ = self.pool(self.first(x, edges).relu(), edges, batch=graphs)
        return self.rows(self.second(x, edges), graphs)


_SIZES = {
    "in_channels": FEATURES,
    "hidden_channels": 16,
    "num_layers": 2,
    "out_channels": 3,
}

GEOMETRIC = Package(
    "torch-geometric",
    "2.8.1",
    (
        Network("GCN", module(_nn, "GCN")(**_SIZES, dropout=0.2), graph),
        Network("GCN with a cache", lambda: Two("GCNConv", cached=True), graph),
        Network("GAT", module(_nn, "GAT")(**_SIZES, heads=2, dropout=0.2), graph),
        Network("GATv2", lambda: Two("GATv2Conv", heads=2), graph),
        Network("GraphSAGE", module(_nn, "GraphSAGE")(**_SIZES), graph),
        Network("GIN", module(_nn, "GIN")(**_SIZES, norm="batch_norm"), graph),
        Network("GIN, pooled", Pooled, two_graphs),
        Network("GCN, the best nodes", lambda: Chosen("TopKPooling"), two_graphs),
        Network("GCN, the best nodes by a network", lambda: Chosen("SAGPooling"), two_graphs),
        Network("transformer", lambda: Two("TransformerConv", heads=2), graph),
        Network(
            "GraphSAGE, jumping knowledge",
            module(_nn, "GraphSAGE")(**_SIZES, jk="lstm"),
            graph,
        ),
    ),
)
