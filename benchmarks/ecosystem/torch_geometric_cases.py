# /// script
# dependencies = ["torch_geometric==2.8.1", "numpy", "scipy", "networkx", "scikit-learn"]
# ///
"""PyTorch Geometric without compiled extensions: layers, pooling, loaders, transforms, sparse matrices."""

import torch
import torch.nn.functional as F
from _cases import case, main
from torch_geometric import nn, transforms, utils
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader


def graph(nodes=30, edges=120, features=8, classes=3):
    ends = utils.coalesce(torch.randint(nodes, (2, edges)))
    ends = utils.to_undirected(ends)
    return Data(x=torch.randn(nodes, features), edge_index=ends, y=torch.randint(classes, (nodes,)))


def trained(model, forward, y, steps=6):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(forward(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def of_nodes(kind, **more):
    data = graph()
    model = kind(8, 16, num_layers=2, out_channels=3, **more)
    return trained(model, lambda: model(data.x, data.edge_index), data.y)


@case
def gcn():
    return of_nodes(nn.GCN)


@case
def gat():
    return of_nodes(nn.GAT, heads=2), of_nodes(nn.GAT, v2=True)


@case
def graph_sage():
    return of_nodes(nn.GraphSAGE), of_nodes(nn.GraphSAGE, aggr="max"), of_nodes(nn.GraphSAGE, jk="cat")


@case
def other_models():
    return (
        of_nodes(nn.GIN),
        of_nodes(nn.EdgeCNN),
        of_nodes(
            nn.PNA, aggregators=["mean", "std"], scalers=["identity"], deg=torch.ones(9, dtype=torch.long)
        ),
    )


@case
def layers():
    data, found = graph(), {}
    for layer in (
        nn.ChebConv(8, 4, 3),
        nn.GraphConv(8, 4),
        nn.TAGConv(8, 4),
        nn.ARMAConv(8, 4),
        nn.SGConv(8, 4, 2),
        nn.APPNP(3, 0.1),
        nn.TransformerConv(8, 4, heads=2),
        nn.GatedGraphConv(8, 2),
        nn.LEConv(8, 4),
        nn.ClusterGCNConv(8, 4),
        nn.FeaStConv(8, 4, 2),
        nn.ResGatedGraphConv(8, 4),
        nn.GENConv(8, 4),
        nn.MFConv(8, 4),
    ):
        out = layer(data.x, data.edge_index)
        of = [*layer.parameters()]
        grads = torch.autograd.grad(out.square().sum(), of, allow_unused=True) if of else []
        found[type(layer).__name__] = out, [g for g in grads if g is not None]
    return found


@case
def sparse_adjacency():
    data = graph()
    found = []
    for kind in (torch.sparse_coo, torch.sparse_csr):
        adjacency = utils.to_torch_sparse_tensor(data.edge_index, size=(30, 30), layout=kind)
        torch.manual_seed(1)
        for layer in (nn.GCNConv(8, 4), nn.SAGEConv(8, 4), nn.GINConv(torch.nn.Linear(8, 4))):
            out = layer(data.x, adjacency.t() if kind is torch.sparse_coo else adjacency)
            grads = torch.autograd.grad(out.square().sum(), [*layer.parameters()])
            found.append((out, grads))
        found.append(utils.to_edge_index(adjacency))
    return found


@case
def batches_and_pooling():
    graphs = [graph(5 + i, 20) for i in range(12)]
    for i, g in enumerate(graphs):
        g.y = torch.tensor([i % 2])
    layer = nn.GCNConv(8, 8)
    found = []
    for batch in DataLoader(graphs, 4, shuffle=True):
        x = layer(batch.x, batch.edge_index).relu()
        found.append(
            [
                batch.y,
                batch.ptr,
                nn.global_mean_pool(x, batch.batch),
                nn.global_max_pool(x, batch.batch),
                nn.global_add_pool(x, batch.batch),
                utils.to_dense_batch(x, batch.batch)[0].shape,
                nn.SAGPooling(8, 0.5)(x, batch.edge_index, batch=batch.batch)[0].shape,
                nn.aggr.SortAggregation(3)(x, batch.batch),
                nn.aggr.SoftmaxAggregation()(x, batch.batch),
            ]
        )
    whole = Batch.from_data_list(graphs)
    return found, whole.num_graphs, whole.get_example(3).x


@case
def transformed():
    data = graph()
    steps = [
        transforms.AddSelfLoops(),
        transforms.NormalizeFeatures(),
        transforms.GCNNorm(),
        transforms.ToSparseTensor(layout=torch.sparse_csr),
    ]
    some = transforms.Compose(steps[:3])(data.clone())
    split = transforms.RandomNodeSplit(num_val=5, num_test=5)(data.clone())
    links = transforms.RandomLinkSplit(is_undirected=True)(data.clone())
    positions = transforms.AddLaplacianEigenvectorPE(3, attr_name=None)
    walk = transforms.AddRandomWalkPE(4)(data.clone()).random_walk_pe
    adjacency = steps[3](data.clone()).adj_t
    return (
        some.x,
        some.edge_weight,
        split.train_mask,
        [d.edge_label_index for d in links],
        walk,
        adjacency.to_dense(),
        str(positions),
    )


@case
def utilities():
    data = graph()
    ends = data.edge_index
    return (
        utils.degree(ends[0], 30),
        utils.softmax(torch.randn(ends.size(1)), ends[1]),
        utils.to_dense_adj(ends),
        utils.get_laplacian(ends, normalization="sym"),
        utils.k_hop_subgraph([0, 1], 2, ends)[:2],
        utils.negative_sampling(ends, num_neg_samples=9).shape,
        utils.subgraph(torch.arange(10), ends)[0],
        utils.scatter(data.x, data.y, 0, reduce="mean"),
        utils.dropout_edge(ends, 0.0)[0],
        utils.to_scipy_sparse_matrix(ends).sum(),
        utils.remove_self_loops(ends)[0],
        utils.homophily(ends, data.y),
    )


@case
def heterogeneous():
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(20, 8), torch.randn(10, 6)
    data["author", "writes", "paper"].edge_index = torch.stack(
        [torch.randint(10, (50,)), torch.randint(20, (50,))]
    )
    data["paper", "cites", "paper"].edge_index = torch.randint(20, (2, 40))
    data = transforms.ToUndirected()(data)
    model = nn.to_hetero(nn.GraphSAGE((-1, -1), 8, 2, 3), data.metadata())
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    y = torch.randint(3, (20,))
    return trained(model, lambda: model(data.x_dict, data.edge_index_dict)["paper"], y)


@case
def message_passing():
    class Own(nn.MessagePassing):
        def __init__(self):
            super().__init__(aggr="add")
            self.lin = torch.nn.Linear(16, 4)

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_i, x_j):
            return self.lin(torch.cat([x_i, x_j - x_i], 1))

    data, layer = graph(), Own()
    out = layer(data.x, data.edge_index)
    out.sum().backward()
    return out, layer.lin.weight.grad


@case
def auto_encoder_and_node2vec_loss():
    data = graph()
    model = nn.GAE(nn.GCNConv(8, 4))
    z = model.encode(data.x, data.edge_index)
    return model.recon_loss(z, data.edge_index, data.edge_index[:, :9]), model.test(
        z, data.edge_index, data.edge_index.flip(0)[:, :5] * 0
    )


if __name__ == "__main__":
    main()
