"""Detection and segmentation: anchors, IoU and NMS in plain tensors, box coding, a RetinaNet head
with focal loss, a YOLO head and its decoding, DETR's matching by a cost matrix, FCN with Dice loss,
RoI pooling by grid_sample."""

import math
from typing import List, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def box_area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def box_iou(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    area1, area2 = box_area(boxes1), box_area(boxes2)
    lt = torch.max(boxes1[:, None, :2], boxes2[:, :2])
    rb = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]
    return inter / (area1[:, None] + area2 - inter)


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    keep: List[int] = []
    order = scores.sort(0, descending=True)[1]
    while order.numel() > 0:
        if order.numel() == 1:
            keep.append(order.item())
            break
        i = order[0].item()
        keep.append(i)
        iou = box_iou(boxes[i].unsqueeze(0), boxes[order[1:]])[0]
        idx = (iou <= threshold).nonzero().squeeze(1)
        if idx.numel() == 0:
            break
        order = order[idx + 1]
    return torch.as_tensor(keep, dtype=torch.int64)


def generate_anchors(scales: Tuple[float, ...], ratios: Tuple[float, ...], size, stride):
    scales_t, ratios_t = torch.as_tensor(scales), torch.as_tensor(ratios)
    h_ratios = torch.sqrt(ratios_t)
    w_ratios = 1 / h_ratios
    ws = (w_ratios[:, None] * scales_t[None, :]).view(-1)
    hs = (h_ratios[:, None] * scales_t[None, :]).view(-1)
    base = torch.stack([-ws, -hs, ws, hs], dim=1) / 2
    shifts = torch.arange(0, size) * stride
    shift_y, shift_x = torch.meshgrid(shifts, shifts, indexing="ij")
    shift_x, shift_y = shift_x.reshape(-1), shift_y.reshape(-1)
    shifts = torch.stack((shift_x, shift_y, shift_x, shift_y), dim=1)
    return (shifts.view(-1, 1, 4) + base.view(1, -1, 4)).reshape(-1, 4)


def encode(reference: Tensor, proposals: Tensor) -> Tensor:
    ex_w, ex_h = proposals[:, 2] - proposals[:, 0], proposals[:, 3] - proposals[:, 1]
    ex_x, ex_y = proposals[:, 0] + 0.5 * ex_w, proposals[:, 1] + 0.5 * ex_h
    gt_w, gt_h = reference[:, 2] - reference[:, 0], reference[:, 3] - reference[:, 1]
    gt_x, gt_y = reference[:, 0] + 0.5 * gt_w, reference[:, 1] + 0.5 * gt_h
    return torch.stack(
        (
            (gt_x - ex_x) / ex_w,
            (gt_y - ex_y) / ex_h,
            torch.log(gt_w / ex_w),
            torch.log(gt_h / ex_h),
        ),
        1,
    )


def decode(codes: Tensor, boxes: Tensor) -> Tensor:
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    ctr_x, ctr_y = boxes[:, 0] + 0.5 * widths, boxes[:, 1] + 0.5 * heights
    dx, dy = codes[:, 0::4], codes[:, 1::4]
    dw, dh = (c.clamp(max=math.log(1000.0 / 16)) for c in (codes[:, 2::4], codes[:, 3::4]))
    x, y = dx * widths[:, None] + ctr_x[:, None], dy * heights[:, None] + ctr_y[:, None]
    w, h = torch.exp(dw) * widths[:, None], torch.exp(dh) * heights[:, None]
    out = torch.stack((x - 0.5 * w, y - 0.5 * h, x + 0.5 * w, y + 0.5 * h), dim=2).flatten(1)
    out[..., 0::2] = out[..., 0::2].clamp(0, 16)
    out[..., 1::2].clamp_(min=0, max=16)
    return out


def sigmoid_focal_loss(inputs, targets, alpha: float = 0.25, gamma: float = 2):
    p = torch.sigmoid(inputs)
    ce_loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    loss = ce_loss * ((1 - p_t) ** gamma)
    if alpha >= 0:
        alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
        loss = alpha_t * loss
    return loss.sum()


class RetinaHead(nn.Module):
    def __init__(self, channels=4, num_anchors=2, num_classes=3):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, channels, 3, 2, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 2, 1)
        )
        self.lateral, self.num_classes = nn.Conv2d(channels, channels, 1), num_classes
        self.cls = nn.Conv2d(channels, num_anchors * num_classes, 3, padding=1)
        self.reg = nn.Conv2d(channels, num_anchors * 4, 3, padding=1)
        torch.nn.init.constant_(self.cls.bias, -math.log((1 - 0.1) / 0.1))

    def forward(self, x):
        x = F.gelu(self.backbone(x))
        x = self.lateral(x) + F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="nearest")
        N, _, H, W = x.shape
        cls = self.cls(x).view(N, -1, self.num_classes, H, W).permute(0, 3, 4, 1, 2)
        reg = self.reg(x).view(N, -1, 4, H, W).permute(0, 3, 4, 1, 2)
        return cls.reshape(N, -1, self.num_classes), reg.reshape(N, -1, 4)


class YOLOLayer(nn.Module):
    def __init__(self, anchors, num_classes=2):
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("anchor_grid", torch.tensor(anchors).view(1, -1, 1, 1, 2))
        self.conv = nn.Conv2d(3, len(anchors) * (5 + num_classes), 4, 4)

    def forward(self, x):
        x = self.conv(x)
        bs, _, ny, nx = x.shape
        x = x.view(bs, -1, 5 + self.num_classes, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        yv, xv = torch.meshgrid([torch.arange(ny), torch.arange(nx)], indexing="ij")
        grid = torch.stack((xv, yv), 2).view((1, 1, ny, nx, 2)).to(x.dtype)
        y = x.clone()
        y[..., 0:2] = (x[..., 0:2].sigmoid() + grid) * 4
        y[..., 2:4] = torch.exp(x[..., 2:4]) * self.anchor_grid
        y[..., 4:] = x[..., 4:].sigmoid()
        return y.view(bs, -1, 5 + self.num_classes)


class FCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=2, dilation=2)
        self.pool = nn.MaxPool2d(2, 2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2, 2)
        self.conv2 = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        size = x.shape[-2:]
        x = F.relu(self.conv1(x))
        y, indices = self.pool(x)
        x = self.conv2(self.unpool(y, indices) + x)
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def dice_loss(pred, target, smooth=1.0):
    pred, onehot = F.softmax(pred, dim=1), F.one_hot(target, 3).permute(0, 3, 1, 2)
    intersection = (pred * onehot).sum(dim=(2, 3))
    union = pred.sum(dim=(2, 3)) + onehot.sum(dim=(2, 3))
    return (1 - ((2.0 * intersection + smooth) / (union + smooth))).mean()


def roi_align(features, rois, size):
    theta = torch.zeros(len(rois), 2, 3, dtype=features.dtype)
    theta[:, 0, 0], theta[:, 1, 1] = rois[:, 2] - rois[:, 0], rois[:, 3] - rois[:, 1]
    theta[:, 0, 2], theta[:, 1, 2] = rois[:, 0] + rois[:, 2] - 1, rois[:, 1] + rois[:, 3] - 1
    grid = F.affine_grid(theta, [len(rois), features.size(1), size, size], align_corners=False)
    return F.grid_sample(features.expand(len(rois), -1, -1, -1), grid, align_corners=False)


def hungarian_costs(logits, boxes, labels, targets):
    prob = logits.flatten(0, 1).softmax(-1)
    cost_class = -prob[:, labels]
    cost_bbox = torch.cdist(boxes.flatten(0, 1), targets, p=1)
    return (5 * cost_bbox + cost_class).view(logits.size(0), logits.size(1), -1)


def build():
    return {"retina": RetinaHead(), "yolo": YOLOLayer([[3.0, 4.0], [6.0, 5.0]]), "fcn": FCN()}


def run(models, compile):
    rng = np.random.default_rng(28)
    dtype = torch.get_default_dtype()

    def draw(*shape):
        return torch.tensor(rng.random(shape), dtype=dtype)

    anchors = generate_anchors((4.0, 8.0), (1.0,), 4, 4) + 2
    truth = torch.tensor([[1.0, 1.0, 6.0, 7.0], [8.0, 9.0, 15.0, 14.0]])
    iou = box_iou(truth, anchors)
    matched_vals, matches = iou.max(dim=0)
    matches[matched_vals < 0.2] = -1
    foreground = matches >= 0
    targets = torch.zeros(anchors.size(0), 3)
    targets[foreground, torch.tensor([0, 2])[matches[foreground]]] = 1.0
    codes = encode(truth[matches.clamp(min=0)], anchors)
    found = {"anchors": anchors, "matches": matches, "codes": codes,
             "decoded": decode(codes, anchors)[foreground]}  # fmt: skip

    def stepper(model, loss_of):
        optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)

        def step(*args):
            optimizer.zero_grad()
            loss = loss_of(*args)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0, norm_type=2.0)
            optimizer.step()
            return loss.detach()

        return compile(step)

    retina = models["retina"]

    def retina_loss(images):
        cls, reg = retina(images)
        count = foreground.sum().clamp(min=1)
        focal = sum(sigmoid_focal_loss(c, targets) for c in cls) / count
        weight = foreground.to(reg.dtype)[:, None]
        return (
            focal
            + (
                F.smooth_l1_loss(reg, codes.expand_as(reg), reduction="none", beta=0.1) * weight
            ).sum()
        )

    step = stepper(retina, retina_loss)
    found["retina"] = [step(draw(2, 3, 16, 16)).item() for _ in range(3)]
    with torch.no_grad():
        cls, reg = retina(draw(1, 3, 16, 16))
        boxes, scores = decode(reg[0], anchors), cls[0].sigmoid().max(-1).values
    found["kept"] = nms(boxes, scores, 0.5)

    yolo = models["yolo"]
    step = stepper(yolo, lambda x, t: F.mse_loss(yolo(x), t) / 10)
    found["yolo"] = [step(draw(2, 3, 8, 8), draw(2, 8, 7)).item() for _ in range(3)]

    fcn = models["fcn"]
    weight = torch.tensor([1.0, 2.0, 0.5])

    def fcn_loss(x, y):
        out = fcn(x)
        return F.cross_entropy(out, y, weight=weight, ignore_index=2) + dice_loss(out, y)

    step = stepper(fcn, fcn_loss)
    labels = torch.from_numpy(rng.integers(0, 3, (2, 6, 6)))
    found["fcn"] = [step(draw(2, 3, 6, 6), labels).item() for _ in range(3)]
    pred = fcn(draw(2, 3, 6, 6)).argmax(1)
    hist = torch.bincount(3 * labels.flatten() + pred.flatten(), minlength=9).reshape(3, 3)
    found["iou"] = hist.diag() / (hist.sum(1) + hist.sum(0) - hist.diag()).to(dtype)
    found["roi"] = roi_align(draw(1, 2, 5, 5), draw(3, 4).sort(-1).values, 3)
    costs = hungarian_costs(draw(1, 4, 3), draw(1, 4, 4), torch.tensor([0, 2]), draw(2, 4))
    found["assigned"] = costs[0].min(0).indices
    return found
