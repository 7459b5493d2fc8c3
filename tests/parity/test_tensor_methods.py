"""Constructors, in-place methods, out=, storages, views, conversions: short programs in both
libraries, compared in values, shapes, dtypes, strides, or in the type of what they raise.

A program is a line of statements; the value of the last is the result. `t` is the library.
"""

import copy
import pickle
import warnings

import numpy as np
import pytest
from parity.compare import LIBS, dtype_name

PROGRAMS = """
t.FloatTensor([1,2,3])
t.LongTensor([[1,2],[3,4]])
t.FloatTensor(2,3).shape[0]
t.ByteTensor([1,0])
t.BoolTensor([True,False])
t.HalfTensor([1.5])
t.DoubleTensor(np.ones(3))
t.Tensor([1,2])
t.Tensor(t.Size([2,0]))
t.Tensor((2,0))
t.Tensor(2.5)
t.Tensor(t.ones(2,dtype=t.int64))
t.Tensor()
t.tensor([1.,2]).new([3,4])
t.tensor([1,2]).new(0,3)
isinstance(t.ones(2), t.FloatTensor)
isinstance(t.ones(2), t.LongTensor)
isinstance(t.ones(2), t.Tensor)
t.ones(2).type()
t.ones(2).type('torch.LongTensor')
t.ones(2).type(t.IntTensor)
t.ones(2).type(t.float64)
t.ones(2).type_as(t.ones(1,dtype=t.int32))
t.ones(2,dtype=t.int32).new_zeros(3)
t.ones(2,dtype=t.int32).new_full((2,),3.7)
t.ones(2,dtype=t.int32).new_full((2,),3)
t.ones(2).new_ones((2,2),dtype=t.int64,requires_grad=False)
t.ones(2).new_tensor([1,2])
t.ones(2).new_empty(size=(0,))
t.ones(2).new_zeros(2,requires_grad=True)
x=t.zeros(3);t.add(t.ones(3),2,out=x);x
x=t.zeros(0);t.add(t.ones(3),2,out=x);x
x=t.zeros(3,dtype=t.int64);t.add(t.ones(3),2,out=x)
x=t.zeros(3,dtype=t.float64);t.add(t.ones(3),2,out=x)
x=t.zeros(3,requires_grad=True);t.add(t.ones(3),2,out=x)
x=t.zeros(3);t.mul(t.ones(3,requires_grad=True),2,out=x)
x=t.zeros(2,2);r=t.matmul(t.ones(2,2),t.ones(2,2),out=x);r is x, x
x=t.zeros(0);t.cat([t.ones(2),t.zeros(2)],out=x);x
v=t.zeros(0);i=t.zeros(0,dtype=t.int64);r=t.max(t.eye(3),0,out=(v,i));v,i
v=t.zeros(0);i=t.zeros(0,dtype=t.int64);r=t.sort(t.tensor([3.,1,2]),out=(v,i));v,i,r[0] is v
x=t.zeros(3,dtype=t.float64);t.arange(3,out=x);x
x=t.zeros(2,2,dtype=t.float64);t.zeros(2,3,out=x);x
x=t.zeros(4);t.cumsum(t.arange(4),0,out=x);x
x=t.zeros(3);t.sum(t.ones(2,3),0,out=x);x
x=t.zeros(3)[::2];t.exp(t.zeros(2),out=x);x
b=t.zeros(4);t.exp(t.zeros(2),out=b[1:3]);b
x=t.zeros(3);t.clamp(t.arange(3.),1,2,out=x);x
x=t.ones(3);t.neg_(x);x
x=t.ones(3);t.abs_(x),t.sqrt_(x),t.fill_(x,3),t.zero_(x)
t.relu_(t.tensor([-1.,2]))
t.narrow_copy(t.arange(5),0,1,2), t.view_copy(t.arange(4),(2,2)), t.unbind_copy(t.eye(2))
x=t.arange(6.).reshape(2,3);x.resize_(3,2);x
x=t.arange(6.);x.resize_(2,2);x
x=t.arange(4.);x.resize_(6);x[:4]
x=t.arange(4.,requires_grad=True);x.resize_(6)
x=t.arange(4.);x.resize_as_(t.ones(2,2));x
x=t.arange(4.);y=t.zeros(1);y.set_(x);y[0]=5;x,y
x=t.arange(4.);y=t.zeros(1);y.set_(x.untyped_storage(),1,(2,),(2,));y
x=t.arange(4.);y=t.zeros(1);y.set_(x.storage(),0,(4,));y
x=t.arange(4.);x.set_();x
x=t.eye(3);x.fill_diagonal_(5);x
x=t.arange(4.);x.apply_(lambda v:v*2);x
x=t.arange(4.);x.map_(t.ones(4),lambda a,b:a+b);x
x=t.arange(4.);x.put_(t.tensor([0,3]),t.tensor([9.,8.]));x
x=t.arange(4.);x.put_(t.tensor([0,0]),t.tensor([9.,8.]),accumulate=True);x
x=t.arange(6.);y=x.as_strided_((2,2),(1,2));y,x
x=t.ones(2,3,requires_grad=True);x.t_()
x=t.ones(2,3);x.unsqueeze_(0);x.squeeze_(0);x.transpose_(0,1);x.swapaxes_(0,1);x.swapdims_(0,1);x
x=t.ones(2,1,3);x.squeeze_();x
x=t.ones(2,1,3);x.squeeze_(1);x
x=t.arange(6.).reshape(2,3);y=x[1];y.unsqueeze_(0);y.mul_(2);x,y
x=t.arange(6.).storage();len(x),x[2],x.size(),x.nbytes(),x.element_size(),x.tolist()
x=t.arange(6.).untyped_storage();x.nbytes(),x.size(),len(x)
x=t.arange(6.);y=x[2:];x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
x=t.arange(6.);y=x[2:];y.storage_offset()
x=t.arange(6.);y=x[2:];y.data_ptr() - x.data_ptr()
x=t.arange(6.);x.is_set_to(x),x.is_set_to(x[:]),x.is_same_size(t.ones(6))
t.ones(2,3).t().dim_order(),t.ones(2,3).dim_order()
t.tensor(3.).is_nonzero(), t.is_nonzero(t.tensor([0]))
t.ones(2).is_nonzero()
t.ones(2).nelement(),t.ones(2).element_size(),t.ones(2).itemsize,t.ones(2).nbytes
t.ones(2, 3).greater_(0)
t.ones(2).less_equal_(1)
t.ones(2).not_equal_(1)
t.tensor([0.5]).arccos_()
t.tensor([0.5]).arctan2_(t.tensor([1.0]))
t.tensor([True, False]) & t.tensor([True, True])
t.tensor([True]) | False
~t.tensor([True])
t.tensor([True]) ^ t.tensor([True])
x=t.tensor([True,False]);x&=t.tensor([False,False]);x
x=t.tensor([True,False]);x.bitwise_or_(t.tensor([True,True]));x
2 in t.tensor([1,2]), 5 in t.tensor([1,2]), t.tensor(1) in t.tensor([1,2])
[int(v) for v in t.arange(3)]
list(reversed(t.arange(3)))
x=t.ones(1);y=t.ones(1);hash(x)==hash(x),hash(x)==hash(y)
len(t.ones(3,2)), t.ones(3,2).size(-1), t.ones(2,3).size(0)
len(t.tensor(1))
for_=0;iter(t.tensor(1))
f"{t.tensor(1.5):.2f}"
f"{t.ones(2):.2f}"
float(t.tensor(1.5)),int(t.tensor(2.7)),bool(t.tensor(0.)),complex(t.tensor(1.))
t.tensor([[1,2],[3,4]]).tolist()
t.normal(0.,1.,(2,3)).shape[1]
t.normal(t.zeros(3), t.ones(3)).shape[0]
t.normal(t.zeros(3), 2.0).shape[0]
t.normal(2.0, t.ones(3)).shape[0]
t.normal(t.zeros(3),-1.)
t.empty(3).uniform_(2,1)
t.empty(3).normal_(0,-1)
t.empty(3).exponential_(-1)
t.empty(3).geometric_(2)
t.empty(3).cauchy_(0,-1)
t.empty(3).log_normal_(0,0)
t.empty(3).bernoulli_(2)
t.empty(3,dtype=t.int64).normal_()
t.empty(3,dtype=t.int64).uniform_()
t.empty(3,dtype=t.int64).random_(5,5)
t.rand_like(t.ones(2,dtype=t.float64)).dtype==t.float64
t.randint_like(t.ones(2),3,5).dtype==t.float32
t.randn_like(t.ones(2),dtype=t.float64,requires_grad=True).requires_grad
t.poisson(t.zeros(3)),t.poisson(t.full((2,),-1.))
t.poisson(t.zeros(3))
t.multinomial(t.tensor([0.,1,0]),1)
t.multinomial(t.tensor([0.,1,0]),4,replacement=True)
t.multinomial(t.tensor([0.,1,0]),4)
t.multinomial(t.tensor([-1.,1,0]),1)
t.multinomial(t.tensor([0.,0,0]),1)
t.bernoulli(t.tensor([0.,1.]))
t.bernoulli(t.tensor([2.]))
t.randperm(5).sort().values
t.scalar_tensor(3)
t.ones(2, 3).mean(axis=0, keepdims=True)
t.rand(2, 3, device='cpu').shape[0]
t.rand((2, 3)).shape[0]
t.rand([2]).shape[0]
t.tensor([1.0, 2]).unsqueeze(-1).squeeze(dim=(1,))
t.ones(1, 2, 1).squeeze((0, 2))
t.ones(2, 3, 4).flatten(1)
t.ones(2, 3, 4).flatten(0, 1)
t.ones(2, 3, 4).movedim(0, 2)
t.ones(2, 3, 4).permute(2, 0, 1)
t.ones(2, 3, 4).transpose(-1, 0)
t.ones(4).chunk(2)[0]
t.ones(4).split([1, 3])[1]
t.ones(4).tensor_split(3)[0]
t.ones(4, 2).unbind(1)[0]
t.arange(6).reshape(2, 3).roll((1, 1), (0, 1))
t.arange(6).reshape(2, 3).flip([0])
t.arange(6).reshape(2, 3).rot90()
t.arange(4).tile((2, 2))
t.arange(3).repeat(2, 1)
t.arange(3).repeat_interleave(2)
t.arange(6.0).reshape(2, 3).norm()
t.arange(6.0).reshape(2, 3).norm(p=1, dim=1)
t.arange(6.0).norm(float('inf'))
t.norm(t.ones(2, 3), dim=(0, 1))
t.ones(2, 3).norm(dim=1, keepdim=True)
t.arange(6.0).var(unbiased=False)
t.arange(6.0).std(0, False)
t.arange(6.0).reshape(2, 3).var(1, correction=0)
t.var_mean(t.arange(4.0))
t.std_mean(t.arange(4.0), dim=0)
t.arange(6.0).reshape(2, 3).argmax()
t.arange(6.0).reshape(2, 3).argmin(dim=1, keepdim=True)
t.arange(6.0).reshape(2, 3).max(1, True).values
t.max(t.ones(2), t.zeros(2))
t.arange(6.0).min()
t.arange(4.0).clamp(1, 2)
t.arange(4.0).clamp(min=t.tensor(1.0))
t.arange(4.0).clip(max=2)
t.arange(4).clamp(1)
t.arange(4).clamp_max(2)
t.arange(4.0).lerp(t.ones(4), 0.5)
t.arange(4.0).addcmul(t.ones(4), t.ones(4), value=2)
t.arange(4.0).addcdiv(t.ones(4), t.ones(4))
t.arange(1.0, 4).remainder(2)
t.arange(4.0).fmod(2)
t.arange(4).div(2, rounding_mode='floor')
t.arange(4).floor_divide(2)
t.arange(4) // 2
t.arange(4) % 3
7 % t.arange(1, 4)
2 ** t.arange(3)
t.arange(3) ** 2
-t.arange(3)
abs(t.arange(-2, 1))
5 // t.arange(1, 3)
1 - t.arange(2)
1 / t.arange(1, 3)
t.tensor([1.0, float('nan')]).nan_to_num(0.0)
t.tensor([1.0, float('inf')]).isinf()
t.tensor([1.0, float('nan')]).isnan().any()
t.tensor([float('nan'), 1.0]).nansum()
t.tensor([float('nan'), 1.0]).nanmean()
t.ones(3) == t.ones(3)
t.ones(3).eq(1)
t.ones(3).ne(1)
t.ones(3).equal(t.ones(3))
t.ones(3).allclose(t.ones(3))
t.isclose(t.ones(2), t.ones(2))
(t.arange(3) > 1) | (t.arange(3) < 1)
t.logical_xor(t.tensor([True]), t.tensor([False]))
t.arange(9).reshape(3, 3).diagonal()
t.arange(9).reshape(3, 3).diag()
t.diag(t.arange(3))
t.arange(9).reshape(3, 3).trace()
t.tril(t.ones(3, 3), -1)
t.triu(t.ones(3, 3))
t.diag_embed(t.ones(2, 2))
t.arange(9).reshape(3, 3).T
t.cat((t.ones(1, 2), t.zeros(1, 2)), -1)
t.vstack((t.ones(2), t.ones(2)))
t.dstack((t.ones(2), t.ones(2)))
t.column_stack((t.ones(2), t.ones(2)))
t.atleast_2d(t.ones(2))
t.broadcast_tensors(t.ones(2, 1), t.ones(3))
t.broadcast_to(t.ones(3), (2, 3))
t.broadcast_shapes((2, 1), (3,))
t.cumsum(t.arange(4), -1)
t.cumprod(t.arange(1, 4), 0)
t.diff(t.arange(4))
t.logcumsumexp(t.ones(3), 0)
t.bucketize(t.tensor([1, 5]), t.tensor([2, 4]))
t.searchsorted(t.tensor([1, 3]), t.tensor([2]))
t.histc(t.ones(3), 2, 0, 2)
t.bincount(t.tensor([1, 1]))
t.count_nonzero(t.tensor([0, 1]))
t.unique_consecutive(t.tensor([1, 1, 2]))
t.can_cast(t.float32, t.int32)
t.finfo(t.float32).eps
t.iinfo(t.int8).max
t.is_tensor(1)
t.is_floating_point(t.ones(1))
t.numel(t.ones(2, 2))
t.arange(10)[2:8:3]
t.arange(10)[[1, 2]]
t.arange(10)[t.arange(10) > 7]
t.arange(4).reshape(2, 2)[..., 0]
t.arange(4).index_fill(0, t.tensor([1]), 9)
t.arange(4).masked_fill(t.arange(4) > 2, 0)
t.arange(4).masked_select(t.arange(4) > 2)
t.arange(4).take(t.tensor([1]))
t.eye(2).gather(1, t.tensor([[0], [1]]))
t.zeros(2, 2).scatter(1, t.tensor([[0], [1]]), 1.0)
t.zeros(2, 2).scatter_(1, t.tensor([[0], [1]]), t.ones(2, 1))
t.zeros(3).scatter_add_(0, t.tensor([0, 0]), t.ones(2))
t.zeros(3).index_add_(0, t.tensor([0, 2]), t.ones(2), alpha=2)
t.zeros(size=(2, 3))
t.ones(size=[2])
t.empty(size=(0, 2))
t.randn(size=(2, 3)).shape[0]
t.rand(size=(2,)).shape[0]
t.randint(high=10, size=(2,)).shape[0]
t.randint(low=0, high=10, size=(2, 3)).shape[1]
t.randint(10, (2,)).shape[0]
t.randint(10)
t.full(size=(2,), fill_value=3.0)
t.full((2,), True, pin_memory=False)
t.arange(end=5)
t.arange(0, end=5)
t.arange(start=1, end=5, step=2)
t.arange(5, dtype=t.float32)
t.logspace(0, 2, 3, requires_grad=True)
t.logspace(0, 2, 3, base=2)
t.linspace(0, 1, 3, dtype=t.float64)
t.range(0, 4, 2)
t.rand_like(t.ones(2), generator=t.Generator()).shape[0]
t.zeros_like(t.ones(2), pin_memory=False)
t.full_like(t.ones(2), 2, dtype=t.int64)
t.ones(2).new_full((2,), 1.0, pin_memory=False)
t.ones(2).new_zeros((2,), layout=t.strided, device='cpu')
t.zeros(t.tensor(2), 3)
t.zeros(np.int64(2))
t.zeros([2, 3])
t.zeros(t.Size([2]))
t.eye(2, 3)
t.eye(n=2, m=2)
t.eye(2, dtype=t.int64)
t.empty(2, dtype=t.int64).random_().shape[0]
t.empty(2, dtype=t.uint8).random_().shape[0]
t.empty(9, dtype=t.bool).random_().shape[0]
t.empty(2).random_(3).shape[0]
t.tril_indices(3, 3, device='cpu')
t.triu_indices(row=2, col=3, offset=1)
t.as_tensor([1, 2], dtype=t.float64)
t.asarray([1.0, 2])
t.frombuffer(bytearray(8), dtype=t.int32)
t.stack([t.ones(2), t.zeros(2)], dim=-1)
t.cat(tensors=[t.ones(1), t.ones(2)], dim=0)
t.hstack([t.ones(1), t.ones(2)])
t.split(t.arange(5), 2)
t.arange(5).split(split_size=2)
t.chunk(t.arange(5), chunks=2, dim=0)
t.transpose(t.ones(2, 3), 0, 1)
t.ones(2, 3).transpose(dim0=0, dim1=1)
t.swapaxes(t.ones(2, 3), axis0=0, axis1=1)
t.permute(t.ones(2, 3), dims=(1, 0))
t.ones(2, 3).permute(dims=(1, 0))
t.ones(2, 1).expand(size=(2, 3))
t.ones(2).repeat(repeats=(2,))
t.reshape(t.ones(4), shape=(2, 2))
t.ones(4).reshape(shape=(2, 2))
t.ones(4).view(size=(2, 2))
t.flip(t.arange(3), dims=(0,))
t.roll(t.arange(3), shifts=1)
t.tile(t.ones(2), dims=(2,))
t.ones(2).view(dtype=t.int32)
t.sum(t.ones(2, 3), dim=0)
t.sum(input=t.ones(2, 3), axis=1)
t.ones(2, 3).sum(axis=1, keepdims=True)
t.mean(t.ones(2, 3), axis=0)
t.ones(2, 3).max(axis=0)[0]
t.argmax(t.ones(2, 3), axis=1)
t.ones(2, 3).softmax(dim=0)
t.cumsum(t.ones(2), axis=0)
t.unsqueeze(t.ones(2), axis=0)
t.ones(2, 3).std(axis=0)
t.amax(t.ones(2, 3), axis=1)
t.norm(t.ones(2), dim=0)
t.squeeze(t.ones(1, 2), axis=0)
t.flatten(t.ones(2, 2), start_dim=0)
t.gather(t.eye(2), axis=1, index=t.tensor([[0], [1]]))
t.index_select(t.eye(2), axis=0, index=t.tensor([1]))
t.sort(t.tensor([2, 1]), axis=0)[0]
t.topk(t.tensor([2.0, 1]), 1, axis=0)[0]
t.all(t.ones(2, 2) > 0, axis=0)
t.any(t.ones(2, 2) > 0, axis=1)
t.var(t.ones(2, 2), axis=0)
t.prod(t.ones(2, 2), axis=0)
t.logsumexp(t.ones(2, 2), axis=0)
t.median(t.ones(2, 2), axis=0)[0]
t.div(t.ones(2), other=2)
t.add(input=t.ones(1), other=t.ones(1))
t.mul(t.ones(1), other=2.0)
t.pow(t.ones(2), exponent=2)
t.clamp(t.ones(2), min=0, max=0.5)
t.where(condition=t.tensor([True]), input=t.ones(1), other=t.zeros(1))
t.matmul(t.eye(2), other=t.eye(2))
t.mm(t.eye(2), mat2=t.eye(2))
t.bmm(t.ones(1, 2, 2), mat2=t.ones(1, 2, 2))
t.linspace(start=0, end=1, steps=3)
t.normal(mean=0.0, std=1.0, size=(2,)).shape[0]
t.diag(t.ones(2), diagonal=1)
t.triu(t.ones(2, 2), diagonal=1)
t.meshgrid(t.arange(2), t.arange(2), indexing='xy')
t.einsum('i,i->', t.ones(2), t.ones(2))
t.nonzero(t.tensor([0, 1]), as_tuple=True)
t.unique(t.tensor([1, 1]), sorted=True, return_counts=True)
t.arange(4).cumsum(0,dtype=t.uint8), t.arange(4).cumprod(0,dtype=t.int32)
t.diff(t.arange(3.),0,0,t.ones(1),t.ones(2))
t.unique(t.tensor(2.),return_inverse=True), t.unique_consecutive(t.tensor(2),return_inverse=True)
t.empty_strided((2,3),(1,2)).stride()
t.full_like(t.ones(2),3,dtype=t.int32)
t.view_copy(t.ones(4),t.int32)
t.ones(3,dtype=t.float32).view(t.int8).shape[0]
t.ones(3,2,dtype=t.int16).view(t.int32)
t.ones(3,dtype=t.int16).view(t.int32)
t.ones(()).view(t.int8)
t.ones(2,4).t().view(t.int64)
x=t.zeros(2);x.view(t.int32)[0]=1065353216;x
t.ones(2,3)[:,0].view(t.int32)
pickle.loads(pickle.dumps(t.arange(3)))
copy.copy(t.arange(3)),copy.deepcopy(t.ones(2,requires_grad=True))
copy.deepcopy(t.ones(2,requires_grad=True)*2)
t.std(t.ones(3),0,out=t.zeros(0))
t.set_default_tensor_type(t.DoubleTensor);x=t.ones(1);t.set_default_tensor_type(t.FloatTensor);x
t.set_default_tensor_type('torch.DoubleTensor');x=t.ones(1);t.set_default_dtype(t.float32);x
t.ones(3).to(t.float64, copy=True)
t.ones(3).to('cpu')
t.ones(3).to('cpu', t.int32)
t.ones(3).to(t.ones(1, dtype=t.int8))
t.ones(3).to(dtype=t.half)
x=t.ones(3);x.to(t.float32) is x
x=t.ones(3);x.to(t.float32, copy=True) is x
x=t.ones(3);x.to(t.float32, False, True) is x
x=t.ones(3);x.float() is x
t.ones(2).requires_grad_().as_subclass(t.Tensor)
t.arange(4).unflatten(0,(2,2))
t.arange(4).random_(0,1)
t.ones(3).clamp_(max=.5),t.ones(3).clip_(0,.5)
t.ones(2,2).index_put_((t.tensor([0]),),t.tensor(5.))
t.ones(2).copy_(t.tensor([1,2])),t.ones(2).copy_(t.tensor(3))
t.ones(2).copy_(t.ones(3))
t.ones(2,3).sum_to_size(3)
t.ones(2).heaviside_(t.tensor(1.0))
t.ones(2).lgamma_()
t.ones(2).digamma_()
t.zeros(2).erfinv_()
t.zeros(2).i0_()
t.tensor([4]).gcd_(t.tensor([6]))
t.tensor([4]).lcm_(t.tensor([6]))
t.ones(1).ldexp_(t.tensor([2]))
t.ones(1).nextafter_(t.tensor([2.0]))
t.ones(2, 2).renorm_(2, 0, 1.0)
t.ones(2).polygamma_(1)
t.full((1,), 5.0).mvlgamma_(2)
t.ones(2,2).addbmm_(t.ones(3,2,2),t.ones(3,2,2))
t.ones(2).index_reduce_(0,t.tensor([0]),t.tensor([3.]),'prod')
t.ones(2).scatter_reduce_(0,t.tensor([0]),t.tensor([3.]),'amax')
t.zeros(2, dtype=t.int64).eq_(0)
t.ones(2).logical_not_()
t.tensor([1.7]).fix_()
t.tensor([1]).float_power_(2)
t.ones(2).true_divide_(2),t.tensor([1]).true_divide_(2)
"""


def run(lib, program):
    *statements, last = program.split(";")
    lines = ["def f():", *(f" {s.strip()}" for s in statements), f" return {last.strip()}"]
    names = {"t": lib.t, "np": np, "copy": copy, "pickle": pickle}
    exec("\n".join(lines), names)
    return names["f"]()


def described(value):
    """What is compared of a result, floats apart: (the rest, a list of float values)."""
    if isinstance(value, (tuple, list)):
        parts = [described(v) for v in value]
        return [rest for rest, _ in parts], [x for _, floats in parts for x in floats]
    if hasattr(value, "dtype") and hasattr(value, "stride"):
        flat = value.detach().double().reshape(-1).tolist()
        stride = tuple(value.stride())
        return (tuple(value.shape), dtype_name(value), value.requires_grad, stride), flat
    if isinstance(value, float):
        return "float", [value]
    if isinstance(value, (int, str, complex, type(None))):
        return str(value).replace("torch.", "jitgrad."), []
    return type(value).__name__, []


def outcome(lib, program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return described(run(lib, program))
        except Exception as error:
            return type(error), []


@pytest.mark.parametrize("program", [line for line in PROGRAMS.splitlines() if line])
def test_program(program):
    (ours, our_floats), (theirs, their_floats) = (outcome(lib, program) for lib in LIBS)
    if isinstance(theirs, type):
        assert isinstance(ours, type)
        assert issubclass(ours, theirs) or issubclass(theirs, ours)
    else:
        assert ours == theirs
        np.testing.assert_allclose(our_floats, their_floats, rtol=2e-6)
