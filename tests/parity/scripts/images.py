"""Image scripts: DCGAN, a VAE, super-resolution with PixelShuffle, fast neural style,
a siamese network with a contrastive loss, sine waves by LSTM cells and LBFGS."""

from __future__ import print_function

import argparse
import math
from itertools import islice

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.init as init
import torch.optim as optim
import torch.utils.data
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset

nz, ngf, ndf, nc = 5, 4, 4, 1


def tensor(*shape, seed=0, uniform=False):
    rng = np.random.default_rng(seed)
    a = rng.random(shape) if uniform else rng.standard_normal(shape)
    return torch.from_numpy(a).to(torch.get_default_dtype())


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, ngpu):
        super(Generator, self).__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        if input.is_cuda and self.ngpu > 1:
            output = nn.parallel.data_parallel(self.main, input, range(self.ngpu))
        else:
            output = self.main(input)
        return output


class Discriminator(nn.Module):
    def __init__(self, ngpu):
        super(Discriminator, self).__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input).view(-1, 1).squeeze(1)


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(64, 12)
        self.fc21 = nn.Linear(12, 3)
        self.fc22 = nn.Linear(12, 3)
        self.fc3 = nn.Linear(3, 12)
        self.fc4 = nn.Linear(12, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar, eps):
        std = torch.exp(0.5 * logvar)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x, eps):
        mu, logvar = self.encode(x.view(-1, 64))
        return self.decode(self.reparameterize(mu, logvar, eps)), mu, logvar


class ESPCN(nn.Module):
    def __init__(self, upscale_factor):
        super(ESPCN, self).__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 6, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(6, 4, (3, 3), (1, 1), (1, 1))
        self.conv4 = nn.Conv2d(4, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self._initialize_weights()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.pixel_shuffle(self.conv4(x))

    def _initialize_weights(self):
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv2.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv4.weight)


class ConvLayer(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super(ConvLayer, self).__init__()
        reflection_padding = kernel_size // 2
        self.reflection_pad = torch.nn.ReflectionPad2d(reflection_padding)
        self.conv2d = torch.nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        return self.conv2d(self.reflection_pad(x))


class UpsampleConvLayer(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, upsample=None):
        super(UpsampleConvLayer, self).__init__()
        self.upsample = upsample
        self.reflection_pad = torch.nn.ReflectionPad2d(kernel_size // 2)
        self.conv2d = torch.nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        x_in = x
        if self.upsample:
            x_in = torch.nn.functional.interpolate(x_in, mode="nearest", scale_factor=self.upsample)
        return self.conv2d(self.reflection_pad(x_in))


class TransformerNet(torch.nn.Module):
    def __init__(self):
        super(TransformerNet, self).__init__()
        self.conv1 = ConvLayer(3, 4, kernel_size=3, stride=2)
        self.in1 = torch.nn.InstanceNorm2d(4, affine=True)
        self.res = ConvLayer(4, 4, kernel_size=3, stride=1)
        self.in2 = torch.nn.InstanceNorm2d(4, affine=True)
        self.deconv = UpsampleConvLayer(4, 3, kernel_size=3, stride=1, upsample=2)
        self.relu = torch.nn.ReLU()

    def forward(self, X):
        y = self.relu(self.in1(self.conv1(X)))
        residual = y
        y = self.in2(self.res(y)) + residual
        return self.deconv(y)


class Siamese(nn.Module):
    def __init__(self):
        super(Siamese, self).__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2, stride=2)
        )
        self.fc = nn.Sequential(nn.Linear(27, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))

    def forward_once(self, x):
        output = self.cnn(x)
        output = output.view(output.size()[0], -1)
        return self.fc(output)

    def forward(self, input1, input2):
        return self.forward_once(input1), self.forward_once(input2)


class ContrastiveLoss(torch.nn.Module):
    def __init__(self, margin=2.0):
        super(ContrastiveLoss, self).__init__()
        self.margin = margin

    def forward(self, output1, output2, label):
        euclidean_distance = F.pairwise_distance(output1, output2, keepdim=True)
        return torch.mean(
            (1 - label) * torch.pow(euclidean_distance, 2)
            + label * torch.pow(torch.clamp(self.margin - euclidean_distance, min=0.0), 2)
        )


class Pairs(Dataset):
    def __init__(self, n):
        self.images, self.n = tensor(6, 1, 8, 8, seed=5), n

    def __getitem__(self, index):
        other = (index * 2 + 1) % 6
        label = np.array([int(index % 3 != other % 3)], dtype=np.float32)
        return self.images[index % 6], self.images[other], torch.from_numpy(label)

    def __len__(self):
        return self.n


class Sequence(nn.Module):
    def __init__(self):
        super(Sequence, self).__init__()
        self.lstm1 = nn.LSTMCell(1, 5)
        self.lstm2 = nn.LSTMCell(5, 5)
        self.linear = nn.Linear(5, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t = torch.zeros(input.size(0), 5, dtype=torch.double)
        c_t = torch.zeros(input.size(0), 5, dtype=torch.double)
        h_t2 = torch.zeros(input.size(0), 5, dtype=torch.double)
        c_t2 = torch.zeros(input.size(0), 5, dtype=torch.double)
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _i in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


def build():
    models = {
        "netG": Generator(1), "netD": Discriminator(1), "vae": VAE(), "espcn": ESPCN(2),
        "transformer": TransformerNet(), "siamese": Siamese(), "sine": Sequence().double(),
    }  # fmt: skip
    models["netG"].apply(weights_init)
    models["netD"].apply(weights_init)
    return models


def dcgan(netG, netD):
    criterion = nn.BCELoss()
    fixed_noise = tensor(2, nz, 1, 1, seed=1)
    real_label, fake_label = 1, 0
    optimizerD = optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
    history = []
    for i in range(3):
        netD.zero_grad()
        real = tensor(4, nc, 8, 8, seed=10 + i)
        label = torch.full((4,), real_label, dtype=real.dtype)
        output = netD(real)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()
        fake = netG(tensor(4, nz, 1, 1, seed=20 + i))
        label.fill_(fake_label)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()
        history += [(errD_real + errD_fake).item(), errG.item(), D_x, D_G_z1]
    return history, netG(fixed_noise).detach().cpu()


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def vae(model, compile):
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    @compile
    def step(data, eps):
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data, eps)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    for i in range(4):
        losses.append(
            step(tensor(3, 1, 8, 8, seed=i, uniform=True), tensor(3, 3, seed=30 + i)).item()
        )
    model.eval()
    with torch.no_grad():
        sample = model.decode(tensor(2, 3, seed=40)).cpu().view(2, 1, 8, 8)
        recon, _, _ = model(tensor(2, 1, 8, 8, uniform=True), torch.zeros(2, 3))
        comparison = torch.cat([sample, recon.view(2, 1, 8, 8)[:2]])
    return losses, comparison


def super_resolution(model, compile):
    criterion = nn.MSELoss()
    optimizer = optim.Adam(model.parameters(), lr=1e-2)

    @compile
    def step(input, target):
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    target = tensor(2, 1, 8, 8, seed=50, uniform=True)
    input = F.interpolate(target, scale_factor=0.5, mode="bicubic", align_corners=False)
    epoch_loss = [step(input, target).item() for _ in range(3)]
    avg_psnr = 0
    with torch.no_grad():
        for one, two in zip(input, target):
            mse = criterion(model(one.unsqueeze(0)), two.unsqueeze(0))
            avg_psnr += 10 * math.log10(1 / mse.item())
    out_img_y = model(input)[0].detach().numpy()
    out_img_y *= 255.0
    out_img_y = out_img_y.clip(0, 255)
    return epoch_loss, avg_psnr / len(target), float(np.uint8(out_img_y).mean())


def gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    features_t = features.transpose(1, 2)
    return features.bmm(features_t) / (ch * h * w)


def normalize_batch(batch):
    mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    batch = batch.div_(255.0)
    return (batch - mean) / std


def neural_style(transformer):
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(title="subcommands", dest="subcommand")
    train = subparsers.add_parser("train")
    train.add_argument("--content-weight", type=float, default=1e2)
    train.add_argument("--style-weight", type=float, default=1e3)
    args = parser.parse_args(["train"])
    optimizer = optim.Adam(transformer.parameters(), 1e-3)
    mse_loss = torch.nn.MSELoss()
    filters = tensor(4, 3, 3, 3, seed=60) * 0.3

    def vgg(x):
        return F.relu(F.conv2d(x, filters, padding=1))

    style = (tensor(3, 8, 8, seed=61, uniform=True) * 255).repeat(2, 1, 1, 1)
    gram_style = gram_matrix(vgg(normalize_batch(style)))

    def step(x):
        optimizer.zero_grad()
        y = normalize_batch(transformer(x))
        features_y, features_x = vgg(y), vgg(normalize_batch(x.clone()))
        content_loss = args.content_weight * mse_loss(features_y, features_x)
        style_loss = mse_loss(gram_matrix(features_y), gram_style[:2, :, :]) * args.style_weight
        total_loss = content_loss + style_loss
        total_loss.backward()
        optimizer.step()
        return content_loss.detach(), style_loss.detach()

    seen = []
    for i in range(3):
        seen.append([v.item() for v in step(tensor(2, 3, 8, 8, seed=70 + i, uniform=True) * 255)])
    img = transformer(tensor(1, 3, 8, 8, uniform=True) * 255)[0].detach()
    img = img.clone().clamp(0, 255).numpy().transpose(1, 2, 0).astype("uint8")
    return seen, list(img.shape)


def siamese(net):
    criterion = ContrastiveLoss()
    optimizer = optim.Adam(net.parameters(), lr=5e-3)
    loader = DataLoader(Pairs(6), shuffle=False, num_workers=0, batch_size=3)
    history = []
    for _epoch in range(2):
        for _i, data in enumerate(loader, 0):
            img0, img1, label = data
            img0, img1, label = Variable(img0), Variable(img1), Variable(label)
            output1, output2 = net(img0, img1)
            optimizer.zero_grad()
            loss_contrastive = criterion(output1, output2, label)
            loss_contrastive.backward()
            optimizer.step()
            history.append(loss_contrastive.data.item())
    img0, img1, label = next(iter(loader))
    for batch in islice(loader, 1):
        assert torch.equal(batch[0], img0)
    dissimilarity = F.pairwise_distance(*net(img0, img1))
    return history, [f"{d.item():.2f}" for d in dissimilarity.cpu()], label


def sine(seq):
    x = np.empty((4, 10), "int64")
    x[:] = np.array(range(10)) + np.arange(4).reshape(4, 1)
    data = np.sin(x / 1.0 / 3).astype("float64")
    input = torch.from_numpy(data[1:, :-1])
    target = torch.from_numpy(data[1:, 1:])
    test_input = torch.from_numpy(data[:1, :-1])
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
    losses = []

    def closure():
        optimizer.zero_grad()
        out = seq(input)
        loss = criterion(out, target)
        losses.append(loss.item())
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    with torch.no_grad():
        pred = seq(test_input, future=3)
        loss = criterion(pred[:, :-3], torch.from_numpy(data[:1, 1:]))
    return losses, loss.item(), pred.detach().numpy().tolist()


def run(models, compile):
    return {
        "dcgan": dcgan(models["netG"], models["netD"]),
        "vae": vae(models["vae"], compile),
        "espcn": super_resolution(models["espcn"], compile),
        "style": neural_style(models["transformer"]),
        "siamese": siamese(models["siamese"]),
        "sine": sine(models["sine"]),
    }
