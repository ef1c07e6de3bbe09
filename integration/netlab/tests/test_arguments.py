"""Tests that need no lab and no privileges: rates, names of hosts, refused arguments."""

import netlab
import pytest
from netlab import __main__ as cli


@pytest.mark.parametrize(
    "text", ["200mbit", "25mbps", "0.2gbit", " 200MBIT ", "2e8", 2e8], ids=repr
)
def test_rates_of_tc_are_read_as_bits_per_second(text):
    assert netlab.parse_rate(text) == 200_000_000


@pytest.mark.parametrize("text", ["200mb/s", "", "fast", "-1mbit"])
def test_a_text_that_is_not_a_rate_is_refused(text):
    with pytest.raises(netlab.NetlabError, match="a rate is a number and one of bit, kbit"):
        netlab.parse_rate(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "Bad-Name"}, "a lab's name is 1-16 of a-z0-9, a letter first; got 'Bad-Name'"),
        ({"hosts": 0}, "a lab has 1 to 200 hosts; got hosts=0"),
        ({"hosts": 201}, "a lab has 1 to 200 hosts; got hosts=201"),
    ],
)
def test_impossible_labs_are_refused(arguments, message):
    with pytest.raises(netlab.NetlabError, match=message):
        netlab.Lab(**arguments)


@pytest.mark.parametrize("host", [2, "2", "h2", "lab-h2", "10.231.0.3"], ids=repr)
def test_a_host_has_several_names(host):
    assert netlab.Lab(hosts=3).index(host) == 2


@pytest.mark.parametrize(
    "host", [3, -1, "h3", "other-h1", "10.231.0.0", "10.231.0.4", "10.9.0.1"], ids=repr
)
def test_a_host_outside_the_lab_is_refused(host):
    with pytest.raises(netlab.NetlabError, match="lab lab has hosts 0 to 2; got"):
        netlab.Lab(hosts=3).index(host)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["exec", "0"], "exec needs a command to run; got none"),
        (["status", "--name", "nosuchlab"], "no lab nosuchlab is up"),
        (["rsh", "-l", "root"], "rsh needs HOST and a command"),
        (["rsh", "nosuchlab-h0", "true"], "HOST is in exactly one lab"),
    ],
)
def test_wrong_use_of_the_command_line_is_explained(argv, message, capsys):
    assert cli.main(argv) == 2
    assert message in capsys.readouterr().err
