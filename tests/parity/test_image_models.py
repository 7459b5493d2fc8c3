"""Networks made of spatial layers, as public PyTorch code writes them: U-Net, a DCGAN, a spatial
transformer, SegNet, ESPCN. Losses, gradients, training steps from one state dict; compiled, too."""

import numpy as np
import pytest
from parity.compare import torch
from parity.training import pair, same_training

import jitgrad

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def unet(lib, bilinear, width=4):
    nn, torch, F = lib.nn, lib.t, lib.F

    class DoubleConv(nn.Module):
        def __init__(self, in_channels, out_channels, mid_channels=None):
            super().__init__()
            mid_channels = mid_channels or out_channels
            self.double_conv = nn.Sequential(
                nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
                nn.BatchNorm2d(mid_channels),
                nn.ReLU(inplace=True),
                nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
                nn.BatchNorm2d(out_channels),
                nn.ReLU(inplace=True),
            )

        def forward(self, x):
            return self.double_conv(x)

    class Down(nn.Module):
        def __init__(self, in_channels, out_channels):
            super().__init__()
            self.maxpool_conv = nn.Sequential(
                nn.MaxPool2d(2), DoubleConv(in_channels, out_channels)
            )

        def forward(self, x):
            return self.maxpool_conv(x)

    class Up(nn.Module):
        def __init__(self, in_channels, out_channels):
            super().__init__()
            if bilinear:
                self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
                self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)
            else:
                self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, 2, stride=2)
                self.conv = DoubleConv(in_channels, out_channels)

        def forward(self, x1, x2):
            x1 = self.up(x1)
            dy = x2.size()[2] - x1.size()[2]
            dx = x2.size()[3] - x1.size()[3]
            x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
            return self.conv(torch.cat([x2, x1], dim=1))

    class UNet(nn.Module):
        def __init__(self, channels, classes):
            super().__init__()
            factor = 2 if bilinear else 1
            self.inc = DoubleConv(channels, width)
            self.down1 = Down(width, 2 * width)
            self.down2 = Down(2 * width, 4 * width // factor)
            self.up1 = Up(4 * width, 2 * width // factor)
            self.up2 = Up(2 * width, width)
            self.outc = nn.Conv2d(width, classes, kernel_size=1)

        def forward(self, x):
            x1 = self.inc(x)
            x2 = self.down1(x1)
            x3 = self.down2(x2)
            x = self.up1(x3, x2)
            x = self.up2(x, x1)
            return self.outc(x)

    return UNet(2, 3)


@pytest.mark.parametrize("bilinear", [True, False])
def test_unet(bilinear):
    def data(step):
        labels = np.random.default_rng(step).integers(0, 3, (2, 9, 11))
        return values(2, 2, 9, 11, seed=step), labels

    def loss(lib, model, x, y):
        return lib.F.cross_entropy(model(x), y)

    same_training(lambda lib: unet(lib, bilinear), data, loss, scale=1000.0)


def gan(lib, nz=5, ngf=4):
    nn = lib.nn
    generator = nn.Sequential(
        nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),
        nn.BatchNorm2d(ngf * 4),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ngf * 2),
        nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 2, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(3, ngf, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ngf, ngf * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(ngf * 2),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ngf * 2, 1, 4, 1, 0, bias=False),
        nn.Sigmoid(),
    )

    def weights_init(m):
        classname = m.__class__.__name__
        if classname.find("Conv") != -1:
            nn.init.normal_(m.weight.data, 0.0, 0.2)
        elif classname.find("BatchNorm") != -1:
            nn.init.normal_(m.weight.data, 1.0, 0.2)
            nn.init.constant_(m.bias.data, 0)

    model = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    model.apply(weights_init)
    return model


def test_dcgan():
    """Both losses of a step at once, the generator's and the discriminator's."""

    def loss(lib, model, real, noise):
        netG, netD = model["generator"], model["discriminator"]
        criterion = lib.nn.BCELoss()
        fake = netG(noise)
        output = netD(real).view(-1)
        err_real = criterion(output, lib.t.ones_like(output))
        output = netD(fake.detach()).view(-1)
        err_fake = criterion(output, lib.t.zeros_like(output))
        output = netD(fake).view(-1)
        return err_real + err_fake + criterion(output, lib.t.ones_like(output))

    def data(step):
        return values(3, 3, 16, 16, seed=step), values(3, 5, 1, 1, seed=step + 9)

    same_training(gan, data, loss, scale=1000.0, lr=0.02)


def transformer_net(lib):
    nn, torch, F = lib.nn, lib.t, lib.F

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 4, kernel_size=3)
            self.conv2 = nn.Conv2d(4, 4, kernel_size=3)
            self.fc1 = nn.Linear(4 * 2 * 2, 5)
            self.localization = nn.Sequential(
                nn.Conv2d(1, 4, kernel_size=5),
                nn.MaxPool2d(2, stride=2),
                nn.ReLU(True),
                nn.Conv2d(4, 5, kernel_size=3),
                nn.MaxPool2d(2, stride=2),
                nn.ReLU(True),
            )
            self.fc_loc = nn.Sequential(nn.Linear(5 * 1 * 1, 8), nn.ReLU(True), nn.Linear(8, 3 * 2))
            self.fc_loc[2].weight.data.mul_(0.1)
            # off the identity, which samples exactly between cells, where the derivative jumps
            self.fc_loc[2].bias.data.copy_(torch.tensor([0.93, 0.05, 0.07, -0.06, 1.08, 0.04]))

        def stn(self, x):
            xs = self.localization(x)
            xs = xs.view(-1, 5 * 1 * 1)
            theta = self.fc_loc(xs)
            theta = theta.view(-1, 2, 3)
            grid = F.affine_grid(theta, x.size())
            return F.grid_sample(x, grid)

        def forward(self, x):
            x = self.stn(x)
            x = F.relu(F.max_pool2d(self.conv1(x), 2))
            x = F.relu(F.adaptive_avg_pool2d(self.conv2(x), 2))
            x = x.view(-1, 4 * 2 * 2)
            return F.log_softmax(self.fc1(x), dim=1)

    return Net()


def test_spatial_transformer():
    def data(step):
        return values(3, 1, 14, 14, seed=step), np.array([1, 4, step])

    def loss(lib, model, x, y):
        return lib.F.nll_loss(model(x), y)

    same_training(transformer_net, data, loss, scale=1000.0)


def segnet(lib):
    nn, F = lib.nn, lib.F

    class SegNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")
            self.decode = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(4, 2, 3))
            self.pool = nn.MaxPool2d(2, 2, return_indices=True)
            self.unpool = nn.MaxUnpool2d(2, 2)

        def forward(self, x):
            x = F.relu(self.encode(x))
            size = x.size()
            x, indices = self.pool(x)
            return self.decode(self.unpool(x, indices, output_size=size))

    return SegNet()


def espcn(lib):
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding="same", padding_mode="replicate"),
        nn.Tanh(),
        nn.ChannelShuffle(2),
        nn.Conv2d(6, 8, 3, padding=1, padding_mode="circular"),
        nn.PixelShuffle(2),
        nn.PixelUnshuffle(2),
        nn.PixelShuffle(2),
        nn.LPPool2d(2, 3, stride=1),
        nn.ZeroPad2d(1),
    )


@pytest.mark.parametrize("build,size", [(segnet, (7, 9)), (espcn, (10, 12))])
def test_image_to_image(build, size):
    def loss(lib, model, x, y):
        return lib.F.mse_loss(model(x), y)

    def data(step):
        return values(2, 2, *(7, 9) if build is segnet else (5, 6), seed=step), values(2, 2, *size)

    same_training(build, data, loss, scale=1000.0)


def patches(lib):
    """A mixer on unfolded patches, folded back, resized by every mode."""
    nn, F = lib.nn, lib.F

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.unfold = nn.Unfold(3, stride=2, padding=1)
            self.mix = nn.Linear(18, 18)
            self.fold = nn.Fold((7, 7), 3, stride=2, padding=1)

        def forward(self, x):
            y = self.mix(self.unfold(x).transpose(1, 2)).relu().transpose(1, 2)
            y = self.fold(y)
            for mode in ("bilinear", "bicubic", "nearest", "area"):
                y = y + F.interpolate(F.interpolate(y, size=(5, 9), mode=mode), size=7, mode=mode)
            return F.adaptive_max_pool2d(y, (3, 2)) + F.interpolate(
                y, (3, 2), mode="bilinear", antialias=True
            )

    return Patches()


def test_patches():
    def loss(lib, model, x):
        return (model(x) ** 2).mean()

    same_training(patches, lambda step: [values(2, 2, 7, 7, seed=step)], loss, scale=1000.0)


def test_unet_in_float32_and_evaluation():
    models = pair(lambda lib: unet(lib, True), "float32")
    x = values(1, 2, 8, 8).astype(np.float32)
    for model in models.values():
        model.eval()
    ours = models["jitgrad"]
    compiled = jitgrad.jit(ours, fallback="error")

    with torch.no_grad():
        theirs = models["torch"](torch.from_numpy(x)).numpy()
    with jitgrad.no_grad():
        for run in (ours, compiled, compiled):
            out = run(jitgrad.from_numpy(x)).numpy()
            np.testing.assert_allclose(out, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())
