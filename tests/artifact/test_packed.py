from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.artifact import PackedArray
from langchain_cfc.errors import InputError


@settings(derandomize=True)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_packed_array_round_trips_numbers_to_the_bit(numbers: list[float]) -> None:
    array = np.array(numbers, dtype=np.float64)
    packed = PackedArray.pack(array)
    again = PackedArray.model_validate_json(packed.model_dump_json()).unpack()
    assert again.tobytes() == array.tobytes()
    assert again.dtype == np.float64


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 3), (1, 1)])
def test_packed_array_round_trips_shapes(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    np.testing.assert_array_equal(PackedArray.pack(array).unpack(), array)
    assert PackedArray.pack(array).unpack().shape == shape


def test_packed_array_does_not_depend_on_memory_layout() -> None:
    array = np.arange(12.0).reshape(3, 4)
    for same in (np.asfortranarray(array), array.astype(">f8"), np.hstack([array, array])[:, :4]):
        assert PackedArray.pack(same) == PackedArray.pack(array)


def test_packed_array_name_identifies_its_content() -> None:
    names = [PackedArray.pack(array).name for array in (np.zeros(2), np.zeros((1, 2)), np.ones(2))]
    assert len(set(names)) == 3
    assert PackedArray.pack(np.zeros(2)).name == names[0]


@pytest.mark.parametrize("text", ["#", "é", "AAA", "AAAA AAAAAAA="])
def test_packed_array_refuses_text_that_is_not_base64(text: str) -> None:
    with pytest.raises(InputError, match="not base64"):
        PackedArray(shape=[1], float64=text).unpack()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_packed_array_refuses_numbers_that_are_not_finite(number: float) -> None:
    with pytest.raises(InputError, match="not finite"):
        PackedArray.pack(np.array([0.5, number])).unpack()


@pytest.mark.parametrize("shape", [[2], [-1], [-1, -1], [1, 2]])
def test_packed_array_refuses_a_shape_that_does_not_fit(shape: list[int]) -> None:
    one = PackedArray.pack(np.array([0.5])).float64
    with pytest.raises(InputError, match="holds 8 bytes"):
        PackedArray(shape=shape, float64=one).unpack()


def test_unpacked_array_is_writable() -> None:
    array = PackedArray.pack(np.zeros(2)).unpack()
    array[0] = 1.0
    assert array[0] == 1.0
