"""The user's model, data and training: nothing in here knows of clusters."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


@cache
def digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def load_data(partition_id, num_partitions, batch_size, groups=2):
    """One node's share of the digits. Nodes of different groups call the same picture by different names."""
    x, y = (values[partition_id::num_partitions] for values in digits())
    y = (y + 3 * (partition_id % groups)) % 10
    cut = len(x) * 4 // 5
    train, test = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)


def train(net, trainloader, epochs, lr):
    """Train the model and return the mean loss."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))


@torch.no_grad()
def test(net, testloader):
    """The model's mean loss and accuracy."""
    criterion = nn.CrossEntropyLoss(reduction="sum")
    loss, correct = 0.0, 0
    for x, y in testloader:
        outputs = net(x)
        loss += criterion(outputs, y).item()
        correct += (outputs.argmax(1) == y).sum().item()
    return loss / len(testloader.dataset), correct / len(testloader.dataset)
