"""The classic digit script: argparse, train and test functions, StepLR, files saved and loaded;
then the quickstart's loops over the same kind of data."""

from __future__ import print_function

import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

RNG = np.random.default_rng(0)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 3, 3, 1)
        self.conv2 = nn.Conv2d(3, 4, kernel_size=3)
        self.dropout1 = nn.Dropout(0.0)
        self.fc1 = nn.Linear(36, 8)
        self.fc2 = nn.Linear(8, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = self.dropout1(x)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(nn.Linear(100, 12), nn.ReLU(), nn.Linear(12, 10))

    def forward(self, x):
        return self.linear_relu_stack(self.flatten(x))


def train(args, model, device, train_loader, optimizer, epoch, log):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            log.append(
                "Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.3f}".format(
                    epoch, batch_idx * len(data), len(train_loader.dataset),
                    100. * batch_idx / len(train_loader), loss.item())
            )  # fmt: skip
            if args.dry_run:
                break


def test(model, device, test_loader, log):
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    test_loss /= len(test_loader.dataset)
    log.append(
        f"Average loss: {test_loss:.3f}, Accuracy: {correct}/{len(test_loader.dataset)} "
        f"({100.0 * correct / len(test_loader.dataset):.0f}%)"
    )
    return test_loss


def data(n, seed):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.standard_normal((n, 1, 10, 10)), dtype=torch.get_default_dtype())
    return TensorDataset(x, torch.from_numpy(rng.integers(0, 10, n)))


def build():
    return {"net": Net(), "quick": NeuralNetwork()}


def main(model):
    parser = argparse.ArgumentParser(description="MNIST")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--no-cuda", action="store_true", default=False)
    parser.add_argument("--no-mps", action="store_true", default=False)
    parser.add_argument("--dry-run", action="store_true", default=False)
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--log-interval", type=int, default=2)
    parser.add_argument("--save-model", action="store_true", default=True)
    args = parser.parse_args([])
    use_cuda = not args.no_cuda and torch.cuda.is_available()
    use_mps = not args.no_mps and torch.backends.mps.is_available()
    torch.manual_seed(args.seed)
    if use_cuda:
        device = torch.device("cuda")
    elif use_mps:
        device = torch.device("mps")
    else:
        device = torch.device("cpu")
    test_kwargs = {"batch_size": 5}
    if use_cuda:
        test_kwargs.update({"num_workers": 1, "pin_memory": True, "shuffle": True})
    train_loader = DataLoader(data(30, 0), batch_size=args.batch_size, shuffle=False)
    test_loader = torch.utils.data.DataLoader(data(12, 1), **test_kwargs)
    model = model.to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    log, losses = [], []
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch, log)
        losses.append(test(model, device, test_loader, log))
        scheduler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mnist_cnn.pt")
        if args.save_model:
            torch.save(model.state_dict(), path)
        again = Net().to(device)
        again.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    losses.append(test(again, device, test_loader, log))
    return log, losses, scheduler.get_last_lr()


def quickstart(model, compile):
    device = (
        torch.accelerator.current_accelerator().type
        if torch.accelerator.is_available() else "cpu"
    )  # fmt: skip
    shown = [f"Using {device} device", str(model).replace("jitgrad", "torch")]
    train_dataloader = DataLoader(data(16, 2), batch_size=8)
    for X, y in train_dataloader:
        shown.append(f"X [N, C, H, W]: {list(X.shape)}, y: {y.shape[0]} {y.dtype.itemsize}")
        break
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @compile
    def step(X, y):
        pred = model(X)
        loss = loss_fn(pred, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = []
    for _t in range(3):
        size = len(train_dataloader.dataset)
        model.train()
        for batch, (X, y) in enumerate(train_dataloader):
            X, y = X.to(device), y.to(device)
            loss = step(X, y)
            loss, current = loss.item(), (batch + 1) * len(X)
            losses.append(loss)
            shown.append(f"[{current:>5d}/{size:>5d}]")
        model.eval()
        test_loss, correct = 0, 0
        with torch.no_grad():
            for X, y in train_dataloader:
                pred = model(X)
                test_loss += loss_fn(pred, y).item()
                correct += (pred.argmax(1) == y).type(torch.float).sum().item()
        test_loss /= len(train_dataloader)
        losses += [test_loss, correct / size]
    classes = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
               "Bag", "Ankle boot"]  # fmt: skip
    x, y = train_dataloader.dataset[0]
    with torch.no_grad():
        pred = model(x.to(device))
        shown.append(f'Predicted: "{classes[pred[0].argmax(0)]}", Actual: "{classes[y]}"')
    return shown, losses


def run(models, compile):
    return {"mnist": main(models["net"]), "quickstart": quickstart(models["quick"], compile)}
