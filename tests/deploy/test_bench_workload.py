"""The arithmetic of the multi-turn workload, held to figures that were worked out elsewhere."""

from dataclasses import replace

import pytest

from stratakv.deploy.bench_workload import Order, Workload

PUBLISHED = Workload(
    clients=48, rounds=60, new_tokens=4096, output_tokens=16, order=Order.FIFO, seed=1, parallel=48
)
SMALL = Workload(clients=3, rounds=4, new_tokens=10, output_tokens=3, order=Order.FIFO, seed=1, parallel=2)


def test_the_published_workload_has_its_published_prompt_tokens():
    assert PUBLISHED.all_prompt_tokens() == 361_152_000


def test_a_cache_that_loses_nothing_computes_what_the_simulation_of_it_computes():
    computed = sum(PUBLISHED.prompt_tokens(turn) - PUBLISHED.reusable(turn, 64) for turn in range(60))
    assert 48 * computed == 11_908_608
    assert PUBLISHED.ceiling(64) == pytest.approx(1 - 11_908_608 / 361_152_000)


def test_the_ceiling_is_below_the_one_that_knows_no_pages():
    for turn, ceiling in enumerate(PUBLISHED.ceiling_by_round(64)):
        assert ceiling <= turn * 4112 / (4096 * (turn + 1) + 16 * turn)


def test_the_last_token_of_an_answer_has_no_kv():
    # 10 + 3 tokens are said in round 0, of which 12 have KV.
    assert SMALL.prompt_tokens(1) == 23
    assert [SMALL.reusable(1, page) for page in (1, 4, 12, 13)] == [12, 12, 12, 0]
    assert SMALL.reusable(0, 1) == 0


def test_a_pool_for_everything_holds_every_conversation_to_its_end():
    assert SMALL.longest == 52
    assert SMALL.pages(16) == 3 * 4


def test_ids_are_the_same_in_every_run_and_no_others_anywhere_else():
    drawn = [SMALL.fresh(client, turn, 1000) for client in range(3) for turn in range(4)]
    assert drawn == [SMALL.fresh(client, turn, 1000) for client in range(3) for turn in range(4)]
    assert len({tuple(ids) for ids in drawn}) == 12
    assert SMALL.fresh(0, 0, 1000) != replace(SMALL, seed=2).fresh(0, 0, 1000)
    assert all(0 <= token < 7 for token in SMALL.fresh(0, 0, 7))


def test_fifo_asks_in_the_same_order_and_random_does_not():
    many = replace(SMALL, clients=20)
    assert many.clients_in_order(0) == many.clients_in_order(3) == list(range(20))
    shuffled = replace(many, order=Order.RANDOM)
    assert shuffled.clients_in_order(1) != shuffled.clients_in_order(2)
    assert sorted(shuffled.clients_in_order(1)) == list(range(20))
    assert shuffled.clients_in_order(1) == shuffled.clients_in_order(1)
