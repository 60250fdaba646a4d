"""A mixer over a flat batch does for each request what it does for that request alone, whoever else is in it."""

import pytest
import torch

from stratakv.cluster.plan import Row
from stratakv.kernels.context import ForwardContext, forwarding
from stratakv.kernels.forward_cache import ForwardCache
from stratakv.kernels.memory import DeviceMemory
from stratakv.kernels.mixers import serve_by_request
from stratakv.kernels.shapes import LayerShape, ModelShapes, StateShape

WIDTH = 3
SHAPES = ModelShapes(
    full=(LayerShape(1, 2, 2),),
    states=(
        StateShape(5, "conv.0", (WIDTH, 2), "float32", 4),
        StateShape(5, "recurrent.0", (WIDTH,), "float32", 4),
    ),
)


class Mixer(torch.nn.Module):
    """Half of a running sum plus each token's last two inputs, so that a token depends on all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, int]] = []

    def forward(self, hidden_states: torch.Tensor, cache: ForwardCache, **_: object) -> torch.Tensor:
        self.calls.append(tuple(hidden_states.shape[:2]))
        count = hidden_states.shape[1]
        inputs = cache.update_conv_state(hidden_states.transpose(1, 2), 5)
        total, out = cache.get_recurrent_state(5), []
        for i in range(count):
            total = total / 2 + hidden_states[:, i]
            out.append(total + inputs[..., i : i + 2].sum(-1))
        cache.update_recurrent_state(total, 5)
        return torch.stack(out, dim=1)


def alone(hidden: torch.Tensor) -> torch.Tensor:
    """What `Mixer` gives for one request, [T, WIDTH], worked out by hand."""
    total, out = torch.zeros(WIDTH), []
    padded = torch.cat([torch.zeros(2, WIDTH), hidden])
    for i, token in enumerate(hidden):
        total = total / 2 + token
        out.append(total + padded[i] + padded[i + 1])
    return torch.stack(out)


class Batch:
    """Requests over one memory whose working states hold rubbish at first."""

    def __init__(self, lengths: dict[str, int]) -> None:
        self.memory = DeviceMemory.build(SHAPES, full=60, states=6, page_size=4, dtype=torch.float32)
        for tensor in self.memory.states.tensors:
            tensor.fill_(float("nan"))
        self.mixer = Mixer()
        serve_by_request([self.mixer])
        self.texts = {name: torch.randn(length, WIDTH) for name, length in lengths.items()}
        self.slots = {name: slot for slot, name in enumerate(reversed(lengths), start=1)}

    @staticmethod
    def ids(request: int, count: int) -> tuple[int, ...]:
        """Token ids that carry (request, index), so that the flat order can be read off the context."""
        return tuple(100 * request + i for i in range(count))

    def step(self, **cuts: tuple[int, int]) -> None:
        """One forward over these parts of the requests, each compared with the request alone."""
        rows = [
            Row(self.ids(i, end - start), start, tuple(range(-(-end // 4))), True, (), self.slots[name])
            for i, (name, (start, end)) in enumerate(cuts.items())
        ]
        context = ForwardContext(rows, self.memory)
        names = list(cuts)
        order = [
            (names[token // 100], cuts[names[token // 100]][0] + token % 100)
            for token in context.tokens.tolist()
        ]
        hidden = torch.stack([self.texts[name][position] for name, position in order])[None]
        with forwarding(context):
            out = self.mixer(hidden, cache=ForwardCache(context))
        for (name, position), got in zip(order, out[0], strict=True):
            torch.testing.assert_close(got, alone(self.texts[name])[position])


def test_chunks_and_decodes_in_one_batch():
    batch = Batch({"a": 12, "b": 9, "c": 30})
    batch.step(a=(0, 5), b=(0, 1))
    batch.step(a=(5, 6), c=(0, 17), b=(1, 2))
    batch.step(c=(17, 18), a=(6, 7), b=(2, 3))
    batch.step(c=(18, 30), a=(7, 12), b=(3, 9))
    assert batch.mixer.calls == [(1, 1), (1, 5), (2, 1), (1, 17), (3, 1), (1, 6), (1, 5), (1, 12)]


def test_a_request_that_starts_anew_forgets_what_its_slot_held():
    batch = Batch({"a": 6})
    batch.step(a=(0, 6))
    batch.step(a=(0, 3))
    batch.step(a=(3, 6))


def test_states_of_others_stay():
    batch = Batch({"a": 6, "b": 6})
    batch.step(a=(0, 3), b=(0, 2))
    before = batch.memory.states.pack(batch.slots["a"])
    batch.step(b=(2, 3))
    assert torch.equal(batch.memory.states.pack(batch.slots["a"]), before)


@pytest.mark.parametrize("slot", [-1, 6])
def test_a_row_without_a_working_state_is_refused(slot):
    memory = Batch({}).memory
    with pytest.raises(ValueError, match=f"state {slot} is not a slot of 6"):
        ForwardContext([Row((1,), 0, (0,), True, (), slot)], memory)


def test_state_outside_a_mixer_is_an_error():
    memory = Batch({}).memory
    cache = ForwardCache(ForwardContext([Row((1,), 0, (0,), True, (), 0)], memory))
    with pytest.raises(RuntimeError, match="outside a mixer"):
        cache.get_conv_state(5)
    cache.begin(ForwardContext([Row((1,), 0, (0,), True, (), 0)], memory).state_parts[0])
    with pytest.raises(RuntimeError, match="layer 4 keeps recurrent state that was not seen"):
        cache.get_conv_state(4)
