"""Images: VQ-VAE with codebooks by EMA, PixelCNN with its sampling loop, CycleGAN's loop."""

import functools
import itertools
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


# -- VQ-VAE ----------------------------------------------------------------------------------------
class Quantize(nn.Module):
    def __init__(self, dim, n_embed, decay=0.9, eps=1e-5):
        super().__init__()
        self.dim, self.n_embed, self.decay, self.eps = dim, n_embed, decay, eps
        embed = torch.randn(dim, n_embed)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.zeros(n_embed))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, input):
        flatten = input.reshape(-1, self.dim)
        dist = (
            flatten.pow(2).sum(1, keepdim=True)
            - 2 * flatten @ self.embed
            + self.embed.pow(2).sum(0, keepdim=True)
        )
        _, embed_ind = (-dist).max(1)
        embed_onehot = F.one_hot(embed_ind, self.n_embed).type(flatten.dtype)
        embed_ind = embed_ind.view(*input.shape[:-1])
        quantize = self.embed_code(embed_ind)
        if self.training:
            embed_onehot_sum = embed_onehot.sum(0)
            embed_sum = flatten.transpose(0, 1) @ embed_onehot
            self.cluster_size.data.mul_(self.decay).add_(embed_onehot_sum, alpha=1 - self.decay)
            self.embed_avg.data.mul_(self.decay).add_(embed_sum, alpha=1 - self.decay)
            n = self.cluster_size.sum()
            cluster_size = (self.cluster_size + self.eps) / (n + self.n_embed * self.eps) * n
            embed_normalized = self.embed_avg / cluster_size.unsqueeze(0)
            self.embed.data.copy_(embed_normalized)
        diff = (quantize.detach() - input).pow(2).mean()
        quantize = input + (quantize - input).detach()
        return quantize, diff, embed_ind

    def embed_code(self, embed_id):
        return F.embedding(embed_id, self.embed.transpose(0, 1))


class VQVAE(nn.Module):
    def __init__(self, channel=6, embed_dim=4, n_embed=8):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, channel, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channel, embed_dim, 3, padding=1),
        )
        self.quantize = Quantize(embed_dim, n_embed)
        self.dec = nn.Sequential(
            nn.Conv2d(embed_dim, channel, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(channel, 3, 4, stride=2, padding=1),
        )

    def forward(self, input):
        quant = self.enc(input).permute(0, 2, 3, 1)
        quant, diff, ids = self.quantize(quant)
        return self.dec(quant.permute(0, 3, 1, 2)), diff.unsqueeze(0), ids


# -- PixelCNN --------------------------------------------------------------------------------------
class MaskedConv2d(nn.Conv2d):
    def __init__(self, mask_type, *args, **kwargs):
        super(MaskedConv2d, self).__init__(*args, **kwargs)
        assert mask_type in {"A", "B"}
        self.register_buffer("mask", self.weight.data.clone())
        _, _, kH, kW = self.weight.size()
        self.mask.fill_(1)
        self.mask[:, :, kH // 2, kW // 2 + (mask_type == "B") :] = 0
        self.mask[:, :, kH // 2 + 1 :] = 0

    def forward(self, x):
        self.weight.data *= self.mask
        return super(MaskedConv2d, self).forward(x)


class PixelCNN(nn.Sequential):
    def __init__(self, fm=6):
        super().__init__(
            MaskedConv2d("A", 1, fm, 5, 1, 2, bias=False),
            nn.BatchNorm2d(fm),
            nn.ReLU(True),
            MaskedConv2d("B", fm, fm, 3, 1, 1, bias=False),
            nn.BatchNorm2d(fm),
            nn.ReLU(True),
            nn.Conv2d(fm, 4, 1),
        )

    @torch.no_grad()
    def sample(self, n, size):
        sample = torch.zeros(n, 1, size, size)
        self.eval()
        for i in range(size):
            for j in range(size):
                probs = F.softmax(self(sample)[:, :, i, j], dim=1)
                sample[:, :, i, j] = (probs.argmax(1, keepdim=True).to(sample.dtype) + i % 2) / 4
        self.train()
        return sample


# -- CycleGAN --------------------------------------------------------------------------------------
class ImagePool:
    def __init__(self, pool_size):
        self.pool_size, self.num_imgs, self.images = pool_size, 0, []

    def query(self, images):
        return_images = []
        for image in images:
            image = torch.unsqueeze(image.data, 0)
            if self.num_imgs < self.pool_size:
                self.num_imgs = self.num_imgs + 1
                self.images.append(image)
                return_images.append(image)
            elif random.uniform(0, 1) > 0.5:
                random_id = random.randint(0, self.pool_size - 1)
                tmp = self.images[random_id].clone()
                self.images[random_id] = image
                return_images.append(tmp)
            else:
                return_images.append(image)
        return torch.cat(return_images, 0)


class ResnetGenerator(nn.Module):
    def __init__(self, ngf=4):
        super().__init__()
        norm = functools.partial(nn.InstanceNorm2d, affine=False, track_running_stats=False)
        self.model = nn.Sequential(
            nn.ReflectionPad2d(2),
            nn.Conv2d(1, ngf, 5, bias=False),
            norm(ngf),
            nn.ReLU(True),
            nn.Conv2d(ngf, ngf * 2, 3, stride=2, padding=1, bias=False),
            norm(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 3, stride=2, padding=1, output_padding=1, bias=False),
            norm(ngf),
            nn.ReLU(True),
            nn.ReflectionPad2d(2),
            nn.Conv2d(ngf, 1, 5),
            nn.Tanh(),
        )

    def forward(self, x):
        return self.model(x)


class GANLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("real_label", torch.tensor(1.0))
        self.register_buffer("fake_label", torch.tensor(0.0))
        self.loss = nn.MSELoss()

    def __call__(self, prediction, target_is_real):
        target = self.real_label if target_is_real else self.fake_label
        return self.loss(prediction, target.expand_as(prediction))


def set_requires_grad(nets, requires_grad=False):
    if not isinstance(nets, list):
        nets = [nets]
    for net in nets:
        if net is not None:
            for param in net.parameters():
                param.requires_grad = requires_grad


def init_weights(net, init_gain=0.02):
    def init_func(m):
        classname = m.__class__.__name__
        if hasattr(m, "weight") and (
            classname.find("Conv") != -1 or classname.find("Linear") != -1
        ):
            nn.init.normal_(m.weight.data, 0.0, init_gain)
            if hasattr(m, "bias") and m.bias is not None:
                nn.init.constant_(m.bias.data, 0.0)

    net.apply(init_func)
    return net


def build():
    torch.manual_seed(3)
    return {
        "vqvae": VQVAE(),
        "pixel": PixelCNN(),
        "a2b": init_weights(ResnetGenerator()),
        "b2a": init_weights(ResnetGenerator()),
        "da": nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(4, 1, 3)),
    }


def run(models, compile):
    rng = np.random.default_rng(4)
    random.seed(4)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    found = {}
    # VQ-VAE
    vqvae = models["vqvae"]
    optimizer = torch.optim.Adam(vqvae.parameters(), lr=3e-4)
    criterion = nn.MSELoss()

    def vq_step(img):
        vqvae.zero_grad()
        out, latent_loss, ids = vqvae(img)
        recon_loss = criterion(out, img)
        loss = recon_loss + 0.25 * latent_loss.mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), ids

    step, img = compile(vq_step), draw(2, 3, 6, 6)
    found["vqvae"] = [step(img) for _ in range(3)]
    # PixelCNN
    pixel = models["pixel"]
    optimizer2 = torch.optim.Adam(pixel.parameters())
    image = torch.tensor(rng.random((2, 1, 6, 6)), dtype=torch.get_default_dtype())

    def pixel_step(input):
        target = (input[:, 0] * 3).long()
        loss = F.cross_entropy(pixel(input), target)
        optimizer2.zero_grad()
        loss.backward()
        optimizer2.step()
        return loss.detach()

    step = compile(pixel_step)
    found["pixel"] = [step(image) for _ in range(3)], pixel.sample(1, 4)
    # CycleGAN
    a2b, b2a, da, gan = models["a2b"], models["b2a"], models["da"], GANLoss()
    optimizer_g = torch.optim.Adam(
        itertools.chain(a2b.parameters(), b2a.parameters()), lr=2e-4, betas=(0.5, 0.999)
    )
    optimizer_d = torch.optim.Adam(itertools.chain(da.parameters()), lr=2e-4, betas=(0.5, 0.999))
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(
            o, lr_lambda=lambda epoch: 1.0 - max(0, epoch + 1 - 1) / 3.0
        )
        for o in (optimizer_g, optimizer_d)
    ]
    pool, losses = ImagePool(2), []
    for epoch in range(3):
        real_a, real_b = draw(2, 1, 8, 8), draw(2, 1, 8, 8)
        fake_b, rec_a = a2b(real_a), None
        rec_a = b2a(fake_b)
        set_requires_grad([da], False)
        optimizer_g.zero_grad()
        idt = F.l1_loss(a2b(real_b), real_b) * 5.0
        loss_g = gan(da(fake_b), True) + F.l1_loss(rec_a, real_a) * 10.0 + idt
        loss_g.backward()
        optimizer_g.step()
        set_requires_grad([da], True)
        optimizer_d.zero_grad()
        loss_d = (gan(da(real_b), True) + gan(da(pool.query(fake_b).detach()), False)) * 0.5
        loss_d.backward()
        optimizer_d.step()
        for s in schedulers:
            s.step()
        losses.append([loss_g.item(), loss_d.item(), optimizer_g.param_groups[0]["lr"]])
    found["cycle"] = losses
    return found
