"""A variational autoencoder with the reparameterization trick, and a vector-quantized one."""

import numpy as np
import torch
import torch.utils.data
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(16, 10)
        self.fc21 = nn.Linear(10, 3)
        self.fc22 = nn.Linear(10, 3)
        self.fc3 = nn.Linear(3, 10)
        self.fc4 = nn.Linear(10, 16)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar, eps=None):
        std = torch.exp(0.5 * logvar)
        if eps is None:
            eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x, eps=None):
        mu, logvar = self.encode(x.view(-1, 16))
        z = self.reparameterize(mu, logvar, eps)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 16), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


class VectorQuantizer(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, commitment_cost):
        super().__init__()
        self._embedding_dim, self._num_embeddings = embedding_dim, num_embeddings
        self._embedding = nn.Embedding(num_embeddings, embedding_dim)
        self._embedding.weight.data.uniform_(-1 / num_embeddings, 1 / num_embeddings)
        self._commitment_cost = commitment_cost

    def forward(self, inputs):
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        input_shape = inputs.shape
        flat_input = inputs.view(-1, self._embedding_dim)
        distances = (
            torch.sum(flat_input**2, dim=1, keepdim=True)
            + torch.sum(self._embedding.weight**2, dim=1)
            - 2 * torch.matmul(flat_input, self._embedding.weight.t())
        )
        encoding_indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(
            encoding_indices.shape[0], self._num_embeddings, device=inputs.device
        )
        encodings.scatter_(1, encoding_indices, 1)
        quantized = torch.matmul(encodings, self._embedding.weight).view(input_shape)
        e_latent_loss = F.mse_loss(quantized.detach(), inputs)
        q_latent_loss = F.mse_loss(quantized, inputs.detach())
        loss = q_latent_loss + self._commitment_cost * e_latent_loss
        quantized = inputs + (quantized - inputs).detach()
        avg_probs = torch.mean(encodings, dim=0)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))
        return loss, quantized.permute(0, 3, 1, 2).contiguous(), perplexity, encodings


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 4, stride=2, padding=1), nn.ReLU(inplace=False), nn.Conv2d(4, 3, 1)
        )
        self.vq = VectorQuantizer(6, 3, 0.25)
        self.decoder = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1)
        )

    def forward(self, x):
        loss, quantized, perplexity, _ = self.vq(self.encoder(x))
        return loss, self.decoder(quantized), perplexity


def build():
    return {"vae": VAE(), "vqvae": VQVAE()}


def run(models, compile):
    rng = np.random.default_rng(6)
    dtype = torch.get_default_dtype()
    images = torch.as_tensor(rng.random((12, 1, 4, 4))).to(dtype)
    dataset = torch.utils.data.TensorDataset(images, torch.zeros(12, dtype=torch.long))
    train_loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    model = models["vae"].to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-2)

    @compile
    def vae_step(data, eps):
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data, eps)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        optimizer.step()
        return loss.detach()

    train_loss = 0
    for _batch_idx, (data, _) in enumerate(train_loader):
        data = data.to(device)
        eps = torch.as_tensor(rng.standard_normal((4, 3))).to(device, dtype)
        train_loss += vae_step(data, eps).item()
    with torch.no_grad():
        sample = model.decode(torch.linspace(-1, 1, 6).view(2, 3)).cpu()

    vq = models["vqvae"]
    vq_optimizer = optim.Adam(vq.parameters(), lr=1e-2, amsgrad=False)
    data_variance = float(np.var(images.numpy()))

    @compile
    def vq_step(data):
        vq_optimizer.zero_grad()
        vq_loss, data_recon, perplexity = vq(data)
        recon_error = F.mse_loss(data_recon, data) / data_variance
        (recon_error + vq_loss).backward()
        vq_optimizer.step()
        return recon_error.detach(), perplexity

    history = [[x.item() for x in vq_step(data)] for data, _ in train_loader]
    return {"loss": train_loss / len(train_loader.dataset), "sample": sample, "vq": history}
