"""Networks on graphs from plain tensors: GCN by index_add, GAT by scatter_add and scatter softmax,
GIN with scatter_reduce, and PointNet with its transform regularizer."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def scatter_add(src, index, dim_size):
    out = torch.zeros((dim_size,) + src.shape[1:], dtype=src.dtype, device=src.device)
    index = index.view(-1, *([1] * (src.dim() - 1))).expand_as(src)
    return out.scatter_add_(0, index, src)


def softmax(src, index, num_nodes):
    shape = (num_nodes,) + src.shape[1:]
    expanded = index.unsqueeze(-1).expand_as(src)
    src_max = src.new_full(shape, float("-inf")).scatter_reduce_(
        0, expanded, src.detach(), reduce="amax", include_self=False
    )
    out = (src - src_max.index_select(0, index)).exp()
    out_sum = scatter_add(out, index, num_nodes) + 1e-16
    return out / out_sum[index]


class GCNConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self):
        self.lin.reset_parameters()
        self.bias.data.zero_()

    def forward(self, x, edge_index):
        loops = torch.arange(x.size(0)).unsqueeze(0).repeat(2, 1)
        edge_index = torch.cat([edge_index, loops], dim=1)
        row, col = edge_index
        deg = torch.zeros(x.size(0), dtype=x.dtype).index_add_(
            0, col, torch.ones(col.size(0), dtype=x.dtype)
        )
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        x = self.lin(x)
        messages = norm.view(-1, 1) * x[row]
        out = torch.zeros_like(x).index_add(0, col, messages)
        return out + self.bias


class GATConv(nn.Module):
    def __init__(self, in_channels, out_channels, heads=2, negative_slope=0.2):
        super().__init__()
        self.heads, self.out_channels, self.negative_slope = heads, out_channels, negative_slope
        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.Tensor(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.Tensor(1, heads, out_channels))
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x, edge_index):
        H, C = self.heads, self.out_channels
        x = self.lin(x).view(-1, H, C)
        alpha_src = (x * self.att_src).sum(dim=-1)
        alpha_dst = (x * self.att_dst).sum(-1)
        src, dst = edge_index[0], edge_index[1]
        alpha = F.leaky_relu(alpha_src[src] + alpha_dst[dst], self.negative_slope)
        alpha = softmax(alpha, dst, x.size(0))
        out = scatter_add(x[src] * alpha.unsqueeze(-1), dst, x.size(0))
        return out.reshape(-1, H * C)


class GINConv(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.nn = mlp
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x, edge_index):
        row, col = edge_index.unbind(0)
        index = col[:, None].expand(-1, x.size(1))
        out = torch.zeros_like(x).scatter_reduce(0, index, x[row], "mean", include_self=False)
        return self.nn((1 + self.eps) * x + out)


class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.conv1 = GCNConv(features, 6)
        self.conv2 = GATConv(6, 4)
        self.conv3 = GINConv(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, classes)))

    def forward(self, x, edge_index):
        x = F.relu(self.conv1(x, edge_index))
        x = F.elu(self.conv2(x, edge_index))
        return F.log_softmax(self.conv3(x, edge_index), dim=1)


class STNkd(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(k, 6, 1), nn.Conv1d(6, 8, 1)
        self.fc1, self.fc2 = nn.Linear(8, 6), nn.Linear(6, k * k)
        self.bn1, self.bn2 = nn.BatchNorm1d(6), nn.BatchNorm1d(8)
        self.k = k

    def forward(self, x):
        batchsize = x.size()[0]
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 8)
        x = self.fc2(F.relu(self.fc1(x)))
        iden = torch.from_numpy(np.eye(self.k).flatten().astype(np.float32))
        iden = iden.view(1, self.k * self.k).repeat(batchsize, 1).to(x.dtype)
        return (x + iden).view(-1, self.k, self.k)


class PointNetCls(nn.Module):
    def __init__(self, k=4):
        super().__init__()
        self.stn = STNkd(3)
        self.conv1 = torch.nn.Conv1d(3, 6, 1)
        self.fc = nn.Linear(6, k)

    def forward(self, x):
        trans = self.stn(x)
        x = torch.bmm(x.transpose(2, 1), trans).transpose(2, 1)
        x = self.conv1(x).max(dim=2).values
        return F.log_softmax(self.fc(x), dim=1), trans


def feature_transform_regularizer(trans):
    d = trans.size()[1]
    eye = torch.eye(d)[None, :, :]
    product = torch.bmm(trans, trans.transpose(2, 1))
    return torch.mean(torch.norm(product - eye, dim=(1, 2)))


def build():
    return {"graph": Net(5, 3), "points": PointNetCls()}


def run(models, compile):
    rng = np.random.default_rng(12)
    dtype = torch.get_default_dtype()
    model = models["graph"]
    x = torch.tensor(rng.standard_normal((7, 5)), dtype=dtype)
    edge_index = torch.tensor(
        [[0, 1, 1, 2, 3, 4, 5, 6, 0, 3], [1, 0, 2, 1, 4, 3, 6, 5, 6, 0]], dtype=torch.long
    )
    y = torch.tensor(rng.integers(0, 3, 7))
    train_mask = torch.zeros(7, dtype=torch.bool)
    train_mask[:4] = True
    optimizer = torch.optim.Adam(
        [
            dict(params=model.conv1.parameters(), weight_decay=5e-4),
            dict(params=model.conv2.parameters(), weight_decay=0),
            {"params": model.conv3.parameters()},
        ],
        lr=0.01,
    )

    @compile
    def train():
        model.train()
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = F.nll_loss(out[:4], y[:4])
        loss.backward()
        optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def test():
        model.eval()
        logits, accs = model(x, edge_index), []
        for mask in (train_mask, ~train_mask):
            pred = logits[mask].max(1)[1]
            accs.append(pred.eq(y[mask]).sum().item() / mask.sum().item())
        return accs

    losses = [float(train()) for _ in range(3)]
    accuracies = test()

    points = models["points"]
    sgd = torch.optim.SGD(points.parameters(), lr=0.01, momentum=0.9)

    @compile
    def points_step(cloud, target):
        sgd.zero_grad()
        pred, trans = points(cloud)
        loss = F.nll_loss(pred, target)
        loss += feature_transform_regularizer(trans) * 0.001
        loss.backward()
        sgd.step()
        return loss.detach(), pred.detach().argmax(1)

    found = []
    for _ in range(3):
        cloud = torch.tensor(rng.standard_normal((3, 10, 3)), dtype=dtype).transpose(2, 1)
        loss, choice = points_step(cloud, torch.tensor([0, 3, 1]))
        found.append(loss.item())
    return {"graph": losses, "accuracies": accuracies, "points": found, "choice": choice}
