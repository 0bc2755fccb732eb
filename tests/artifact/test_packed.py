from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.artifact import PackedArray
from langchain_cfc.errors import InputError


@settings(derandomize=True)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_numbers_come_back_to_the_bit(numbers: list[float]) -> None:
    array = np.array(numbers, dtype=np.float64)
    packed = PackedArray.pack(array)
    again = PackedArray.model_validate_json(packed.model_dump_json()).unpack()
    assert again.tobytes() == array.tobytes()
    assert again.dtype == np.float64


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 3), (1, 1)])
def test_shapes_come_back(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    np.testing.assert_array_equal(PackedArray.pack(array).unpack(), array)
    assert PackedArray.pack(array).unpack().shape == shape


def test_memory_layout_does_not_matter() -> None:
    array = np.arange(12.0).reshape(3, 4)
    for same in (np.asfortranarray(array), array.astype(">f8"), np.hstack([array, array])[:, :4]):
        assert PackedArray.pack(same) == PackedArray.pack(array)


def test_equal_arrays_have_one_name_and_others_have_others() -> None:
    names = [PackedArray.pack(array).name for array in (np.zeros(2), np.zeros((1, 2)), np.ones(2))]
    assert len(set(names)) == 3
    assert PackedArray.pack(np.zeros(2)).name == names[0]


@pytest.mark.parametrize("text", ["#", "é", "AAA", "AAAA AAAAAAA="])
def test_text_that_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not base64"):
        PackedArray(shape=[1], float64=text).unpack()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    with pytest.raises(InputError, match="not finite"):
        PackedArray.pack(np.array([0.5, number])).unpack()


@pytest.mark.parametrize("shape", [[2], [-1], [-1, -1], [1, 2]])
def test_a_shape_that_does_not_fit_the_numbers_is_refused(shape: list[int]) -> None:
    one = PackedArray.pack(np.array([0.5])).float64
    with pytest.raises(InputError, match="holds 8 bytes"):
        PackedArray(shape=shape, float64=one).unpack()


def test_the_unpacked_array_may_be_written_to() -> None:
    array = PackedArray.pack(np.zeros(2)).unpack()
    array[0] = 1.0
    assert array[0] == 1.0
