"""What holds for any deployment and whatever an operation asks."""

from __future__ import annotations

from random import Random

from hypothesis import assume, given, settings, strategies as st
from support.engine.topologies import ADDRESSES, any_criteria, suitable_of, topologies
from support.examples import scaled

from pymongo_resilience.server_choice.eligibility import Criteria, decide, explain
from pymongo_resilience.server_choice.server_description import TopologyDescription
from pymongo_resilience.server_choice.server_load import choose

counts = st.dictionaries(st.sampled_from(ADDRESSES), st.integers(0, 20))


@settings(max_examples=scaled(100))
@given(topology=topologies(), criteria=any_criteria())
def test_each_rule_only_leaves_servers_out(
    topology: TopologyDescription, criteria: Criteria
) -> None:
    before = {each.address for each in topology.servers}
    for rule, servers in decide(topology, criteria).steps:
        left = {each.address for each in servers}
        assert left <= before, rule
        assert len(left) == len(servers), "none is there twice"
        before = left


@settings(max_examples=scaled(100))
@given(topology=topologies(), criteria=any_criteria())
def test_the_explanation_says_of_every_server_what_was_decided(
    topology: TopologyDescription, criteria: Criteria
) -> None:
    verdicts = explain(topology, criteria)
    assert [each.address for each in verdicts] == [each.address for each in topology.servers]
    eligible = {each.address for each in verdicts if each.eligible}
    assert eligible == {each.address for each in decide(topology, criteria).in_window}
    for verdict in verdicts:
        assert verdict.text.startswith(f"{verdict.address} ")
        assert ("eligible" in verdict.text.split(", ")) == verdict.eligible


@settings(max_examples=scaled(100))
@given(topology=topologies(), criteria=any_criteria())
def test_breakers_and_the_window_leave_a_server_where_there_is_one(
    topology: TopologyDescription, criteria: Criteria
) -> None:
    decision = decide(topology, criteria._replace(server_selector=None))
    assert bool(decision.in_window) == bool(suitable_of(decision))


@settings(max_examples=scaled(100))
@given(topology=topologies(), criteria=any_criteria())
def test_deprioritizing_costs_nobody_a_server(
    topology: TopologyDescription, criteria: Criteria
) -> None:
    suitable = suitable_of(decide(topology, criteria))
    anyway = suitable_of(decide(topology, criteria._replace(deprioritized=())))
    assert bool(suitable) == bool(anyway)
    avoided = [each for each in suitable if each.address in criteria.deprioritized]
    if avoided:
        assert suitable == anyway


@settings(max_examples=scaled(100))
@given(topology=topologies(), criteria=any_criteria(), operations=counts, dice=st.randoms())
def test_what_is_selected_is_eligible_and_who_is_busiest_is_not_selected(
    topology: TopologyDescription,
    criteria: Criteria,
    operations: dict[str, int],
    dice: Random,
) -> None:
    in_window = decide(topology, criteria).in_window
    assume(in_window)
    selected = choose(in_window, operations, dice.random)
    assert selected in in_window
    others = [operations.get(each.address, 0) for each in in_window if each is not selected]
    assert not others or operations.get(selected.address, 0) <= max(others)


@settings(max_examples=scaled(100))
@given(topology=topologies(), operations=counts, dice=st.randoms())
def test_of_two_the_one_with_fewer_operations_is_chosen(
    topology: TopologyDescription, operations: dict[str, int], dice: Random
) -> None:
    assume(len(topology.servers) > 1)
    two = list(topology.servers[:2])
    fewest = min(operations.get(each.address, 0) for each in two)
    chosen = choose(two, operations, dice.random)
    assert operations.get(chosen.address, 0) == fewest
