"""Adversarial training: a GAN with two optimizers, and WGAN-GP, whose penalty is differentiated."""

import numpy as np
import torch
import torch.autograd as autograd
import torch.nn as nn
from torch.autograd import Variable

img_shape, latent_dim, n_critic, lambda_gp = (1, 4, 4), 5, 2, 10


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()

        def block(in_feat, out_feat, normalize=True):
            layers = [nn.Linear(in_feat, out_feat)]
            if normalize:
                layers.append(nn.BatchNorm1d(out_feat, 0.8))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *block(latent_dim, 8, normalize=False),
            *block(8, 12),
            nn.Linear(12, int(np.prod(img_shape))),
            nn.Tanh(),
        )

    def forward(self, z):
        img = self.model(z)
        return img.view(img.shape[0], *img_shape)


class Discriminator(nn.Module):
    def __init__(self, sigmoid):
        super(Discriminator, self).__init__()
        layers = [
            nn.Linear(int(np.prod(img_shape)), 12), nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(12, 6), nn.LeakyReLU(0.2, inplace=True), nn.Linear(6, 1),
        ]  # fmt: skip
        self.model = nn.Sequential(*layers, *([nn.Sigmoid()] if sigmoid else []))

    def forward(self, img):
        return self.model(img.view(img.size(0), -1))


def compute_gradient_penalty(D, real_samples, fake_samples, alpha):
    interpolates = (alpha * real_samples + ((1 - alpha) * fake_samples)).requires_grad_(True)
    d_interpolates = D(interpolates)
    fake = Variable(
        torch.ones(real_samples.shape[0], 1, dtype=real_samples.dtype), requires_grad=False
    )
    gradients = autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=fake,
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


def build():
    return {
        "G": Generator(), "D": Discriminator(True),
        "wG": Generator(), "critic": Discriminator(False),
    }  # fmt: skip


def run(models, compile):
    rng = np.random.default_rng(5)

    def draw(*shape, uniform=False):
        values = rng.random(shape) if uniform else rng.normal(0, 1, shape)
        return Variable(torch.tensor(values, dtype=torch.get_default_dtype()))

    generator, discriminator = models["G"], models["D"]
    adversarial_loss = torch.nn.BCELoss()
    optimizer_G = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.999))
    optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=0.002, betas=(0.5, 0.999))

    @compile
    def gan_step(real_imgs, z):
        valid = real_imgs.new_ones(real_imgs.size(0), 1)
        fake = torch.zeros_like(valid)
        optimizer_G.zero_grad()
        gen_imgs = generator(z)
        g_loss = adversarial_loss(discriminator(gen_imgs), valid)
        g_loss.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        real_loss = adversarial_loss(discriminator(real_imgs), valid)
        fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        d_loss.backward()
        optimizer_D.step()
        return g_loss.detach(), d_loss.detach()

    gan = [[x.item() for x in gan_step(draw(4, *img_shape), draw(4, latent_dim))] for _ in range(4)]

    generator, critic = models["wG"], models["critic"]
    optimizer_wG = torch.optim.RMSprop(generator.parameters(), lr=0.002)
    optimizer_C = torch.optim.Adam(critic.parameters(), lr=0.002, betas=(0.0, 0.9))

    @compile
    def critic_step(real_imgs, z, alpha):
        optimizer_C.zero_grad()
        fake_imgs = generator(z)
        real_validity = critic(real_imgs)
        fake_validity = critic(fake_imgs)
        penalty = compute_gradient_penalty(critic, real_imgs.data, fake_imgs.data, alpha)
        d_loss = -torch.mean(real_validity) + torch.mean(fake_validity) + lambda_gp * penalty
        d_loss.backward()
        optimizer_C.step()
        return d_loss.detach(), penalty.detach()

    @compile
    def generator_step(z):
        optimizer_wG.zero_grad()
        g_loss = -torch.mean(critic(generator(z)))
        g_loss.backward()
        optimizer_wG.step()
        return g_loss.detach()

    wgan = []
    for i in range(6):
        d_loss, penalty = critic_step(
            draw(4, *img_shape), draw(4, latent_dim), draw(4, 1, 1, 1, uniform=True)
        )
        wgan += [d_loss.item(), penalty.item()]
        if i % n_critic == 0:
            wgan.append(generator_step(draw(4, latent_dim)).item())
    return {"gan": gan, "wgan": wgan}
