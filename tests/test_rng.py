"""The random words: published answers, a second implementation, no word twice; every checker goes red."""

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from santa_hw import rng
from santa_hw.rng import LFSR_MASK, Purpose, lfsr_jump, lfsr_step, threefry2x32, words

WORD = st.integers(0, 2**32 - 1)
DRAWN = [Purpose.OFFSET, Purpose.TERNARY, Purpose.ROUNDING]


# Threefry on Python integers, written from the paper's loop, with constants that a test can corrupt.

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA


def threefry(key, counter, *, rotations=ROTATIONS, parity=PARITY, rounds=20) -> tuple[int, int]:
    schedule = (*key, parity ^ key[0] ^ key[1])
    x = [(c + k) % 2**32 for c, k in zip(counter, key, strict=True)]
    for number in range(rounds):
        x[0] = (x[0] + x[1]) % 2**32
        places = rotations[number % 8]
        x[1] = ((x[1] << places | x[1] >> (32 - places)) % 2**32) ^ x[0]
        if number % 4 == 3:
            group = number // 4 + 1
            x[0] = (x[0] + schedule[group % 3]) % 2**32
            x[1] = (x[1] + schedule[(group + 1) % 3] + group) % 2**32
    return x[0], x[1]


# counter, key, output: Random123's kat_vectors, "threefry2x32 20".
KNOWN_ANSWERS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def check_known_answers(generate: Callable) -> None:
    for counter, key, output in KNOWN_ANSWERS:
        assert tuple(int(word) for word in generate(key, counter)) == output


def ours(key, counter):
    return threefry2x32(*key, *counter)


def test_known_answers():
    check_known_answers(ours)
    check_known_answers(threefry)


def test_known_answers_go_red():
    mutants = [{"rotations": (*ROTATIONS[:i], r ^ 1, *ROTATIONS[i + 1 :])} for i, r in enumerate(ROTATIONS)]
    mutants += [{"parity": PARITY ^ 1}, {"rounds": 19}, {"rounds": 16}, {"rounds": 24}]
    for mutant in mutants:
        with pytest.raises(AssertionError):
            check_known_answers(lambda key, counter, mutant=mutant: threefry(key, counter, **mutant))
    with pytest.raises(AssertionError):
        check_known_answers(lambda key, counter: ours(counter, key))


@given(key=st.tuples(WORD, WORD), counter=st.tuples(WORD, WORD))
def test_threefry_equals_the_written_out_loop(key, counter):
    assert ours(key, counter) == threefry(key, counter)
    assert threefry2x32(*(np.uint32(x) for x in (*key, *counter))) == threefry(key, counter)


# Which word a draw uses


def word(kind, seed, sequence, position, purpose, stream, count, j, bits) -> int:
    """One word, from the definition."""
    if kind == "threefry":
        full = threefry((seed, sequence), (position, purpose << 30 | stream << 16 | j >> 1))[j & 1]
    else:
        full = threefry((seed, sequence), (purpose, 3 << 30 | stream << 16))[0] or 1
        full = jump_by_matrix(full, 32 * (position * count + j + 1))
    return full >> (32 - bits)


@pytest.mark.parametrize("threads", [False, True], ids=["one thread", "threads"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 15, 16, 17, 64])
@pytest.mark.parametrize("kind", ["threefry", "lfsr"])
def test_words_equal_their_definition(kind, count, threads, seed, monkeypatch):
    generator = np.random.default_rng(seed)
    key = int(generator.integers(2**32))
    sequence = generator.integers(2**32, size=(2, 1, 1))
    position = generator.integers(2**32, size=(3, 1))
    stream = generator.integers(2**14, size=5)
    position[0] = 2**32 - 1
    bits = int(generator.integers(1, 33))
    monkeypatch.setattr(rng, "_PARALLEL", 1 if threads else 2**62)
    for purpose in DRAWN:
        fields = {"sequence": sequence, "position": position, "stream": stream}
        drawn = words(kind, seed=key, **fields, purpose=purpose, count=count, bits=bits)
        assert drawn.shape == (2, 3, 5, count)
        assert drawn.dtype == np.uint32
        some = generator.permutation(drawn.size)[:60]
        for a, b, c, j in zip(*np.unravel_index(some, drawn.shape), strict=True) if count else ():
            at = (key, int(sequence[a, 0, 0]), int(position[b, 0]), int(purpose), int(stream[c]))
            assert drawn[a, b, c, j] == word(kind, *at, count, int(j), bits)


def test_threads_take_every_row(monkeypatch):
    # More rows than one thread takes at a time, not a multiple of it.
    rows = 3 * rng._BLOCK + 5
    for kind, count in itertools.product(("threefry", "lfsr"), (1, 2)):
        fields = {"seed": 5, "sequence": 1, "position": np.arange(rows), "stream": 9}
        serial = words(kind, **fields, purpose=Purpose.OFFSET, count=count)
        monkeypatch.setattr(rng, "_PARALLEL", 1)
        assert np.array_equal(serial, words(kind, **fields, purpose=Purpose.OFFSET, count=count))
        monkeypatch.undo()


@pytest.mark.parametrize("kind", ["threefry", "lfsr"])
def test_narrow_words_are_the_top_bits(kind):
    fields = {
        "seed": 3,
        "sequence": 0,
        "position": [7, 8],
        "stream": 2,
        "purpose": Purpose.TERNARY,
        "count": 33,
    }
    full = words(kind, **fields)
    for bits in range(1, 33):
        narrow = words(kind, **fields, bits=bits)
        assert np.array_equal(narrow, full >> np.uint32(32 - bits))
        assert int(narrow.max()).bit_length() == bits  # 66 words: the top bit is set in some


@pytest.mark.parametrize("kind", ["threefry", "lfsr"])
def test_scalars_give_one_row_and_extremes_are_allowed(kind):
    drawn = words(
        kind, seed=2**32 - 1, sequence=2**32 - 1, position=2**32 - 1, purpose=2, stream=2**14 - 1, count=2**17
    )
    assert drawn.shape == (2**17,)
    last = word(kind, 2**32 - 1, 2**32 - 1, 2**32 - 1, 2, 2**14 - 1, 2**17, 2**17 - 1, 32)
    assert drawn[-1] == last
    assert words(kind, seed=0, sequence=np.zeros(0, dtype=int), position=0, purpose=0, stream=0, count=3).shape == (
        0,
        3,
    )


# No word twice

SEQUENCES = [0, 1, 2, 65536, 2**31, 2**32 - 1]
POSITIONS = [0, 1, 2, 3, 65535, 65536, 2**16 + 1, 2**30, 2**31, 2**32 - 2, 2**32 - 1]
LAYERS, HEADS = 4, 9


def grid() -> dict:
    layer, head = np.divmod(np.arange(LAYERS * HEADS), HEADS)
    streams = np.append(layer * HEADS + head, [255, 256, 8191, 8192, 2**14 - 1])
    return {
        "sequence": np.array(SEQUENCES)[:, None, None],
        "position": np.array(POSITIONS)[:, None],
        "stream": streams,
    }


def check_no_word_twice(draw: Callable[..., np.ndarray], count: int = 8) -> None:
    """Every pair of words is new, over purposes, sequences, positions, layers, heads and the words of a draw.

    Under one key Threefry is a permutation, so equal pairs of words mean equal counters. Over different keys
    a pair could repeat by chance: 32472 pairs of 64 bits do so with probability 3e-11.
    """
    drawn = np.stack([draw("threefry", seed=1, **grid(), purpose=purpose, count=count) for purpose in DRAWN])
    assert drawn.shape == (3, len(SEQUENCES), len(POSITIONS), LAYERS * HEADS + 5, count)
    pairs = drawn.reshape(-1, 2)
    whole = pairs[:, 0].astype(np.uint64) << np.uint64(32) | pairs[:, 1]
    assert np.unique(whole).size == whole.size
    # And the lanes of a pair are words of their own (equal by chance in 32472 / 2**32 = 8e-6 of all keys).
    assert np.count_nonzero(pairs[:, 0] == pairs[:, 1]) == 0


def test_no_word_is_used_twice():
    check_no_word_twice(words)


def counters_used(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple]:
    """(key, counter, lane) of every word of the grid, recorded from the loop itself, uncompiled."""
    calls: list[tuple[int, ...]] = []

    def record(*call):
        calls.append(tuple(int(x) for x in call))
        return np.uint32(len(calls) - 1), np.uint32(len(calls) - 1)

    monkeypatch.setattr(rng, "threefry2x32", record)
    for count in (1, 6, 17):  # both loop orders, and the odd word at the end of a row
        monkeypatch.setattr(rng, "_threefry_rows", ROWS.py_func)
        coarse = {**grid(), "stream": [0, 1, 35, 256, 2**14 - 1]}
        for purpose in DRAWN:
            calls.clear()
            drawn = words("threefry", seed=1, **coarse, purpose=purpose, count=count)
            lanes = np.broadcast_to(np.arange(count) & 1, drawn.shape)
            for call, lane in zip(drawn.flat, lanes.flat, strict=True):
                yield count, calls[call], int(lane)


ROWS = rng._threefry_rows


def test_keys_counters_and_lanes_are_distinct(monkeypatch):
    used = list(counters_used(monkeypatch))
    assert len(used) == len(set(used)) == 3 * len(SEQUENCES) * len(POSITIONS) * 5 * (1 + 6 + 17)
    # A longer draw continues a shorter one.
    by_count = {count: {entry[1:] for entry in used if entry[0] == count} for count in (1, 6, 17)}
    assert by_count[1] < by_count[6] < by_count[17]
    # The seeds of the LFSRs have the fourth purpose to themselves.
    assert {call[3] >> 30 for _, call, _ in used} == {0, 1, 2}


def clash(change: Callable[[dict], dict]) -> Callable[..., np.ndarray]:
    return lambda kind, **fields: words(kind, **change(fields))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: {**f, "purpose": Purpose.OFFSET},
        lambda f: {**f, "stream": f["stream"] % HEADS},
        lambda f: {**f, "stream": f["stream"] // HEADS},
        lambda f: {**f, "stream": f["stream"] & 0xFF},
        lambda f: {**f, "stream": f["stream"] & 0x1FFF},
        lambda f: {**f, "sequence": f["sequence"] & 0xFFFF},
        lambda f: {**f, "position": f["position"] & 0xFFFF},
        lambda f: {**f, "sequence": 0, "position": (f["position"] + f["sequence"]) & 0xFFFFFFFF},
    ],
    ids=[
        "no purpose",
        "no layer",
        "no head",
        "8-bit stream",
        "13-bit stream",
        "16-bit sequence",
        "16-bit position",
        "sum",
    ],
)
def test_the_reuse_checker_goes_red_on_a_lost_field(change):
    with pytest.raises(AssertionError):
        check_no_word_twice(clash(change))


def test_the_reuse_checker_goes_red_on_lost_words():
    with pytest.raises(AssertionError):  # the second half of a draw repeats the first
        check_no_word_twice(lambda kind, **f: np.tile(words(kind, **{**f, "count": f["count"] // 2}), 2))
    with pytest.raises(AssertionError):  # both lanes are lane 0
        check_no_word_twice(lambda kind, **f: np.repeat(words(kind, **f)[..., ::2], 2, axis=-1))


def test_every_bit_is_balanced():
    # 65536 words: six standard deviations of a bit's mean are 0.0117. A fixed key: no false alarms.
    fields = {"seed": 11, "sequence": 0, "position": np.arange(256), "purpose": Purpose.OFFSET}
    for kind in ("threefry", "lfsr"):
        drawn = words(kind, **fields, stream=5, count=256).reshape(-1, 1)
        means = (drawn >> np.arange(32, dtype=np.uint32) & 1).mean(axis=0)
        assert np.abs(means - 0.5).max() < 0.0117


# The LFSR


def step(state: int, mask: int = LFSR_MASK) -> int:
    return state >> 1 ^ (mask if state & 1 else 0)


Columns = list[int]


def times(matrix: Columns, state: int) -> int:
    out = 0
    for bit, column in enumerate(matrix):
        if state >> bit & 1:
            out ^= column
    return out


@functools.cache
def square_power(mask: int, k: int) -> Columns:
    """The GF(2) matrix of 2**k steps."""
    if k == 0:
        return [step(1 << bit, mask) for bit in range(32)]
    root = square_power(mask, k - 1)
    return [times(root, column) for column in root]


def power(mask: int, steps: int) -> Columns:
    """The GF(2) matrix of `steps` steps, with no reduction of `steps`."""
    return [jump_by_matrix(1 << bit, steps, mask) for bit in range(32)]


def jump_by_matrix(state: int, steps: int, mask: int = LFSR_MASK) -> int:
    for k in range(steps.bit_length()):
        if steps >> k & 1:
            state = times(square_power(mask, k), state)
    return state


IDENTITY = [1 << bit for bit in range(32)]


def check_maximal(mask: int) -> None:
    """The map has order 2**32 - 1 = 3 · 5 · 17 · 257 · 65537, so every state but 0 lies on one cycle."""
    assert 3 * 5 * 17 * 257 * 65537 == 2**32 - 1
    assert power(mask, 2**32 - 1) == IDENTITY
    for prime in (3, 5, 17, 257, 65537):
        assert power(mask, (2**32 - 1) // prime) != IDENTITY


def test_the_mask_is_maximal():
    assert LFSR_MASK == 0xA3000000
    check_maximal(LFSR_MASK)


@pytest.mark.parametrize("mask", [0x80000000, 0xA2000000, 0xA3000001, 0xB3000000, 0x23000000, 0xC0000000])
def test_the_period_checker_goes_red(mask):
    with pytest.raises(AssertionError):
        check_maximal(mask)


@given(state=WORD)
def test_a_step(state):
    assert lfsr_step(state) == lfsr_step(np.uint32(state)) == step(state)


def check_jump(jump: Callable[[int, int], int], state: int) -> None:
    stepped = state
    for steps in range(130):
        assert jump(state, steps) == stepped
        stepped = step(stepped)
    for steps in (2**31 + 5, 2**32 - 2, 2**32 - 1, 2**32, 2**54 - 1, 2**70 + 3):
        assert jump(state, steps) == jump_by_matrix(state, steps)


@pytest.mark.parametrize("state", [0, 1, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF])
def test_a_jump_equals_stepping(state):
    check_jump(lfsr_jump, state)


@given(state=WORD, a=st.integers(0, 2**60), b=st.integers(0, 2**60))
def test_jumps_add(state, a, b):
    assert lfsr_jump(lfsr_jump(state, a), b) == lfsr_jump(state, a + b)


def test_the_jump_checker_goes_red():
    mutants = [
        lambda state, steps: lfsr_jump(state, steps + 1),
        lambda state, steps: lfsr_jump(state, steps % 2**32),
        lambda state, steps: times(power(0xA3000001, steps), state),
    ]
    for mutant in mutants:
        with pytest.raises(AssertionError):
            check_jump(mutant, 0xDEADBEEF)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_an_lfsr_runs_freely_from_one_decode_step_to_the_next(count):
    fields = {"seed": 8, "sequence": 4, "purpose": Purpose.OFFSET, "stream": 77, "count": count}
    drawn = words("lfsr", **fields, position=np.arange(6)).reshape(-1)
    state, _ = threefry((8, 4), (int(Purpose.OFFSET), 3 << 30 | 77 << 16))
    for expected in drawn.tolist():
        for _ in range(32):
            state = step(state)
        assert state == expected
    late = words("lfsr", **fields, position=5)
    assert np.array_equal(late, drawn[5 * count :])


def test_lfsrs_of_different_draws_have_their_own_seed():
    firsts = [words("lfsr", seed=1, **grid(), purpose=purpose, count=1)[..., 0, :, 0] for purpose in DRAWN]
    assert np.unique(firsts).size == 3 * len(SEQUENCES) * (LAYERS * HEADS + 5)


def test_an_lfsr_never_starts_at_zero(monkeypatch):
    monkeypatch.setattr(rng, "threefry2x32", lambda *_: (np.uint32(0), np.uint32(0)))
    monkeypatch.setattr(rng, "_lfsr_rows", rng._lfsr_rows.py_func)
    drawn = words("lfsr", seed=1, sequence=0, position=0, purpose=0, stream=0, count=4)
    assert drawn.tolist() == [jump_by_matrix(1, 32 * (j + 1)) for j in range(4)]


# Refusals

ALLOWED: dict = {"seed": 0, "sequence": 0, "position": 0, "purpose": 0, "stream": 0, "count": 1}


@pytest.mark.parametrize("kind", ["threefry", "lfsr"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, r"seed must be in \[0, 2\*\*32\), got -1"),
        ({"seed": 2**32}, r"seed must be in \[0, 2\*\*32\), got 4294967296"),
        ({"seed": [1, 2]}, r"seed must be one integer"),
        ({"sequence": [3, -1]}, r"sequence must be in \[0, 2\*\*32\), got -1"),
        ({"sequence": 2**32}, r"sequence must be in \[0, 2\*\*32\), got 4294967296"),
        ({"position": [[0], [-5]]}, r"position must be in \[0, 2\*\*32\), got -5"),
        ({"position": 2**80}, r"position must be in \[0, 2\*\*32\), got 1208925819614629174706176"),
        ({"position": 1.0}, r"position must be integers in \[0, 2\*\*32\), got dtype float64"),
        ({"position": True}, r"position must be integers in \[0, 2\*\*32\), got dtype bool"),
        ({"position": np.array([1.5], dtype=object)}, r"position must be integers"),
        ({"stream": -1}, r"stream must be in \[0, 2\*\*14\), got -1"),
        ({"stream": 2**14}, r"stream must be in \[0, 2\*\*14\), got 16384"),
        ({"count": -1}, r"count must be in \[0, 2\*\*17\], got -1"),
        ({"count": 2**17 + 1}, r"count must be in \[0, 2\*\*17\], got 131073"),
        ({"bits": 0}, r"bits must be in \[1, 32\], got 0"),
        ({"bits": 33}, r"bits must be in \[1, 32\], got 33"),
        ({"purpose": Purpose.LFSR}, r"purpose must be OFFSET, TERNARY or ROUNDING, got <Purpose.LFSR: 3>"),
        ({"purpose": 4}, r"purpose must be OFFSET, TERNARY or ROUNDING, got 4"),
        (
            {"position": [1, 2], "stream": [1, 2, 3]},
            r"sequence, position and stream must broadcast .* \(2,\).* \(3,\)",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_words_out_of_range_are_refused(kind, change, message):
    words(kind, **ALLOWED)
    with pytest.raises(ValueError, match=message):
        words(kind, **{**ALLOWED, **change})


def test_other_refusals():
    with pytest.raises(ValueError, match="kind must be one of threefry, lfsr, got 'philox'"):
        words("philox", **ALLOWED)
    with pytest.raises(ValueError, match=r"state must be in \[0, 2\*\*32\), got 4294967296"):
        lfsr_jump(2**32, 1)
    with pytest.raises(ValueError, match="steps must be 0 or more, got -1"):
        lfsr_jump(1, -1)
